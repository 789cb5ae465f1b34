use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capabilities, Clock, LockInfo, Name, Released, Result};

use crate::capabilities::capabilities;
use crate::client::Client;
use crate::control::Control;
use crate::store::Store;

/// One client of a store in this process.
///
/// ```
/// use dlock_memory::MemoryBackend;
///
/// let mine = MemoryBackend::new();
/// let theirs = mine.another_client(); // the same locks, another client
/// ```
#[derive(Debug)]
pub struct MemoryBackend {
    client: Client,
    capabilities: Capabilities,
}

impl MemoryBackend {
    /// A client of a new store.
    #[allow(
        clippy::new_without_default,
        reason = "each call makes another store, which nobody expects of a default"
    )]
    pub fn new() -> Self {
        Self::client_of(&Store::system(private_identity()))
    }

    /// A client of a new store that lives by another clock, for tests with a paused one. Give the same clock to
    /// [`LocksBuilder::clock`](dlock_core::LocksBuilder::clock).
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::client_of(&Store::new(private_identity(), clock))
    }

    /// Another client of the same store.
    #[must_use]
    pub fn another_client(&self) -> Self {
        Self::client_of(&self.client.store)
    }

    /// The handle that makes this client misbehave.
    pub fn control(&self) -> Control {
        Control {
            link: self.client.link.clone(),
            store: self.client.store.clone(),
        }
    }

    pub(crate) fn client_of(store: &Arc<Store>) -> Self {
        Self {
            client: Client::new(store),
            capabilities: capabilities(),
        }
    }
}

fn private_identity() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("memory:#{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[async_trait]
impl Backend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.client.store.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.client.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.client.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.client.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.client.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.client.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.client.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.client.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.client.list(prefix).await
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        self.client.changed(name, seen).await;
    }

    async fn others_wait(&self, name: &Name) -> bool {
        self.client.others_wait(name).await
    }

    async fn wanted(&self, lease: &Lease) {
        self.client.wanted(lease).await;
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.client.break_lock(name).await
    }
}
