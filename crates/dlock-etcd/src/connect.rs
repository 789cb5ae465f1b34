//! The servers, with fail-over and time-outs of our own; the only module that names the client's types.
//!
//! The client has neither: with one of two endpoints down, a third of its calls fail. So each endpoint has a client of its
//! own, and a call that fails on one goes to the next.

mod words;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::ErrorKind;
use etcd_client::{
    Client, ConnectOptions, Error as EtcdError, LeaseGrantOptions, LeaseTimeToLiveOptions,
    WatchFilterType, WatchOptions, WatchStream,
};

use self::words::{answer, to_client};
use crate::config::Config;
use crate::error::Trouble;
use crate::txn::{Answer, Query, Range, Step, Txn};

/// Pings on a connection with open streams. Servers refuse clients that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Link {
    nodes: Vec<Node>,
    /// The node that answered last.
    current: AtomicUsize,
    options: ConnectOptions,
    answer_timeout: Duration,
}

struct Node {
    address: String,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    /// Counts the clients, so that one failure seen by many replaces one client.
    generation: u64,
    client: Option<Client>,
}

/// An answer, and how it came about.
#[derive(Debug)]
pub(crate) struct Told<T> {
    pub(crate) value: T,
    pub(crate) node: usize,
    /// Whether an earlier try of the same call may have been carried out too, or still may be.
    pub(crate) doubt: bool,
}

impl Link {
    pub(crate) fn new(config: &Config) -> Result<Self, Trouble> {
        let options = options(config)?;
        let scheme = scheme(config);
        let nodes = config.addresses().into_iter().map(|address| Node {
            address: format!("{scheme}://{address}"),
            slot: Mutex::default(),
        });
        let nodes: Vec<Node> = nodes.collect();
        // Clients that are given the same list spread over it.
        let start = uuid::Uuid::new_v4().as_u128() % (nodes.len().max(1) as u128);
        Ok(Self {
            current: AtomicUsize::new(usize::try_from(start).unwrap_or_default()),
            nodes,
            options,
            answer_timeout: config.answer_timeout,
        })
    }

    /// Asks the current node, and the others in turn as long as another may do better.
    async fn call<T, F>(
        &self,
        limit: Option<Duration>,
        work: impl Fn(Client) -> F,
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
            let index = self.current.load(Ordering::Relaxed) % count.max(1);
            tries += 1;
            let trouble = match self.ask(index, limit, &work).await {
                Ok(value) => {
                    return Ok(Told {
                        value,
                        node: index,
                        doubt,
                    });
                }
                Err(trouble) => trouble,
            };
            doubt |= trouble.sent;
            if trouble.elsewhere {
                self.move_on(index);
            }
            // One server: a broken connection or an expired log-in is worth a new one, silence or a refusal is not.
            let worth = if count > 1 {
                tries < count + 1
            } else {
                tries < 2 && !trouble.refused && trouble.kind != ErrorKind::TimedOut
            };
            said.push(format!("{}: {}", self.place(index), trouble.message()));
            if trouble.elsewhere && worth {
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
        let trouble = trouble.at(&place);
        let trouble = if before.is_empty() || self.nodes.len() < 2 {
            trouble
        } else {
            let before: Vec<&str> = before.into_iter().map(String::as_str).collect();
            trouble.at(&format!("no server could do it; {}", before.join("; ")))
        };
        if doubt { trouble.in_doubt() } else { trouble }
    }

    /// Asks one node, once.
    async fn ask<T, F>(
        &self,
        index: usize,
        limit: Duration,
        work: &impl Fn(Client) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, EtcdError>>,
    {
        let Some(node) = self.nodes.get(index) else {
            return Err(Trouble::new(ErrorKind::Invalid, "no server is named").unsent());
        };
        // Whatever happens while the client logs in, the work was not sent.
        let start = tokio::time::Instant::now();
        let (client, generation) = tokio::time::timeout(limit, node.client(&self.options))
            .await
            .unwrap_or_else(|_| Err(Trouble::silence(limit)))
            .map_err(Trouble::unsent)?;
        let left = limit.saturating_sub(start.elapsed());
        let outcome = tokio::time::timeout(left, work(client)).await.map_or_else(
            |_| Err(Trouble::silence(limit)),
            |told| told.map_err(Trouble::from),
        );
        if let Err(trouble) = &outcome
            && trouble.broken
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
        let address = self
            .nodes
            .get(index)
            .map_or("", |node| node.address.as_str());
        address.split_once("://").map_or(address, |(_, host)| host)
    }

    pub(crate) fn servers(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) async fn txn(&self, txn: &Txn) -> Result<Told<Answer>, Trouble> {
        let txn = to_client(txn);
        self.call(None, |mut client| {
            let txn = txn.clone();
            async move { client.txn(txn).await.map(answer) }
        })
        .await
    }

    /// Asks one node alone, the one that knows about an event already.
    pub(crate) async fn txn_at(&self, node: usize, txn: &Txn) -> Result<Answer, Trouble> {
        let txn = to_client(txn);
        let work = |mut client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await.map(answer) }
        };
        self.ask(node, self.answer_timeout, &work).await
    }

