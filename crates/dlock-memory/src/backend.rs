use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Busy, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Clock, Error, ErrorKind, Fairness, Hearing, HeldNow, Liveness, LockInfo, Name,
    Reach, Released, Result, WakeUp,
};

use crate::acquire::Tried;
use crate::control::{Control, Link};
use crate::fence::TURNS;
use crate::store::{Grant, Store};

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
    pub(crate) store: Arc<Store>,
    pub(crate) link: Arc<Link>,
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
        Self::client_of(&self.store)
    }

    /// The handle that makes this client misbehave.
    pub fn control(&self) -> Control {
        Control {
            link: self.link.clone(),
            store: self.store.clone(),
        }
    }

    pub(crate) fn client_of(store: &Arc<Store>) -> Self {
        let mut capabilities = Capabilities::new("memory");
        capabilities.fencing = true;
        capabilities.fairness = Fairness::Fifo;
        capabilities.wake_up = WakeUp::Push {
            bound: Duration::from_millis(50),
        };
        capabilities.liveness = Liveness::Lease;
        capabilities.reach = Reach::Process;
        capabilities.shared = true;
        capabilities.downgrade = true;
        capabilities.permits = true;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.turns = TURNS;
        capabilities.wanted = Hearing::Told {
            bound: Duration::from_millis(50),
        };
        capabilities.durability = "none: the locks end with the process";
        Self {
            store: store.clone(),
            link: Link::new(),
            capabilities,
        }
    }
}

fn private_identity() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("memory:#{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Nothing of the attempt has reached the store.
fn unsent(error: Error) -> Error {
    error.with_held(HeldNow::No)
}

fn held(request: &Request, grant: Grant) -> Outcome {
    Outcome::Held(Lease::new(request, grant.from).with_token(grant.token))
}

#[async_trait]
impl Backend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.store.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let call = self.link.send(&self.store).await.map_err(unsent)?;
        let tried = self.store.try_acquire(request)?;
        self.link.reply(&self.store, call).await?;
        Ok(match tried {
            Tried::Held(grant) => held(request, grant),
            Tried::Busy { free_in } => Outcome::Busy(Busy {
                retry_after: free_in,
            }),
        })
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        let sent = request.now();
        let call = self.link.send(&self.store).await.map_err(unsent)?;
        let taken = self.store.acquire_or_queue(request)?;
        let grant = match taken {
            // Without a wait the lease counts from before the request was sent; after one, from the grant (C7).
            Ok(grant) => Grant {
                from: grant.from.min(sent),
                ..grant
            },
            Err(place) => {
                request.mark_contended();
                self.granted(request, call, place).await?
            }
        };
        self.link.reply(&self.store, call).await?;
        Ok(held(request, grant))
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let call = match self.link.send(&self.store).await {
            Ok(call) => call,
            Err(error) => return failed(leases, &error),
        };
        let answers = leases
            .iter()
            .map(|lease| {
                match self
                    .store
                    .renew(lease.name(), lease.attempt(), lease.duration())
                {
                    Ok(()) => Renewal::Extended,
                    Err(reason) => Renewal::Lost(reason),
                }
            })
            .collect();
        match self.link.reply(&self.store, call).await {
            Ok(()) => answers,
            Err(error) => failed(leases, &error),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let call = self.link.send(&self.store).await?;
        let found = self.store.release(lease.name(), lease.attempt());
        self.link.reply(&self.store, call).await?;
        Ok(if found {
            Released::Freed
        } else {
            Released::AlreadyLost
        })
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        let call = self.link.send(&self.store).await?;
        self.store.abandon(request.name(), request.attempt());
        self.link.reply(&self.store, call).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let call = self.link.send(&self.store).await?;
        let found = self.store.downgrade(lease.name(), lease.attempt());
        self.link.reply(&self.store, call).await?;
        if found {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Lost,
            "the hold is gone, so there is nothing to downgrade",
        ))
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let call = self.link.send(&self.store).await?;
        let info = self.store.inspect(name);
        self.link.reply(&self.store, call).await?;
        Ok(info)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let call = self.link.send(&self.store).await?;
        let found = self.store.list(prefix);
        self.link.reply(&self.store, call).await?;
        Ok(found)
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        let Ok(call) = self.link.send(&self.store).await else {
            return std::future::pending().await;
        };
        self.store.changed(name, seen).await;
        self.link.not_hung(call).await;
    }

    async fn others_wait(&self, name: &Name) -> bool {
        let Ok(call) = self.link.send(&self.store).await else {
            return false;
        };
        let waits = self.store.is_waited_for(name);
        self.link.reply(&self.store, call).await.is_ok() && waits
    }

    async fn wanted(&self, lease: &Lease) {
        let Ok(call) = self.link.send(&self.store).await else {
            return std::future::pending().await;
        };
        self.store.wanted(lease.name()).await;
        self.link.not_hung(call).await;
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        let call = self.link.send(&self.store).await?;
        let broken = self.store.break_lock(name);
        self.link.reply(&self.store, call).await?;
        Ok(broken)
    }
}

fn failed(leases: &[Arc<Lease>], error: &Error) -> Vec<Renewal> {
    leases
        .iter()
        .map(|_| Renewal::Failed(error.clone()))
        .collect()
}
