//! Holds that go on: for longer, or as a reader's.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{AttemptId, Lease, Renewal};
use dlock_core::{Error, ErrorKind, LossReason, Mode, Name, Result};

use crate::client::Client;
use crate::store::Store;

impl Client {
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let renewed = self.call(|store| {
            let each = leases.iter().map(|lease| {
                match store.renew(lease.name(), lease.attempt(), lease.duration()) {
                    Ok(()) => Renewal::Extended,
                    Err(reason) => Renewal::Lost(reason),
                }
            });
            each.collect()
        });
        renewed.await.unwrap_or_else(|error| {
            let each = leases.iter().map(|_| Renewal::Failed(error.clone()));
            each.collect()
        })
    }

    pub(crate) async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let downgraded = self.call(|store| store.downgrade(lease.name(), lease.attempt()));
        if downgraded.await? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Lost,
            "the hold is gone, so there is nothing to downgrade",
        ))
    }
}

impl Store {
    pub(crate) fn renew(
        &self,
        name: &Name,
        attempt: AttemptId,
        lease: Duration,
    ) -> Result<(), LossReason> {
        let now = self.clock.now();
        let mut table = self.table();
        let expired = table.sweep(name, now);
        let lock = table.locks.get_mut(name);
        let holder = lock.and_then(|lock| lock.holders.iter_mut().find(|h| h.attempt == attempt));
        match holder {
            Some(holder) => {
                holder.expires = now + lease;
                Ok(())
            }
            None if expired.contains(&attempt) => Err(LossReason::Expired),
            None => Err(LossReason::Gone),
        }
    }

    /// `false` when the hold is gone.
    pub(crate) fn downgrade(&self, name: &Name, attempt: AttemptId) -> bool {
        let now = self.clock.now();
        let mut table = self.table();
        table.sweep(name, now);
        let lock = table.locks.get_mut(name);
        let Some(holder) =
            lock.and_then(|lock| lock.holders.iter_mut().find(|h| h.attempt == attempt))
        else {
            return false;
        };
        holder.mode = Mode::Shared;
        table.settle(name, now);
        self.changes.notify_waiters();
        true
    }
}
