//! Mistakes that a backend is made to have, so that it is known that the judge sees them.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use dlocks::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlocks::{
    Capabilities, Capability, Clock, Error, LockInfo, Locks, Name, Released, Result, Settings,
    SystemClock,
};
use serde::{Deserialize, Serialize};

/// Which mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plant {
    /// Every renewal is said to have worked, and none is sent: an expired hold is told as held.
    RenewsInWordsOnly,
    /// "Busy" is told as held.
    GrantsWhatIsBusy,
    /// All tokens are the same.
    OneToken,
    /// A release is said to have worked, and nothing is sent.
    ReleasesInWordsOnly,
    /// Every second time the first waiter is passed over, and stands behind the others.
    PassesOver,
    /// The first process is never woken: what it does not get at once it waits for in vain.
    NeverWakesOne,
}

impl Plant {
    /// Whether this process has the mistake.
    pub(crate) fn hits(self, process: u32) -> bool {
        self != Self::NeverWakesOne || process == 1
    }
}

/// A backend with a mistake.
#[derive(Debug)]
pub(crate) struct Liar {
    inner: Arc<dyn Backend>,
    plant: Plant,
    /// How many waits have ended.
    waits: AtomicU64,
}

impl Liar {
    pub(crate) async fn locks(url: &str, plant: Plant, settings: Settings) -> Result<Locks> {
        // The lease is in the settings: it is a word of the facade.
        let url = url.replace("&lease=2000ms", "");
        let inner = dlocks::open(&url).await?;
        let liar: Arc<dyn Backend> = Arc::new(Self {
            inner,
            plant,
            waits: AtomicU64::new(0),
        });
        Locks::builder(liar).settings(settings).build()
    }

    fn bend(&self, request: &Request, attempt: Outcome) -> Outcome {
        match (self.plant, attempt) {
            (Plant::GrantsWhatIsBusy, Outcome::Busy(_)) => {
                let lease = Lease::new(request, SystemClock.now());
                Outcome::Held(lease.with_token(u64::MAX / 2))
            }
            (Plant::OneToken, Outcome::Held(lease)) => Outcome::Held(lease.with_token(7)),
            (_, attempt) => attempt,
        }
    }
}

#[deny(
    clippy::missing_trait_methods,
    reason = "the only mistakes are those that are planted: a default would be one more"
)]
#[async_trait]
impl Backend for Liar {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn identity(&self) -> &str {
        self.inner.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let attempt = self.inner.try_acquire(request).await?;
        Ok(self.bend(request, attempt))
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        if self.plant == Plant::NeverWakesOne {
            return match self.inner.try_acquire(request).await? {
                Outcome::Busy(_) => pending().await,
                held => Ok(held),
            };
        }
        let mut attempt = self.inner.acquire(request).await?;
        if let (Plant::PassesOver, Outcome::Held(lease)) = (self.plant, &attempt)
            && self.waits.fetch_add(1, Ordering::SeqCst) % 2 == 1
        {
            let _ = self.inner.release(lease).await?;
            attempt = self.inner.acquire(request).await?;
        }
        Ok(self.bend(request, attempt))
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        match self.plant {
            Plant::RenewsInWordsOnly => leases.iter().map(|_| Renewal::Extended).collect(),
            _ => self.inner.renew(leases).await,
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        match self.plant {
            Plant::ReleasesInWordsOnly => Ok(Released::Freed),
            _ => self.inner.release(lease).await,
        }
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.inner.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.inner.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.inner.inspect(name).await
    }

    async fn others_wait(&self, name: &Name) -> bool {
        self.inner.others_wait(name).await
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        self.inner.changed(name, seen).await;
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.inner.list(prefix).await
    }

    fn bounds_trips_of_list(&self) -> bool {
        self.inner.bounds_trips_of_list()
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.inner.break_lock(name).await
    }

    async fn wanted(&self, lease: &Lease) {
        self.inner.wanted(lease).await;
    }

    fn sends_in_order(&self) -> bool {
        self.inner.sends_in_order()
    }

    fn lacks(&self, capability: Capability) -> Error {
        self.inner.lacks(capability)
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
