//! What an attempt may have left is undone, and a hold is ended by force.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{AttemptId, Outcome, Request};
use dlock_core::{Mode, Name, SystemClock, kit};
use tokio_postgres::types::Type;

use super::{AttemptState, SessionLocks, within};
use crate::connect::{Arg, Job};
use crate::error::Trouble;

/// How often a lock that was broken is asked for.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// A mark that somebody has broken.
struct Broken {
    sign: i64,
    valid: Duration,
    token: i64,
}

impl SessionLocks {
    /// Ends the connection of an attempt, and removes its mark.
    pub(super) async fn abandon(&self, request: &Request) -> Result<(), Trouble> {
        let attempt = request.attempt();
        kit::remember_abandoned(attempt);
        let Some(state) = self.attempts().get(&attempt).cloned() else {
            return Ok(());
        };
        let sign = match &state {
            AttemptState::Asking(sign) => *sign,
            AttemptState::Holding(hold) => {
                let mut carried_by = hold.carried_by.lock().await;
                carried_by.carrier = None;
                carried_by.sign
            }
        };
        let limit = request.trip_timeout();
        self.end(sign, limit).await?;
        let name = request.name().as_str();
        let args: [Arg<'_>; 2] = [(&name, Type::TEXT), (attempt.as_uuid(), Type::UUID)];
        self.shared
            .call(Job::Ask(&self.sql.abandon, &args), limit)
            .await?;
        self.attempts().remove(&attempt);
        Ok(())
    }

    /// Breaks the mark, so that its holder cannot go on, ends its connection, and waits until the lock is free: as with any holder that did
    /// not leave in order, that is when its last sign of life is good no more ([C1](dlock_core::contract#c1)).
    pub(super) async fn break_lock(&self, name: &Name) -> Result<bool, Trouble> {
        let limit = self.config.answer_timeout;
        let Some(broken) = self.mark(&self.sql.break_mark, name, limit).await? else {
            return Ok(false);
        };
        self.end(broken.sign, limit)
            .await
            .map_err(|trouble| trouble.about("the lock was not freed yet"))?;
        // The caller gets to know before its own time-out passes.
        let patience = limit * 4 / 5;
        if broken.valid < patience {
            self.until_free(name, &broken, patience).await;
        }
        Ok(true)
    }

    async fn mark(
        &self,
        sql: &str,
        name: &Name,
        limit: Duration,
    ) -> Result<Option<Broken>, Trouble> {
        let name = name.as_str();
        let args: [Arg<'_>; 1] = [(&name, Type::TEXT)];
        let told = self.shared.call(Job::Ask(sql, &args), limit).await?;
        let Some(row) = told.rows.first() else {
            return Ok(None);
        };
        let number = |column| {
            row.try_get::<i64>(column)
                .map_err(|_| Trouble::unexpected_reply("no numbers of a mark"))
        };
        Ok(Some(Broken {
            sign: number(0)?,
            valid: Duration::from_micros(number(1)?.unsigned_abs()),
            token: number(2)?,
        }))
    }

    /// Until the lock of a broken mark can be had, or somebody else has it.
    async fn until_free(&self, name: &Name, broken: &Broken, patience: Duration) {
        let request = Request::new(name.clone(), Mode::Exclusive, Arc::new(SystemClock))
            .with_trip_timeout(self.config.answer_timeout)
            .with_lease(self.config.session_validity);
        let _left = OwnAttempt {
            locks: self,
            attempt: request.attempt(),
        };
        let outcome = async {
            loop {
                let pause = match self.try_acquire(&request).await? {
                    Outcome::Held(lease) => return self.release(&lease).await.map(|_| ()),
                    Outcome::Busy(busy) => busy.retry_after.unwrap_or(ASK_EVERY),
                };
                tokio::time::sleep(pause).await;
                let seen = self.mark(&self.sql.read, name, self.config.answer_timeout);
                if seen.await?.is_none_or(|seen| seen.token != broken.token) {
                    return Ok(());
                }
            }
        };
        let outcome: Result<(), Trouble> = within(patience, outcome).await;
        if let Err(trouble) = outcome {
            let error = trouble.message();
            tracing::debug!(error, %name, "a lock was broken, and is not free yet");
            if let Err(trouble) = self.abandon(&request).await {
                let error = trouble.message();
                tracing::debug!(error, %name, "an attempt was not undone");
            }
        }
    }
}

/// An attempt that core knows nothing of, and so will not undo. However it ends, also with the future that made it, nothing of it stays here: the
/// connection is closed, and the next holder waits for its mark as for that of any other who did not leave in order.
struct OwnAttempt<'a> {
    locks: &'a SessionLocks,
    attempt: AttemptId,
}

impl Drop for OwnAttempt<'_> {
    fn drop(&mut self) {
        kit::remember_abandoned(self.attempt);
        let left = self.locks.attempts().remove(&self.attempt);
        drop(left);
    }
}
