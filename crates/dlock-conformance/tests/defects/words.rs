//! Stores that say or do the wrong thing at renewal, release and undo.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{ErrorKind, LossReason, Mode, Name, Released, Result, SystemClock};

use super::{Client, Defect};

/// A release frees the lock, whoever holds it.
#[derive(Debug, Default)]
pub(crate) struct ReleasesAnyone;

#[async_trait]
impl Defect for ReleasesAnyone {
    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        Ok(if client.store.break_lock(lease.name()).await? {
            Released::Freed
        } else {
            Released::AlreadyLost
        })
    }
}

/// The undo of an attempt frees the lock, whoever holds it.
#[derive(Debug, Default)]
pub(crate) struct AbandonsAnyone;

#[async_trait]
impl Defect for AbandonsAnyone {
    async fn abandon(&self, client: &Client, request: &Request) -> Result<()> {
        client.store.break_lock(request.name()).await?;
        client.store.abandon(request).await
    }
}

/// A renewal of a hold that is gone says that it was extended.
#[derive(Debug, Default)]
pub(crate) struct RevivesHolds;

#[async_trait]
impl Defect for RevivesHolds {
    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let answers = client.store.renew(leases).await;
        let revived = answers.into_iter().map(|answer| match answer {
            Renewal::Lost(_) => Renewal::Extended,
            other => other,
        });
        revived.collect()
    }
}

/// A release always says that it freed the lock.
#[derive(Debug, Default)]
pub(crate) struct AlwaysFreed;

#[async_trait]
impl Defect for AlwaysFreed {
    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let _ = client.store.release(lease).await?;
        Ok(Released::Freed)
    }
}

/// A release of a good hold says that it was lost.
#[derive(Debug, Default)]
pub(crate) struct LossOnRelease;

#[async_trait]
impl Defect for LossOnRelease {
    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let _ = client.store.release(lease).await?;
        Ok(Released::AlreadyLost)
    }
}

/// A release does nothing and says that it did.
#[derive(Debug, Default)]
pub(crate) struct ReleaseDoesNothing;

#[async_trait]
impl Defect for ReleaseDoesNothing {
    async fn release(&self, _: &Client, _: &Lease) -> Result<Released> {
        Ok(Released::Freed)
    }
}

/// A watchdog of its own that outlives the release, and writes the hold anew.
#[derive(Debug, Default)]
pub(crate) struct OwnWatchdog;

#[async_trait]
impl Defect for OwnWatchdog {
    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let released = client.store.release(lease).await?;
        let again = Request::new(lease.name().clone(), lease.mode(), Arc::new(SystemClock));
        client.store.try_acquire(&again).await?;
        Ok(released)
    }
}

/// A release whose reply was lost is sent again, and finds nothing.
#[derive(Debug, Default)]
pub(crate) struct RepeatsRelease;

#[async_trait]
impl Defect for RepeatsRelease {
    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        match client.store.release(lease).await {
            Err(_) => client.store.release(lease).await,
            other => other,
        }
    }
}

/// A renewal that cannot reach the store is taken for a good one.
#[derive(Debug, Default)]
pub(crate) struct RenewsWithoutStore;

#[async_trait]
impl Defect for RenewsWithoutStore {
    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let answers = client.store.renew(leases).await;
        let hopeful = answers.into_iter().map(|answer| match answer {
            Renewal::Failed(_) => Renewal::Extended,
            other => other,
        });
        hopeful.collect()
    }
}

/// A renewal that cannot reach the store is taken for a loss.
#[derive(Debug, Default)]
pub(crate) struct FailedRenewalIsLoss;

#[async_trait]
impl Defect for FailedRenewalIsLoss {
    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let answers = client.store.renew(leases).await;
        let anxious = answers.into_iter().map(|answer| match answer {
            Renewal::Failed(_) => Renewal::Lost(LossReason::Gone),
            other => other,
        });
        anxious.collect()
    }
}

/// The undo of an attempt does nothing and says that it did.
#[derive(Debug, Default)]
pub(crate) struct AbandonDoesNothing;

#[async_trait]
impl Defect for AbandonDoesNothing {
    async fn abandon(&self, _: &Client, _: &Request) -> Result<()> {
        Ok(())
    }
}

/// The undo of an attempt is forgotten, so a late request of it takes effect.
#[derive(Debug, Default)]
pub(crate) struct AbandonIsForgotten;

#[async_trait]
impl Defect for AbandonIsForgotten {
    async fn abandon(&self, client: &Client, request: &Request) -> Result<()> {
        let _ = client
            .store
            .release(&Lease::new(request, request.now()))
            .await?;
        Ok(())
    }
}