    pub(crate) async fn rows(&self, query: &Query) -> Result<Told<Answer>, Trouble> {
        self.txn(&Txn::of(vec![Step::Get(query.clone())])).await
    }

    /// Grants a lease with this id, and tells how long it lasts.
    pub(crate) async fn grant(
        &self,
        id: i64,
        ttl: Duration,
        limit: Option<Duration>,
    ) -> Result<Duration, Trouble> {
        let seconds = whole_seconds(ttl);
        let granted = self
            .call(limit, |mut client| async move {
                let options = LeaseGrantOptions::new().with_id(id);
                client.lease_grant(seconds, Some(options)).await
            })
            .await;
        match granted {
            Ok(told) => Ok(Duration::from_secs(
                u64::try_from(told.value.ttl()).unwrap_or_default(),
            )),
            // An earlier try was carried out: the lease has our id.
            Err(trouble) if trouble.lease_exists => self.lasts(id).await,
            Err(trouble) => Err(trouble),
        }
    }

    async fn lasts(&self, id: i64) -> Result<Duration, Trouble> {
        let told = self
            .call(None, |mut client| async move {
                client.lease_time_to_live(id, None).await
            })
            .await?;
        match u64::try_from(told.value.granted_ttl()) {
            Ok(seconds) if told.value.ttl() > 0 => Ok(Duration::from_secs(seconds)),
            _ => Err(Trouble::session_ended()),
        }
    }

