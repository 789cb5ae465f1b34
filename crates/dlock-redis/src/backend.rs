use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{AttemptId, Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Capability, Error, ErrorKind, Fairness, Hearing, Liveness, LockInfo, Mode, Name,
    Operation, Reach, Released, Result, WakeUp, kit,
};
use uuid::Uuid;

use crate::acquire::TOMBSTONE_TTL;
use crate::batcher::Batcher;
use crate::config::{Config, Style};
#[cfg(feature = "client")]
use crate::connect::Connection;
use crate::connect::{Call, Link, millis};
use crate::error::Trouble;
use crate::fence::{TURNS, with_first_tokens};
use crate::key::Keys;
use crate::script::Scripts;
use crate::script_args::{Attempt32, ScriptArgs};
use crate::wait::Inbox;

/// Locks in Redis: one server, Sentinel or Cluster.
///
/// Made by [`Config::connect`]; hand it to [`Locks::new`](dlock_core::Locks::new).
#[derive(Debug)]
pub struct RedisBackend {
    pub(crate) store: Arc<Store>,
}

/// What the operations share. Each file adds its own to it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) config: Arc<Config>,
    pub(crate) link: Arc<Link>,
    /// Where grants arrive when `link` is the application's own connection: the inbox then needs one for itself.
    pub(crate) ears: Option<Link>,
    /// For requests that can go together: neither plain locks nor a cluster, whose keys are at different nodes.
    pub(crate) batcher: Option<Arc<Batcher>>,
    /// For acquires that wait for replicas: `WAIT` blocks its connection.
    pub(crate) acquires: Option<Link>,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) channel: String,
    /// Script arguments that never change.
    pub(crate) script_args: ScriptArgs,
    capabilities: Capabilities,
    identity: String,
}

impl RedisBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        let with_context = |error: Error| {
            error
                .with_backend("redis")
                .with_operation(Operation::Connect)
        };
        config
            .check()
            .map_err(|error| Config::URL.with_context(error))?;
        let store = Store::new(config);
        Self::checked(store).await.map_err(with_context)
    }

    async fn checked(store: Store) -> Result<Self> {
        store.check().await?;
        Ok(Self {
            store: Arc::new(store),
        })
    }

    #[cfg(feature = "client")]
    pub(crate) async fn connect_over(config: Config, given: Connection) -> Result<Self> {
        config
            .check()
            .map_err(|error| Config::URL.with_context(error))?;
        if config.replicas > 0 {
            let refused = Error::new(
                ErrorKind::Unsupported,
                "replicas is set, but waiting for replicas blocks a connection, and this one is the application's: use connect",
            );
            return Err(Config::URL.with_context(refused));
        }
        let store = Self::checked(Store::over(config, given)).await;
        store.map_err(|error| {
            let error = error.with_operation(Operation::Connect);
            error.with_backend("redis")
        })
    }

    fn need(&self, capability: Capability) -> Result<()> {
        self.store.capabilities.require(&[capability])
    }
}

impl Store {
    pub(crate) fn new(config: Config) -> Self {
        let config = Arc::new(config);
        let plain = config.style == Style::Plain;
        let keys = Keys::new(config.effective_prefix(), plain);
        let inbox = Arc::new(Inbox::default());
        let channel = keys.inbox(&Uuid::new_v4());
        let listens = (!plain).then(|| (inbox.clone(), channel.clone()));
        let link = Arc::new(Link::new(config.clone(), listens));
        let together = !plain && !config.is_cluster() && config.replicas == 0;
        Self {
            batcher: together.then(|| Batcher::new(link.clone(), &config)),
            link,
            ears: None,
            acquires: (config.replicas > 0).then(|| Link::new(config.clone(), None)),
            keys,
            scripts: if plain {
                Scripts::plain()
            } else {
                Scripts::queued()
            },
            inbox,
            channel,
            script_args: ScriptArgs::new(&config),
            capabilities: capabilities(&config),
            identity: config.identity_text(),
            config,
        }
    }