/// A downgrade does nothing and says that it did.
#[derive(Debug, Default)]
pub(crate) struct DowngradeDoesNothing;

#[async_trait]
impl Defect for DowngradeDoesNothing {
    async fn downgrade(&self, _: &Client, _: &Lease) -> Result<()> {
        Ok(())
    }
}

/// A downgrade frees the lock and then takes it again.
#[derive(Debug, Default)]
pub(crate) struct DowngradeHasAGap(Mutex<HashMap<dlock_core::backend::AttemptId, Lease>>);

#[async_trait]
impl Defect for DowngradeHasAGap {
    async fn downgrade(&self, client: &Client, lease: &Lease) -> Result<()> {
        if lease.mode() == Mode::Shared {
            return Ok(());
        }
        let _ = client.store.release(lease).await?;
        let clock = Arc::new(SystemClock);
        let again = Request::new(lease.name().clone(), Mode::Shared, clock);
        if let Outcome::Held(new) = client.store.try_acquire(&again).await? {
            self.0.lock().unwrap().insert(lease.attempt(), new);
        }
        Ok(())
    }

    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let new = self.0.lock().unwrap().remove(&lease.attempt());
        client.store.release(&new.unwrap_or(lease.clone())).await
    }
}

/// A client can have one lock: the next one frees the one before (as GET_LOCK of old).
#[derive(Debug, Default)]
pub(crate) struct SecondFreesFirst(Mutex<HashMap<usize, Lease>>);

#[async_trait]
impl Defect for SecondFreesFirst {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        if let Outcome::Held(lease) = &attempt {
            let before = self.0.lock().unwrap().insert(client.id, lease.clone());
            if let Some(before) = before {
                let _ = client.store.release(&before).await?;
            }
        }
        Ok(attempt)
    }
}

/// The release of one lock ends the session, and with it all other holds of the client.
#[derive(Debug, Default)]
pub(crate) struct ReleaseFreesOthers(Mutex<HashMap<usize, Vec<Lease>>>);

#[async_trait]
impl Defect for ReleaseFreesOthers {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let attempt = client.store.acquire(request).await?;
        if let Outcome::Held(lease) = &attempt {
            let mut holds = self.0.lock().unwrap();
            holds.entry(client.id).or_default().push(lease.clone());
        }
        Ok(attempt)
    }

    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let released = client.store.release(lease).await?;
        let others = self.0.lock().unwrap().remove(&client.id);
        for other in others.unwrap_or_default() {
            let _ = client.store.release(&other).await?;
        }
        Ok(released)
    }
}

/// The loop of a renewal thread that stops for good after the first failure.
#[derive(Debug, Default)]
pub(crate) struct RenewalStops(Mutex<HashMap<usize, bool>>);

#[async_trait]
impl Defect for RenewalStops {
    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if self.0.lock().unwrap().contains_key(&client.id) {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        let answers = client.store.renew(leases).await;
        if answers.iter().any(|a| matches!(a, Renewal::Failed(_))) {
            self.0.lock().unwrap().insert(client.id, true);
        }
        answers
    }
}

/// Nobody is ever told that others wait.
#[derive(Debug, Default)]
pub(crate) struct TellsNobody;

#[async_trait]
impl Defect for TellsNobody {
    async fn others_wait(&self, _: &Client, _: &Name) -> bool {
        false
    }

    async fn wanted(&self, _: &Client, _: &Lease) {
        std::future::pending().await
    }
}

/// Holders are told that others wait when nobody does.
#[derive(Debug, Default)]
pub(crate) struct CriesWolf;

#[async_trait]
impl Defect for CriesWolf {
    async fn wanted(&self, _: &Client, _: &Lease) {}
}

/// Holders are told of those alone who come after they began to listen.
#[derive(Debug, Default)]
pub(crate) struct TellsOfNewcomers;

#[async_trait]
impl Defect for TellsOfNewcomers {
    async fn others_wait(&self, _: &Client, _: &Name) -> bool {
        false
    }

    async fn wanted(&self, client: &Client, lease: &Lease) {
        if client.store.others_wait(lease.name()).await {
            std::future::pending().await
        }
        client.store.wanted(lease).await;
    }
}

/// The answer does not wait for the write: one that the store refuses is a grant.
#[derive(Debug, Default)]
pub(crate) struct GrantsBeforeTheWrite;

#[async_trait]
impl Defect for GrantsBeforeTheWrite {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let from = request.now();
        match client.store.try_acquire(request).await {
            Err(error) if error.kind() == ErrorKind::Denied => {
                Ok(Outcome::Held(Lease::new(request, from).with_token(1)))
            }
            answer => answer,
        }
    }
}
