use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Capability, Error, LockInfo, Name, Operation, Released, Result, WakeUp, kit,
};

use crate::acquire::TOMBSTONE_TTL;
use crate::config::{Config, Style};
#[cfg(feature = "client")]
use crate::connect::Connection;
use crate::connect::millis;
use crate::fence::with_first_tokens;
use crate::store::Store;

/// Locks in Redis: one server, Sentinel or Cluster.
///
/// Made by [`Config::connect`]; hand it to [`Locks::new`](dlock_core::Locks::new).
#[derive(Debug)]
pub struct RedisBackend {
    pub(crate) store: Arc<Store>,
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
                dlock_core::ErrorKind::Unsupported,
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

#[async_trait]
impl Backend for RedisBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.store.capabilities
    }

    fn identity(&self) -> &str {
        &self.store.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(self.store.try_acquire(request).await?.into())
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        // Plain locks have no queue.
        if let WakeUp::Poll { longest } = self.store.capabilities.wake_up {
            return Box::pin(kit::poll(request, longest, || self.try_acquire(request))).await;
        }
        self.store.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.store.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        Ok(self.store.abandon(request, millis(TOMBSTONE_TTL)).await?)
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.need(Capability::Downgrade)?;
        self.store.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.need(Capability::Inspect)?;
        self.store.inspect(name).await.map(with_first_tokens)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.need(Capability::Inspect)?;
        let found = self.store.list(prefix).await?;
        Ok(found.into_iter().map(with_first_tokens).collect())
    }

    /// Each has `answer_timeout`, however many keys there are.
    fn bounds_trips_of_list(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.store.break_lock(name).await
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
    use dlock_core::{Mode, SystemClock};

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
