//! A memory store with a defect: the wrapper and its harness. The defects are in the modules below.

mod grants;
mod names;
mod queues;
mod rests;
mod words;

pub(crate) use grants::*;
pub(crate) use names::*;
pub(crate) use queues::*;
pub(crate) use rests::*;
pub(crate) use words::*;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_conformance::{Ability, Fault, Faulty, Harness, Residue, Timings, async_trait};
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capabilities, LockInfo, Name, Released, Result};
use dlock_memory::{Control, MemoryBackend};

/// What is wrong with a store; everything that is not overridden is right. One value for all clients of a store.
#[async_trait]
pub(crate) trait Defect: Debug + Default + Send + Sync + 'static {
    fn claim(_capabilities: &mut Capabilities) {}

    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        client.store.try_acquire(request).await
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        client.store.acquire(request).await
    }

    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        client.store.renew(leases).await
    }

    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        client.store.release(lease).await
    }

    async fn abandon(&self, client: &Client, request: &Request) -> Result<()> {
        client.store.abandon(request).await
    }

    async fn downgrade(&self, client: &Client, lease: &Lease) -> Result<()> {
        client.store.downgrade(lease).await
    }

    async fn inspect(&self, client: &Client, name: &Name) -> Result<LockInfo> {
        client.store.inspect(name).await
    }

    async fn others_wait(&self, client: &Client, name: &Name) -> bool {
        client.store.others_wait(name).await
    }

    async fn wanted(&self, client: &Client, lease: &Lease) {
        client.store.wanted(lease).await;
    }

    fn residue(&self) -> u64 {
        0
    }
}

/// Nothing is wrong.
#[derive(Debug, Default)]
pub(crate) struct NoDefect;

impl Defect for NoDefect {}

/// A client of the good store below.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) store: MemoryBackend,
    pub(crate) id: usize,
}

#[derive(Debug)]
struct Broken<D> {
    client: Client,
    capabilities: Capabilities,
    defect: Arc<D>,
}

#[async_trait]
impl<D: Defect> Backend for Broken<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        self.client.store.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.defect.try_acquire(&self.client, request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.defect.acquire(&self.client, request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.defect.renew(&self.client, leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.defect.release(&self.client, lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.defect.abandon(&self.client, request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.defect.downgrade(&self.client, lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.defect.inspect(&self.client, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.client.store.list(prefix).await
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.client.store.break_lock(name).await
    }

    async fn others_wait(&self, name: &Name) -> bool {
        self.defect.others_wait(&self.client, name).await
    }

    async fn wanted(&self, lease: &Lease) {
        self.defect.wanted(&self.client, lease).await;
    }
}

struct Store<D> {
    store: MemoryBackend,
    defect: Arc<D>,
    clients: AtomicUsize,
    timings: Timings,
}

/// A new store with a defect. A case that waits for what never comes need not wait long.
pub(crate) fn store<D: Defect>() -> Arc<dyn Harness> {
    let hurried = Timings::default()
        .settle(Duration::from_millis(1500))
        .case_limit(Duration::from_secs(10));
    store_with::<D>(hurried)
}

pub(crate) fn store_with<D: Defect>(timings: Timings) -> Arc<dyn Harness> {
    Arc::new(Store {
        store: MemoryBackend::new(),
        defect: Arc::<D>::default(),
        clients: AtomicUsize::new(0),
        timings,
    })
}

impl<D: Defect> Store<D> {
    fn client(&self) -> Broken<D> {
        let store = self.store.another_client();
        let mut capabilities = store.capabilities().clone();
        D::claim(&mut capabilities);
        Broken {
            client: Client {
                store,
                id: self.clients.fetch_add(1, Ordering::Relaxed),
            },
            capabilities,
            defect: self.defect.clone(),
        }
    }
}

#[async_trait]
impl<D: Defect> Harness for Store<D> {
    fn name(&self) -> &str {
        "broken"
    }

    fn timings(&self) -> Timings {
        self.timings
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(self.client()))
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::ALL
    }

    async fn faulty(&self) -> Result<Faulty> {
        let client = self.client();
        let fault = Arc::new(Line(client.client.store.control()));
        Ok(Faulty {
            backend: Arc::new(client),
            fault,
        })
    }

    async fn set_clock(&self, _: i64) -> Result<()> {
        Ok(())
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        self.store.control().expire(name);
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let names = self.store.control().names() as u64;
        Ok(Residue::from([
            ("names".to_owned(), names),
            ("rows".to_owned(), self.defect.residue()),
        ]))
    }
}

struct Line(Control);

#[async_trait]
impl Fault for Line {
    async fn cut(&self) {
        self.0.cut();
    }

    async fn hang(&self) {
        self.0.hang();
    }

    async fn half_open(&self) {
        self.0.half_open();
    }

    async fn deny(&self) {
        self.0.deny();
    }

    async fn heal(&self) {
        self.0.heal();
    }

    async fn lose_reply(&self) {
        self.0.lose_reply(1);
    }

    async fn delay_replies(&self, delay: Duration) {
        self.0.delay_replies(delay);
    }
}
