//! What an attempt may have left is undone, and a hold is ended by force.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{AttemptId, Outcome, Request};
use dlock_core::{Mode, Name, SystemClock, kit};

use super::call_sign::CallSign;
use super::mark::{MarkRow, abandon_args, version_args};
use super::{AttemptState, ConnectionLocks};
use crate::connect::Job;
use crate::error::Trouble;

/// How often a lock that was broken is asked for.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// "You are not owner of thread".
const NOT_OURS: u16 = 1095;
/// How often the mark of a holder that is about to leave is looked at.
const LOOKS: usize = 5;

/// Forgets an attempt of our own when it is dropped. What it had goes with it: the connection is closed, so the server frees the lock, and its
/// place among the sessions is free. A mark that it may have left is that of a holder that died.
struct ForgetsAttempt<'a> {
    locks: &'a ConnectionLocks,
    attempt: AttemptId,
}

impl Drop for ForgetsAttempt<'_> {
    fn drop(&mut self) {
        // Dropped when the list is free again: closing a connection spawns a task.
        let state = self.locks.attempts().remove(&self.attempt);
        drop(state);
    }
}

impl ConnectionLocks {
    /// Ends the connection of an attempt, and removes its mark.
    pub(super) async fn abandon(&self, request: &Request) -> Result<(), Trouble> {
        let attempt = request.attempt();
        kit::remember_abandoned(attempt);
        let Some(seat) = self.attempts().get(&attempt).cloned() else {
            return Ok(());
        };
        let call_sign = match &seat {
            AttemptState::Asking(call_sign) => *call_sign,
            AttemptState::Holding(hold) => {
                let mut carried_by = hold.carried_by.lock().await;
                if !self.is_held_still(attempt, hold) {
                    return Ok(());
                }
                carried_by.connection.shut();
                carried_by.call_sign
            }
        };
        // When its connection has ended, nothing that it has sent can make it the holder any more.
        let limit = request.trip_timeout();
        self.end(call_sign, limit).await?;
        let args = abandon_args(request.name(), &attempt);
        self.shared
            .call(Job::Exec(&self.kind.marks.abandon, &args), limit)
            .await?;
        self.attempts().remove(&attempt);
        Ok(())
    }

    /// Removes the mark that an attempt may have made with a connection that has ended. The attempt goes on with another one, and a late
    /// word of this kind must leave the mark alone that it makes with that.
    pub(super) async fn clear_mark_of(
        &self,
        request: &Request,
        call_sign: CallSign,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let attempt = request.attempt();
        let [name, owner] = abandon_args(request.name(), &attempt);
        let args = [name, owner, call_sign.number.into()];
        self.shared
            .call(Job::Exec(&self.kind.marks.abandon_of, &args), limit)
            .await?;
        Ok(())
    }

    /// Breaks the mark, so that its holder cannot go on, ends its connection, and waits until the lock is free: as with any holder that did
    /// not leave in order, that is when its last sign of life is good no more ([C1](dlock_core::contract#c1)).
    pub(super) async fn break_lock(&self, name: &Name) -> Result<bool, Trouble> {
        let limit = self.config.answer_timeout;
        let Some(seen) = self.break_mark(name, limit).await? else {
            return Ok(false);
        };
        let call_sign = CallSign {
            number: seen.connection,
            connection: 0,
        };
        // The caller gets to know before its own time-out passes.
        let patience = limit * 4 / 5;
        match self.end(call_sign, limit).await {
            Ok(()) => {}
            // Another user's. Its holder sees the broken mark with its next renewal, and ends it itself.
            Err(trouble) if trouble.code == Some(NOT_OURS) => {
                let gone = async {
                    while self.is_known(call_sign, limit).await? {
                        tokio::time::sleep(ASK_EVERY).await;
                    }
                    Ok::<(), Trouble>(())
                };
                match tokio::time::timeout(patience, gone).await {
                    Ok(gone) => gone?,
                    Err(_) => return Err(trouble.about("the lock was not freed yet")),
                }
            }
            Err(trouble) => return Err(trouble),
        }
        if seen.valid < patience {
            let _ = tokio::time::timeout(patience, self.until_free(name, &seen)).await;
        }
        Ok(true)
    }

    async fn break_mark(&self, name: &Name, limit: Duration) -> Result<Option<MarkRow>, Trouble> {
        for _ in 0..LOOKS {
            let Some(seen) = self.look_from_outside(name, limit).await? else {
                return Ok(None);
            };
            if seen.is_free() {
                return Ok(None);
            }
            if seen.is_broken() {
                return Ok(Some(seen));
            }
            let args = version_args(seen.version);
            let job = Job::Exec(&self.kind.marks.break_lock, &args);
            let told = self.shared.call(job, limit).await?;
            if told.answer.affected == 1 || told.again {
                return Ok(Some(seen));
            }
        }
        Err(Trouble::unexpected_reply(
            "that the lock's mark changed again and again",
        ))
    }

    pub(super) async fn look_from_outside(
        &self,
        name: &Name,
        limit: Duration,
    ) -> Result<Option<MarkRow>, Trouble> {
        let args = [name.as_str().into()];
        let job = Job::Exec(&self.kind.marks.read, &args);
        MarkRow::read(&self.shared.call(job, limit).await?.answer)
    }

    /// Until the lock of a broken mark can be had, or somebody else has it.
    async fn until_free(&self, name: &Name, broken: &MarkRow) {
        let request = Request::new(name.clone(), Mode::Exclusive, Arc::new(SystemClock))
            .with_trip_timeout(self.config.answer_timeout)
            .with_lease(self.config.session_validity);
        // Core does not know this attempt, so nobody abandons it when the caller gives up.
        let _forgets = ForgetsAttempt {
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
                let seen = self.look_from_outside(name, self.config.answer_timeout);
                let is_same = |seen: MarkRow| seen.fence() == broken.fence() && !seen.is_free();
                if !seen.await?.is_some_and(is_same) {
                    return Ok(());
                }
            }
        };
        let outcome: Result<(), Trouble> = outcome.await;
        if let Err(trouble) = outcome {
            tracing::debug!(?trouble, %name, "a lock was broken, and is not free yet");
            if let Err(trouble) = self.abandon(&request).await {
                tracing::debug!(?trouble, %name, "an attempt was not undone");
            }
        }
    }
}
