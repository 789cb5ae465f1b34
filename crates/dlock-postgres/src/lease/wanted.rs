//! How a holder hears that others wait ([C23](dlock_core::contract#c23)): it leaves word in the lock's row, and whoever comes to wait tells its channel.
//!
//! ```text
//!   listen ──somebody waits───────────────────────────────────► wanted
//!     │  ▲ nobody: the row has the channel of the holder
//!     ▼  │ a message, or another connection listens now
//!   waiting ──core asks with each renewal───────────────────────► wanted
//! ```
//!
//! A message says no more than "look again", so that a lost one, or one too many, changes nothing but the time. A holder that does not listen
//! costs nobody anything.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::Name;
use dlock_core::backend::{AttemptId, Lease};
use tokio::sync::Notify;
use tokio_postgres::types::Type;

use super::LeaseLocks;
use crate::connect::{Arg, Job};
use crate::error::Trouble;

/// The holds of a client that want to hear who waits for them.
#[derive(Debug, Default)]
pub(super) struct ListeningHolds(Mutex<BTreeMap<AttemptId, ListeningHold>>);

#[derive(Debug, Default)]
struct ListeningHold {
    called: Arc<Notify>,
    /// A guard and the background may listen at the same time.
    times: usize,
}

impl ListeningHolds {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<AttemptId, ListeningHold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, attempt: AttemptId) -> Entered<'_> {
        let mut all = self.locked();
        let hold = all.entry(attempt).or_default();
        hold.times += 1;
        Entered {
            holds: self,
            attempt,
            called: hold.called.clone(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.locked().is_empty()
    }

    pub(super) fn call(&self, attempt: AttemptId) {
        if let Some(hold) = self.locked().get(&attempt) {
            hold.called.notify_waiters();
        }
    }

    pub(super) fn call_all(&self) {
        for hold in self.locked().values() {
            hold.called.notify_waiters();
        }
    }
}

/// One that listens; it ends when it is dropped.
struct Entered<'a> {
    holds: &'a ListeningHolds,
    attempt: AttemptId,
    called: Arc<Notify>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut all = self.holds.locked();
        if let Some(hold) = all.get_mut(&self.attempt) {
            hold.times -= 1;
            if hold.times == 0 {
                all.remove(&self.attempt);
            }
        }
    }
}

impl LeaseLocks {
    /// Resolves when somebody of another client waits for what is held.
    pub(super) async fn wanted(&self, lease: &Lease) {
        if !self.listener.is_on() {
            return std::future::pending().await;
        }
        let entered = self.listener.holds().enter(lease.attempt());
        loop {
            let mut called = std::pin::pin!(entered.called.notified());
            // Before the look, so that nobody comes between the two.
            called.as_mut().enable();
            self.listener.begin();
            match self.leave_word(lease).await {
                Ok(true) => return,
                Ok(false) => {}
                // Core asks with the next renewal.
                Err(trouble) => {
                    tracing::debug!(error = trouble.message(), "not known whether others wait");
                }
            }
            called.await;
        }
    }

    /// Whether somebody of another client waits; if not, whoever comes will say so.
    async fn leave_word(&self, lease: &Lease) -> Result<bool, Trouble> {
        let name = lease.name().as_str();
        let attempt = *lease.attempt().as_uuid();
        let (channel, bell) = (self.listener.channel(), self.listener.bell());
        let args: [Arg<'_>; 4] = [
            (&name, Type::TEXT),
            (&attempt, Type::UUID),
            (&channel, Type::TEXT),
            (&bell, Type::INT8),
        ];
        let job = Job::Ask(&self.sql.listen, &args);
        let said: i32 = self.shared.call(job, self.shared.limit()).await?.first()?;
        if let (4, Some(bell)) = (said, bell) {
            self.listener.is_deaf(bell);
        }
        Ok(said == 1)
    }

    /// Whether somebody of another client stands in the queue.
    pub(super) async fn others_wait(&self, name: &Name) -> Result<bool, Trouble> {
        let (name, channel) = (name.as_str(), self.listener.channel());
        let args: [Arg<'_>; 2] = [(&name, Type::TEXT), (&channel, Type::TEXT)];
        let job = Job::Ask(&self.sql.waiters, &args);
        self.shared.call(job, self.shared.limit()).await?.first()
    }
}
