//! The memory store as one of many shards: names that begin with `far:` can be put out of reach, and renewals are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Capabilities, Lease, Outcome, Released, Renewal, Request};
use dlock_core::{Error, ErrorKind, LockInfo, Name, Result};
use dlock_memory::MemoryBackend;

#[derive(Debug)]
pub(crate) struct Shards {
    pub(crate) store: MemoryBackend,
    /// The name under which this client knows the store.
    identity: String,
    /// The far names fail at once, or never answer.
    pub(crate) far_fails: AtomicBool,
    pub(crate) far_hangs: AtomicBool,
    /// How long a renewal takes, how many run now, and the most that ran at once.
    pub(crate) renewal: Duration,
    renewals: AtomicUsize,
    pub(crate) most: AtomicUsize,
}

impl Shards {
    pub(crate) fn new(store: MemoryBackend, renewal: Duration) -> Arc<Self> {
        Self::known_as(store.identity().to_owned(), store, renewal)
    }

    pub(crate) fn known_as(identity: String, store: MemoryBackend, renewal: Duration) -> Arc<Self> {
        Arc::new(Self {
            store,
            identity,
            far_fails: AtomicBool::new(false),
            far_hangs: AtomicBool::new(false),
            renewal,
            renewals: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        })
    }

    async fn reach(&self, name: &Name) -> Result<()> {
        if !name.starts_with("far:") {
            return Ok(());
        }
        if self.far_hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.far_fails.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unreachable, "this shard is down"));
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for Shards {
    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.reach(request.name()).await?;
        self.store.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.reach(request.name()).await?;
        self.store.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let now = self.renewals.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        if !self.renewal.is_zero() {
            tokio::time::sleep(self.renewal).await;
        }
        self.renewals.fetch_sub(1, Ordering::Relaxed);
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        if lease.name().starts_with("denied:") {
            return Err(Error::new(
                ErrorKind::Denied,
                "the permission was taken away",
            ));
        }
        self.reach(lease.name()).await?;
        self.store.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.reach(request.name()).await?;
        self.store.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        if lease.name().starts_with("stays:") {
            return Err(Error::new(ErrorKind::Denied, "no permission to downgrade"));
        }
        self.store.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.store.inspect(name).await
    }
}
