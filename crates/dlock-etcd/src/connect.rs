//! The servers, with fail-over and time-outs of our own; the only module that names the client's types.
//!
//! The client has neither: with one of two endpoints down, a third of its calls fail. So each endpoint has a client of its
//! own, and a call that fails on one goes to the next.

mod asking;
mod lease;
mod member;
mod news;
mod prompt;
mod watch;
mod words;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::ErrorKind;
use etcd_client::{Client, Error as EtcdError, GetOptions, ResponseHeader};

use self::member::{Member, MemberChannel};
use self::words::{answer, to_client};
use crate::config::Config;
use crate::error::{Cause, Trouble};
use crate::position::OneMembersAnswer;
use crate::txn::{Range, Row, Txn, TxnAnswer};

pub(crate) use self::lease::whole_seconds;
pub(crate) use self::member::endpoints;
#[cfg(feature = "client")]
pub(crate) use self::member::options;
pub(crate) use self::watch::{KeyWatch, Watching};

pub(crate) struct Cluster {
    members: Vec<Member>,
    /// The member that answered last.
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
pub(crate) struct Answered<T> {
    pub(crate) value: T,
    pub(crate) member: usize,
    /// Whether an earlier try of the same call may have been carried out too, or still may be.
    pub(crate) doubt: bool,
}

impl<T> Answered<T> {
    fn map<U>(self, read: impl FnOnce(T) -> U) -> Answered<U> {
        Answered {
            value: read(self.value),
            member: self.member,
            doubt: self.doubt,
        }
    }
}

impl Cluster {
    /// `given` is a client of the application, by which all requests go then.
    pub(crate) fn new(config: &Config, given: Option<Client>) -> Result<Self, Trouble> {
        let members: Vec<Member> = match given {
            Some(client) => vec![Member::of_given(&config.addresses(), client)],
            None => {
                // A setting that is wrong is wrong for all.
                member::without_login(config)?;
                endpoints(config).into_iter().map(Member::new).collect()
            }
        };
        // Clients that are given the same list spread over it.
        let start = uuid::Uuid::new_v4().as_u128() % (members.len().max(1) as u128);
        Ok(Self {
            current: AtomicUsize::new(usize::try_from(start).unwrap_or_default()),
            members,
            config: config.clone(),
            answer_timeout: config.member_timeout(),
            newest: AtomicI64::new(0),
            suspicions: AtomicU64::new(0),
        })
    }

    /// Asks the current member, and the others in turn as long as another may do better.
    async fn call<T, C, F>(
        &self,
        limit: Option<Duration>,
        pick: fn(&MemberChannel) -> C,
        work: impl Fn(C) -> F,
    ) -> Result<Answered<T>, Trouble>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let limit = limit.unwrap_or(self.answer_timeout);
        let count = self.members.len();
        let mut doubt = false;
        let mut said: Vec<String> = Vec::new();
        let mut tries = 0;
        loop {
            let index = self.current();
            tries += 1;
            let trouble = match self.ask(index, limit, pick, &work).await {
                Ok(value) => {
                    return Ok(Answered {
                        value,
                        member: index,
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
        let trouble = if before.is_empty() || self.members.len() < 2 {
            trouble
        } else {
            let before: Vec<&str> = before.into_iter().map(String::as_str).collect();
            trouble.about(&format!("no server could do it; {}", before.join("; ")))
        };
        if doubt { trouble.in_doubt() } else { trouble }
    }

    /// Asks one member, once.
    async fn ask<T, C, F>(
        &self,
        index: usize,
        limit: Duration,
        pick: fn(&MemberChannel) -> C,
        work: &impl Fn(C) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let Some(member) = self.members.get(index) else {
            return Err(Trouble::new(ErrorKind::Invalid, "no server is named").unsent());
        };
        let mut left = limit;
        let (client, generation) = match member.ready(pick) {
            Some(ready) => ready,
            None => {
                // Whatever happens while the client logs in, the work was not sent.
                let start = tokio::time::Instant::now();
                // In a box, as everything rare: what a call may need is part of its future, which is made and moved for every call.
                let connecting = Box::pin(member.connect(&self.config, pick));
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
            member.replace(generation);
        }
        outcome
    }

    fn move_on(&self, failed: usize) {
        let next = (failed + 1) % self.members.len().max(1);
        // Only the first who sees the failure moves on.
        let _ = self
            .current
            .compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn place(&self, index: usize) -> &str {
        self.members.get(index).map_or("", Member::place)
    }

    /// The member that is asked first now.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.members.len().max(1)
    }

    pub(crate) fn servers(&self) -> usize {
        self.members.len()
    }

    pub(crate) async fn txn(&self, txn: &Txn) -> Result<Answered<TxnAnswer>, Trouble> {
        self.txn_within(self.answer_timeout, txn).await
    }

    /// The same, each member getting at most `limit` to answer.
    pub(crate) async fn txn_within(
        &self,
        limit: Duration,
        txn: &Txn,
    ) -> Result<Answered<TxnAnswer>, Trouble> {
        let known = self.newest_revision();
        let limit = limit.min(self.answer_timeout);
        let told = self
            .call(Some(limit), MemberChannel::kv_client, |mut keys| {
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
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<Answered<bool>, Trouble> {
        self.call(None, MemberChannel::kv_client, |mut keys| {
            let key = key.to_vec();
            async move { keys.delete(key, None).await.map(|gone| gone.deleted() > 0) }
        })
        .await
    }

    /// Asks one member alone, the one that knows about an event already.
    pub(crate) async fn txn_at(
        &self,
        member: usize,
        txn: &Txn,
    ) -> Result<OneMembersAnswer, Trouble> {
        self.ask(
            member,
            self.answer_timeout,
            MemberChannel::kv_client,
            &|mut keys| {
                let words = to_client(txn);
                async move { keys.txn(words).await }
            },
        )
        .await
        .map(|response| answer(txn, response).into())
    }

    /// Everything in a range as it is at one moment.
    pub(crate) async fn everything_in(&self, range: &Range) -> Result<Vec<Row>, Trouble> {
        self.pages(range, GetOptions::new()).await
    }

    /// How many keys of a range were created before this revision. etcd's own count counts those that came later, too, so their names are read.
    pub(crate) async fn count_before(&self, range: &Range, created: i64) -> Result<u64, Trouble> {
        let earlier = GetOptions::new()
            .with_keys_only()
            .with_max_create_revision(created - 1);
        let rows = self.pages(range, earlier).await?;
        Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
    }

    /// A page at a time: a server's answer has a longest size. Each page is a call of its own, with a limit of its own.
    async fn pages(&self, range: &Range, options: GetOptions) -> Result<Vec<Row>, Trouble> {
        let mut rows: Vec<Row> = Vec::new();
        let (mut start, mut revision) = (range.start.clone(), 0);
        loop {
            let told = self.call(None, MemberChannel::kv_client, |mut keys| {
                let options = options
                    .clone()
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

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<&str> = (0..self.members.len())
            .map(|index| self.place(index))
            .collect();
        f.debug_struct("Cluster")
            .field("members", &members)
            .finish_non_exhaustive()
    }
}
