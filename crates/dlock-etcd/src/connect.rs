//! The servers, with fail-over and time-outs of our own; the only module that names the client's types.
//!
//! The client has neither: with one of two endpoints down, a third of its calls fail. So each endpoint has a client of its
//! own, and a call that fails on one goes to the next.

mod lease;
mod node;
mod watch;
mod words;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::ErrorKind;
use etcd_client::{Client, Error as EtcdError, GetOptions, ResponseHeader};

use self::node::Node;
use self::words::{answer, to_client};
use crate::config::Config;
use crate::error::{Cause, Trouble};
use crate::txn::{Answer, Range, Row, Txn};

pub(crate) use self::lease::whole_seconds;
pub(crate) use self::node::endpoints;
#[cfg(feature = "client")]
pub(crate) use self::node::options;
pub(crate) use self::watch::{Seen, Watch, Watching};

pub(crate) struct Link {
    nodes: Vec<Node>,
    /// The node that answered last.
    current: AtomicUsize,
    config: Config,
    answer_timeout: Duration,
    /// The highest revision that an answer of the cluster told.
    newest: AtomicI64,
    /// How often something happened after which the store may be another one.
    suspicions: AtomicU64,
}

/// How many entries are read at once. With the longest names and labels they are well below what a client takes (4 MiB).
const PAGE: i64 = 1000;

/// An answer, and how it came about.
#[derive(Debug)]
pub(crate) struct Told<T> {
    pub(crate) value: T,
    pub(crate) node: usize,
    /// Whether an earlier try of the same call may have been carried out too, or still may be.
    pub(crate) doubt: bool,
}

impl<T> Told<T> {
    fn map<U>(self, read: impl FnOnce(T) -> U) -> Told<U> {
        Told {
            value: read(self.value),
            node: self.node,
            doubt: self.doubt,
        }
    }
}

impl Link {
    pub(crate) fn new(config: &Config) -> Result<Self, Trouble> {
        // A setting that is wrong is wrong for all.
        node::without_login(config)?;
        let nodes: Vec<Node> = endpoints(config).into_iter().map(Node::new).collect();
        // Clients that are given the same list spread over it.
        let start = uuid::Uuid::new_v4().as_u128() % (nodes.len().max(1) as u128);
        Ok(Self {
            current: AtomicUsize::new(usize::try_from(start).unwrap_or_default()),
            nodes,
            config: config.clone(),
            answer_timeout: config.member_timeout(),
            newest: AtomicI64::new(0),
            suspicions: AtomicU64::new(0),
        })
    }