    /// One sign of life for a lease.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<(), Trouble> {
        self.call(None, |mut client| async move {
            // The stream's first answer belongs to this request; the stream ends with this block.
            client.lease_keep_alive(id).await.map(drop)
        })
        .await
        .map(drop)
    }

    /// The keys that hang on a lease; `None` when it has ended.
    pub(crate) async fn keys_of(&self, id: i64) -> Result<Option<Vec<Vec<u8>>>, Trouble> {
        let told = self
            .call(None, |mut client| async move {
                let options = LeaseTimeToLiveOptions::new().with_keys();
                client.lease_time_to_live(id, Some(options)).await
            })
            .await?;
        let lives = told.value.ttl() > 0;
        Ok(lives.then(|| told.value.keys().to_vec()))
    }

    /// How long the store would keep a lease from now on.
    pub(crate) async fn remaining(&self, id: i64) -> Result<Option<Duration>, Trouble> {
        let told = self
            .call(None, |mut client| async move {
                client.lease_time_to_live(id, None).await
            })
            .await?;
        Ok(u64::try_from(told.value.ttl())
            .ok()
            .map(Duration::from_secs))
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<(), Trouble> {
        self.call(
            None,
            |mut client| async move { client.lease_revoke(id).await },
        )
        .await
        .map(drop)
    }

    /// Watches keys from now on. The watch is in place when this returns.
    ///
    /// "From now on" and not from the revision that the caller has read: a watch that starts at a revision which has passed is
    /// served by the server's 100 ms loop. The caller compares [`Watch::since`] with what it has read.
    pub(crate) async fn watch(&self, range: &Range, puts: bool) -> Result<Watch, Trouble> {
        let mut options = WatchOptions::new();
        if !range.end.is_empty() {
            options = options.with_range(range.end.clone());
        }
        if !puts {
            options = options.with_filters([WatchFilterType::NoPut]);
        }
        let key = range.start.clone();
        let told = self
            .call(None, |mut client| {
                let (key, options) = (key.clone(), options.clone());
                async move {
                    let mut stream = client.watch(key, Some(options)).await?;
                    let first = stream.message().await?;
                    let first = first.filter(|first| first.created() && !first.canceled());
                    let Some(first) = first else {
                        return Err(EtcdError::WatchError("the server refused it".to_owned()));
                    };
                    let since = first.header().map_or(0, |header| header.revision());
                    Ok((stream, since))
                }
            })
            .await?;
        let (stream, since) = told.value;
        Ok(Watch {
            stream,
            node: told.node,
            since,
        })
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

impl Node {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of this node. A new one logs in, if there is a login; its connection is made with the first request.
    async fn client(&self, options: &ConnectOptions) -> Result<(Client, u64), Trouble> {
        let generation = {
            let slot = self.slot();
            if let Some(client) = &slot.client {
                return Ok((client.clone(), slot.generation));
            }
            slot.generation
        };
        let client = Client::connect([&self.address], Some(options.clone())).await?;
        let mut slot = self.slot();
        if slot.generation == generation && slot.client.is_none() {
            slot.client = Some(client.clone());
        }
        Ok((client, slot.generation))
    }

    /// The next call makes a new client: this one's connection broke or hangs, or its runtime has ended.
    fn replace(&self, generation: u64) {
        let mut slot = self.slot();
        if slot.generation == generation {
            slot.generation += 1;
            slot.client = None;
        }
    }
}

/// A watch that is in place.
#[derive(Debug)]
pub(crate) struct Watch {
    stream: WatchStream,
    /// The node that serves it.
    pub(crate) node: usize,
    /// Everything after this revision is seen.
    pub(crate) since: i64,
}

impl Watch {
    /// Resolves with an event. A watch that ended, for whatever reason, is an error: open another.
    pub(crate) async fn event(&mut self) -> Result<(), Trouble> {
        loop {
            let Some(message) = self.stream.message().await? else {
                return Err(EtcdError::WatchError("the stream ended".to_owned()).into());
            };
            if message.canceled() {
                let why = message.cancel_reason().to_owned();
                return Err(EtcdError::WatchError(format!("the server ended it: {why}")).into());
            }
            if !message.events().is_empty() {
                return Ok(());
            }
        }
    }
}

/// How clients of this cluster connect and log in.
pub(crate) fn options(config: &Config) -> Result<ConnectOptions, Trouble> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(config.connect_timeout)
        .with_keep_alive(PING_EVERY, config.answer_timeout)
        .with_keep_alive_while_idle(false);
    if let Some((user, password)) = &config.login {
        options = options
            .with_user(user, password)
            .with_auto_token_refresh(true);
    }
    if config.tls {
        options = with_tls(options, config)?;
    }
    Ok(options)
}

fn scheme(config: &Config) -> &'static str {
    if config.tls { "https" } else { "http" }
}

/// The cluster's addresses as the client wants them.
#[cfg(feature = "client")]
pub(crate) fn endpoints(config: &Config) -> Vec<String> {
    let scheme = scheme(config);
    let addresses = config.addresses().into_iter();
    addresses
        .map(|address| format!("{scheme}://{address}"))
        .collect()
}

/// A lease lasts whole seconds.
pub(crate) fn whole_seconds(time: Duration) -> i64 {
    let more = u64::from(time.subsec_nanos() > 0);
    i64::try_from(time.as_secs().saturating_add(more)).unwrap_or(i64::MAX)
}

#[cfg(feature = "tls")]
fn with_tls(options: ConnectOptions, config: &Config) -> Result<ConnectOptions, Trouble> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    let mut tls = TlsOptions::new();
    tls = match &config.ca {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls.with_enabled_roots(),
    };
    if let Some((certificate, key)) = &config.identity {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Ok(options.with_tls(tls))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_options: ConnectOptions, _config: &Config) -> Result<ConnectOptions, Trouble> {
    Err(Trouble::new(
        ErrorKind::Unsupported,
        "this program was built without TLS for etcd: enable the feature \"tls\" of dlock-etcd",
    )
    .unsent())
}
