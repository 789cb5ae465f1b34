//! Holds that go on: for longer, or as a reader's.

use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{LossReason, Mode, Name};

use crate::store::Store;

impl Store {
    pub(crate) fn renew(
        &self,
        name: &Name,
        attempt: AttemptId,
        lease: Duration,
    ) -> Result<(), LossReason> {
        let now = self.clock.now();
        let mut state = self.state();
        let expired = state.sweep(name, now);
        let lock = state.locks.get_mut(name);
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
        let mut state = self.state();
        state.sweep(name, now);
        let lock = state.locks.get_mut(name);
        let Some(holder) =
            lock.and_then(|lock| lock.holders.iter_mut().find(|h| h.attempt == attempt))
        else {
            return false;
        };
        holder.mode = Mode::Shared;
        state.settle(name, now);
        self.changes.notify_waiters();
        true
    }
}
