//! The memory store with other properties, as other stores have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Capabilities, Lease, Outcome, Released, Renewal, Request};
use dlock_core::{Hearing, LockInfo, Mode, Moment, Name, Result, kit};
use dlock_memory::MemoryBackend;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Altered {
    store: MemoryBackend,
    capabilities: Capabilities,
    /// A lease counts from the moment at which the wait began, as where a session is proved now and then.
    pub(crate) counts_from_the_call: AtomicBool,
    /// What the store answers to the question whether others wait, and how often it was asked.
    pub(crate) others_wait: AtomicBool,
    pub(crate) asked: AtomicUsize,
    /// A waiter asks again and again, and has no place in a queue.
    pub(crate) polls: AtomicBool,
    /// Whoever wants to read finds the store silent.
    pub(crate) readers_hang: AtomicBool,
    pub(crate) heals: Notify,
    /// What the store gives, the backend finds too late by itself.
    pub(crate) finds_it_late: AtomicBool,
}

impl Altered {
    pub(crate) fn new(store: MemoryBackend, wanted: Hearing) -> Arc<Self> {
        let mut capabilities = store.capabilities().clone();
        capabilities.wanted = wanted;
        Arc::new(Self {
            store,
            capabilities,
            counts_from_the_call: AtomicBool::new(false),
            others_wait: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            polls: AtomicBool::new(false),
            readers_hang: AtomicBool::new(false),
            heals: Notify::new(),
            finds_it_late: AtomicBool::new(false),
        })
    }

    fn altered(&self, outcome: Outcome, request: &Request, called: Moment) -> Outcome {
        match outcome {
            Outcome::Held(lease) if self.counts_from_the_call.load(Ordering::Relaxed) => {
                let token = lease.token().map_or(0, u64::from);
                Outcome::Held(Lease::new(request, called).with_token(token))
            }
            other => other,
        }
    }

    async fn reach(&self, request: &Request) {
        while request.mode() == Mode::Shared && self.readers_hang.load(Ordering::Relaxed) {
            self.heals.notified().await;
        }
    }
}

#[async_trait]
impl Backend for Altered {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        self.store.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.reach(request).await;
        let outcome = self.store.try_acquire(request).await?;
        if self.finds_it_late.load(Ordering::Relaxed) {
            return Err(kit::too_late(request.lease()));
        }
        Ok(outcome)
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        let called = request.now();
        self.reach(request).await;
        if self.polls.load(Ordering::Relaxed) {
            let longest = Duration::from_millis(100);
            return kit::poll(request, longest, || self.store.try_acquire(request)).await;
        }
        let outcome = self.store.acquire(request).await?;
        Ok(self.altered(outcome, request, called))
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.store.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.store.abandon(request).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.store.inspect(name).await
    }

    async fn others_wait(&self, _: &Name) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.others_wait.load(Ordering::Relaxed)
    }

    async fn wanted(&self, lease: &Lease) {
        match self.capabilities.wanted {
            Hearing::Told { .. } => self.store.wanted(lease).await,
            _ => std::future::pending().await,
        }
    }
}