    /// The same over the application's own connection, with one more for grants where there is a queue.
    #[cfg(feature = "client")]
    fn over(config: Config, given: Connection) -> Self {
        let mut store = Self::new(config);
        let listens = (store.config.style != Style::Plain)
            .then(|| (store.inbox.clone(), store.channel.clone()));
        store.ears = listens.map(|inbox| Link::new(store.config.clone(), Some(inbox)));
        store.link = Arc::new(Link::over(store.config.clone(), given));
        if store.batcher.is_some() {
            store.batcher = Some(Batcher::new(store.link.clone(), &store.config));
        }
        store
    }

    /// Makes sure that grants can be heard.
    pub(crate) async fn hear(&self) -> Result<(), Trouble> {
        match &self.ears {
            Some(ears) => Box::pin(ears.connect()).await,
            None => Ok(()),
        }
    }

    /// Connects, and takes and frees a lock of its own, so that a missing permission shows now and not at the first lock. All of
    /// it within the connect time-out.
    pub(crate) async fn check(&self) -> Result<(), Trouble> {
        let limit = self.config.connect_timeout;
        tokio::time::timeout(limit, self.try_out())
            .await
            .unwrap_or_else(|_| {
                Err(Trouble::new(
                    ErrorKind::TimedOut,
                    format!("not ready within {limit:?}: is the server overloaded or far away?"),
                )
                .unsent())
            })
    }

    async fn try_out(&self) -> Result<(), Trouble> {
        self.link.connect().await?;
        self.hear().await?;
        if let Some(acquires) = &self.acquires {
            acquires.connect().await?;
        }
        let key = self
            .keys
            .lock(&format!("dlock-check-{}", Uuid::new_v4().simple()));
        let attempt = AttemptId::new();
        let (take, free) = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, attempt)?;
            let on = |script| Call::new(script, [key.as_str(), tombstone.as_str()].into_iter());
            (
                on(&self.scripts.acquire)
                    .arg(Attempt32::new(attempt))
                    .arg("1"),
                on(&self.scripts.abandon)
                    .arg(Attempt32::new(attempt))
                    .arg("1"),
            )
        } else {
            // Everything it leaves is gone after a millisecond or two.
            let (args, moment) = (self.script_args.for_a_moment(), Duration::from_millis(1));
            (
                Call::on(&self.scripts.acquire, &key)
                    .arg(args.holder(attempt, ""))
                    .arg(args.acquire(Mode::Exclusive, moment, ""))
                    .arg(args.lasts(moment).to_string()),
                Call::on(&self.scripts.abandon, &key)
                    .arg(Attempt32::new(attempt))
                    .arg(args.plain())
                    .arg("1"),
            )
        };
        // So that the server knows this script too: the first renewal would else cost two answers, which a slow network may not give
        // within the part of a short lease that a renewal has.
        let sort: &[u8] = match self.config.style {
            Style::Plain => b"",
            _ => b"X",
        };
        let renew = Call::new(&self.scripts.renew, std::iter::once(key.as_str()))
            .arg(self.script_args.fence())
            .arg([sort, Attempt32::new(attempt).as_ref()].concat())
            .arg("1");
        for call in [take, renew, free] {
            let answer = self.link.call(&call, self.config.connect_timeout).await;
            answer.map_err(|trouble| trouble.about("checking what we may do").unsent())?;
        }
        if self.config.is_cluster() {
            let taught = self.link.teach(&self.scripts.renew).await;
            if let Err(trouble) = taught {
                tracing::debug!(
                    error = trouble.message(),
                    "not every node knows how to renew"
                );
            }
        }
        // A grant that cannot be told is found late, and nobody would know why.
        let told = self
            .ears
            .as_ref()
            .unwrap_or(&self.link)
            .tell_ourselves()
            .await;
        told.map_err(|trouble| trouble.about("checking what we may do").unsent())
    }
}