    /// Asks the current node, and the others in turn as long as another may do better.
    async fn call<T, C, F>(
        &self,
        limit: Option<Duration>,
        pick: fn(&Client) -> C,
        work: impl Fn(C) -> F,
    ) -> Result<Told<T>, Trouble>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let limit = limit.unwrap_or(self.answer_timeout);
        let count = self.nodes.len();
        let mut doubt = false;
        let mut said: Vec<String> = Vec::new();
        let mut tries = 0;
        loop {
            let index = self.current();
            tries += 1;
            let trouble = match self.ask(index, limit, pick, &work).await {
                Ok(value) => {
                    return Ok(Told {
                        value,
                        node: index,
                        doubt,
                    });
                }
                Err(trouble) => trouble,
            };
            doubt |= trouble.is_sent();
            if trouble.cause.is_worth_another() {
                self.move_on(index);
                self.suspect();
            }
            // One server: a broken connection or an expired log-in is worth a new one, silence or a refusal is not.
            let worth = if count > 1 {
                tries < count + 1
            } else {
                tries < 2 && !matches!(trouble.cause, Cause::NoConnection | Cause::Silent)
            };
            said.push(format!("{}: {}", self.place(index), trouble.message()));
            if trouble.cause.is_worth_another() && worth {
                continue;
            }
            return Err(self.summary(trouble, &said, doubt));
        }
    }

    /// Names every server and what it said, when several were asked.
    fn summary(&self, trouble: Trouble, said: &[String], doubt: bool) -> Trouble {
        let Some((last, others)) = said.split_last() else {
            return trouble;
        };
        let place = last.split(": ").next().unwrap_or_default().to_owned();
        let before: Vec<&String> = others.iter().filter(|text| *text != last).collect();
        let trouble = trouble.about(&place);
        let trouble = if before.is_empty() || self.nodes.len() < 2 {
            trouble
        } else {
            let before: Vec<&str> = before.into_iter().map(String::as_str).collect();
            trouble.about(&format!("no server could do it; {}", before.join("; ")))
        };
        if doubt { trouble.in_doubt() } else { trouble }
    }

    /// Asks one node, once.
    async fn ask<T, C, F>(
        &self,
        index: usize,
        limit: Duration,
        pick: fn(&Client) -> C,
        work: &impl Fn(C) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let Some(node) = self.nodes.get(index) else {
            return Err(Trouble::new(ErrorKind::Invalid, "no server is named").unsent());
        };
        let mut left = limit;
        let (client, generation) = match node.ready(pick) {
            Some(ready) => ready,
            None => {
                // Whatever happens while the client logs in, the work was not sent.
                let start = tokio::time::Instant::now();
                // In a box, as everything rare: what a call may need is part of its future, which is made and moved for every call.
                let connecting = Box::pin(node.connect(&self.config, pick));
                let made = tokio::time::timeout(limit, connecting);
                let made = made.await.unwrap_or_else(|_| Err(Trouble::silence(limit)));
                left = limit.saturating_sub(start.elapsed());
                made.map_err(Trouble::unsent)?
            }
        };
        let working = pin!(work(client));
        let outcome = tokio::time::timeout(left, working).await.map_or_else(
            |_| Err(Trouble::silence(limit)),
            |told| told.map_err(Trouble::from),
        );
        if let Err(trouble) = &outcome
            && trouble.cause.ends_connection()
        {
            node.replace(generation);
        }
        outcome
    }

    fn move_on(&self, failed: usize) {
        let next = (failed + 1) % self.nodes.len().max(1);
        // Only the first who sees the failure moves on.
        let _ = self
            .current
            .compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn place(&self, index: usize) -> &str {
        self.nodes.get(index).map_or("", Node::place)
    }

    /// The node that is asked first now.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.nodes.len().max(1)
    }

    pub(crate) fn servers(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) async fn txn(&self, txn: &Txn) -> Result<Told<Answer>, Trouble> {
        self.txn_within(self.answer_timeout, txn).await
    }

    /// The same, each member getting at most `limit` to answer.
    pub(crate) async fn txn_within(
        &self,
        limit: Duration,
        txn: &Txn,
    ) -> Result<Told<Answer>, Trouble> {
        let known = self.newest_revision();
        let limit = limit.min(self.answer_timeout);
        let told = self
            .call(Some(limit), Client::kv_client, |mut keys| {
                let words = to_client(txn);
                async move { keys.txn(words).await }
            })
            .await?;
        let told = told.map(|response| answer(txn, response));
        self.note_revision(known, told.value.revision);
        Ok(told)
    }

    /// A store counts its revision up, and a request is answered by what is known to a majority: so an answer to what was sent after
    /// revision `known` had been told is as new. If it is older, somebody has restored an old copy of the store.
    fn note_revision(&self, known: i64, told: i64) {
        if told >= known {
            self.newest.fetch_max(told, Ordering::AcqRel);
            return;
        }
        tracing::warn!(
            known,
            told,
            "the store went back to an older revision: was a snapshot restored? tokens are lower than before"
        );
        self.newest.store(told, Ordering::Release);
        self.suspect();
    }

    fn newest_revision(&self) -> i64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Something happened after which the store may be another: what hangs on our lease must be looked at.
    pub(crate) fn suspect(&self) {
        self.suspicions.fetch_add(1, Ordering::AcqRel);
    }

    /// How often something happened.
    pub(crate) fn suspicions(&self) -> u64 {
        self.suspicions.load(Ordering::Acquire)
    }

    /// Removes a key; `false` when it was not there.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<Told<bool>, Trouble> {
        self.call(None, Client::kv_client, |mut keys| {
            let key = key.to_vec();
            async move { keys.delete(key, None).await.map(|gone| gone.deleted() > 0) }
        })
        .await
    }

    /// Asks one node alone, the one that knows about an event already.
    pub(crate) async fn txn_at(&self, node: usize, txn: &Txn) -> Result<Answer, Trouble> {
        self.ask(node, self.answer_timeout, Client::kv_client, &|mut keys| {
            let words = to_client(txn);
            async move { keys.txn(words).await }
        })
        .await
        .map(|response| answer(txn, response))
    }

    /// Everything in a range as it is at one moment, a page at a time: a server's answer has a longest size.
    pub(crate) async fn everything_in(&self, range: &Range) -> Result<Vec<Row>, Trouble> {
        let mut rows: Vec<Row> = Vec::new();
        let (mut start, mut revision) = (range.start.clone(), 0);
        loop {
            let told = self.call(None, Client::kv_client, |mut keys| {
                let options = GetOptions::new()
                    .with_range(range.end.clone())
                    .with_limit(PAGE)
                    .with_revision(revision);
                let start = start.clone();
                async move { keys.get(start, Some(options)).await }
            });
            let mut page = told.await?.value;
            if revision == 0 {
                revision = page.header().map_or(0, ResponseHeader::revision);
            }
            rows.extend(page.take_kvs().into_iter().map(words::row));
            match rows.last() {
                Some(last) if page.more() => {
                    start.clone_from(&last.key);
                    start.push(0);
                }
                _ => return Ok(rows),
            }
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = (0..self.nodes.len())
            .map(|index| self.place(index))
            .collect();
        f.debug_struct("Link")
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}
