//! Gives a hold back.

use dlock_core::Released;
use dlock_core::backend::Lease;

use super::{ConnectionLocks, within};
use crate::connect::Job;
use crate::error::Trouble;

impl ConnectionLocks {
    /// A hold was good until its mark is cleared, whether its own connection does that or, when that has broken, another one.
    pub(super) async fn release(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let Some(hold) = self.held(attempt) else {
            return Ok(Released::AlreadyLost);
        };
        let mut carried_by = hold.carried_by.lock().await;
        if !self.is_held_still(attempt, &hold) {
            return Ok(Released::AlreadyLost);
        }
        let limit = self.config.answer_timeout;
        let mut doubt = None;
        if carried_by.connection.is_open() {
            let connection = &mut carried_by.connection;
            let let_go = self
                .kind
                .let_go(connection, lease.name(), hold.key, hold.waited);
            match within(limit, let_go).await {
                Ok(freed) => {
                    self.attempts().remove(&attempt);
                    if !freed {
                        // It may have the lock, or its place among those who wait.
                        carried_by.connection.shut();
                    } else if let Some(connection) = carried_by.connection.hand_over() {
                        self.keep(connection);
                    }
                    return Ok(released(freed));
                }
                Err(trouble) => doubt = Some(trouble),
            }
            carried_by.connection.shut();
        }
        self.end(carried_by.call_sign, limit).await?;
        let clear = self.kind.marks.clear(lease.name(), hold.key, None);
        let told = self.shared.call(Job::Text(&clear), limit).await?;
        self.attempts().remove(&attempt);
        if told.answer.affected > 0 {
            return Ok(Released::Freed);
        }
        // A first try, whose answer was lost, may have cleared it.
        let seen = self.look_from_outside(lease.name(), limit).await?;
        match (seen.and_then(|seen| seen.end_of(hold.key)), doubt) {
            (Some(end), _) => Ok(end),
            (None, Some(trouble)) => Err(trouble.in_doubt()),
            (None, None) => Err(Trouble::gone()),
        }
    }
}

fn released(freed: bool) -> Released {
    if freed {
        Released::Freed
    } else {
        Released::AlreadyLost
    }
}