fn capabilities(config: &Config) -> Capabilities {
    let plain = config.style == Style::Plain;
    let mut capabilities = Capabilities::new("redis");
    capabilities.fencing = !plain;
    capabilities.fairness = match config.style {
        Style::Fair => Fairness::Fifo,
        _ => Fairness::None,
    };
    if !plain {
        capabilities.wake_up = WakeUp::Push {
            bound: Duration::from_millis(50),
        };
    }
    capabilities.liveness = Liveness::Lease;
    capabilities.reach = Reach::Network;
    capabilities.shared = !plain;
    capabilities.downgrade = !plain;
    capabilities.permits = !plain;
    // A plain lock has nothing but its owner, and looks like any other key.
    capabilities.inspect = !plain;
    capabilities.break_lock = true;
    capabilities.turns = if plain { 1 } else { TURNS };
    if !plain {
        capabilities.wanted = Hearing::Told {
            bound: Duration::from_millis(50),
        };
    }
    capabilities.durability = if config.replicas > 0 {
        "a hold is in memory at the master and at as many replicas as asked for before it counts; it is lost when one without \
         it is promoted, or when all restart without persistence"
    } else {
        "a hold is in memory at the master: it may be lost when that restarts without appendonly yes and appendfsync always, or \
         when a replica that has not received it is promoted"
    };
    capabilities
}

#[async_trait]
impl Backend for RedisBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.store.capabilities
    }

    fn identity(&self) -> &str {
        &self.store.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(self.store.attempt(request).await?.into())
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        // Plain locks have no queue.
        if let WakeUp::Poll { longest } = self.store.capabilities.wake_up {
            return Box::pin(kit::poll(request, longest, || self.try_acquire(request))).await;
        }
        self.store.wait(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.extend(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.store.free(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        Ok(self.store.undo(request, millis(TOMBSTONE_TTL)).await?)
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.need(Capability::Downgrade)?;
        self.store.share(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.need(Capability::Inspect)?;
        self.store.look(name).await.map(with_first_tokens)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.need(Capability::Inspect)?;
        let found = self.store.look_at_all(prefix).await?;
        Ok(found.into_iter().map(with_first_tokens).collect())
    }

    /// Each has `answer_timeout`, however many keys there are.
    fn bounds_trips_of_list(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.store.free_by_force(name).await
    }

    async fn others_wait(&self, name: &Name) -> bool {
        if self.store.config.style == Style::Plain {
            // A plain lock has no queue: nobody knows.
            return true;
        }
        // Who cannot be asked is not waited for: a holder gives way to somebody who is there.
        self.store.others_wait(name).await.unwrap_or(false)
    }

    async fn wanted(&self, lease: &Lease) {
        if self.store.config.style == Style::Plain {
            return std::future::pending().await;
        }
        Box::pin(self.store.wanted(lease)).await;
    }

    /// All requests for a lock go through one connection. Barging waiters of other clients would come too late.
    fn sends_in_order(&self) -> bool {
        self.store.config.style == Style::Fair && self.store.acquires.is_none()
    }

    async fn close(&self) -> Result<()> {
        self.store.link.close();
        for further in [&self.store.acquires, &self.store.ears]
            .into_iter()
            .flatten()
        {
            further.close();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::SystemClock;

    /// What is rare is in boxes: the allocator keeps pieces of up to 1 kB ready, and the future is moved into its box.
    #[tokio::test]
    async fn an_acquire_and_a_release_are_small() {
        let config = Config::from_url("redis://127.0.0.1").expect("a good URL");
        let store = Arc::new(Store::new(config));
        let backend = RedisBackend { store };
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let lease = Lease::new(&request, request.now());
        for size in [
            size_of_val(&*backend.acquire(&request)),
            size_of_val(&*backend.release(&lease)),
        ] {
            assert!(size < 1024, "{size} bytes");
        }
    }
}
