//! How a holder hears that others wait: it leaves word in the store, and the next waiter's script writes to its inbox.
//!
//! ```text
//!   listen.lua ──somebody waits──────────────────────────────► wanted
//!     │  ▲ nobody: the lock's value says that its holder listens
//!     ▼  │ a message, or the connection broke
//!   waiting ──core asks with each renewal: listen.lua again──► wanted
//! ```
//!
//! A message says no more than "look again", so that a lost one, or one too many, changes nothing but the time. A holder that does not listen
//! costs nobody anything.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::Name;
use dlock_core::backend::{AttemptId, Lease};
use tokio::sync::Notify;

use crate::acquire::unexpected_reply;
use crate::connect::{RedisReply, ScriptCall, millis};
use crate::error::Trouble;
use crate::script_args::Attempt32;
use crate::store::Store;

/// The holds of a client that listen.
#[derive(Debug, Default)]
pub(crate) struct Listening(Mutex<BTreeMap<AttemptId, ListeningHold>>);

#[derive(Debug)]
struct ListeningHold {
    called: Arc<Notify>,
    lease: Lease,
    /// A guard and the background may listen at the same time.
    times: usize,
}

impl Listening {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<AttemptId, ListeningHold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, lease: &Lease) -> ListenerEntry<'_> {
        let mut all = self.locked();
        let listener = all.entry(lease.attempt()).or_insert_with(|| ListeningHold {
            called: Arc::default(),
            lease: lease.clone(),
            times: 0,
        });
        listener.times += 1;
        ListenerEntry {
            listening: self,
            attempt: lease.attempt(),
            called: listener.called.clone(),
        }
    }

    pub(crate) fn called(&self, attempt: AttemptId) {
        if let Some(listener) = self.locked().get(&attempt) {
            listener.called.notify_waiters();
        }
    }

    pub(crate) fn all_called(&self) {
        for listener in self.locked().values() {
            listener.called.notify_waiters();
        }
    }

    /// The hold of this lock that listens, if there is one: of several that share it, any.
    fn of(&self, name: &Name) -> Option<Lease> {
        let all = self.locked();
        let mut leases = all.values().map(|listener| &listener.lease);
        leases.find(|lease| lease.name() == name).cloned()
    }
}

/// One that listens; it ends when it is dropped.
struct ListenerEntry<'a> {
    listening: &'a Listening,
    attempt: AttemptId,
    called: Arc<Notify>,
}

impl Drop for ListenerEntry<'_> {
    fn drop(&mut self) {
        let mut all = self.listening.locked();
        if let Some(listener) = all.get_mut(&self.attempt) {
            listener.times -= 1;
            if listener.times == 0 {
                all.remove(&self.attempt);
            }
        }
    }
}

impl Store {
    /// Resolves when somebody of another client waits for what is held.
    pub(crate) async fn wanted(&self, lease: &Lease) {
        let ear = self.inbox.listening.enter(lease);
        loop {
            let mut called = std::pin::pin!(ear.called.notified());
            // Before the look, so that nobody comes between the two.
            called.as_mut().enable();
            match self.listen(lease.name(), Some(lease)).await {
                Ok(true) => return,
                Ok(false) => {}
                // Core asks again with the next renewal, and that leaves word too.
                Err(trouble) => {
                    tracing::debug!(error = trouble.message(), "not known whether others wait")
                }
            }
            called.await;
        }
    }

    /// Whether somebody of another client waits. Word that a hold listens lasts as long as its lease: this renews it.
    pub(crate) async fn others_wait(&self, name: &Name) -> Result<bool, Trouble> {
        let listens = self.inbox.listening.of(name);
        self.listen(name, listens.as_ref()).await
    }

    async fn listen(&self, name: &Name, lease: Option<&Lease>) -> Result<bool, Trouble> {
        self.hear().await?;
        let key = self.keys.lock(name);
        let call = ScriptCall::on(&self.scripts.listen, &key).arg(&self.channel);
        let call = match lease {
            Some(lease) => call
                .arg(Attempt32::new(lease.attempt()))
                .arg(millis(lease.duration()).to_string()),
            None => call.arg("").arg("1"),
        };
        match self.link.call(&call, self.config.answer_timeout).await?.0 {
            RedisReply::Number(others) => Ok(others == 1),
            _ => Err(unexpected_reply(
                "to a holder that listens in an unknown form",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::Inbox;
    use dlock_core::backend::Request;
    use dlock_core::{Mode, SystemClock};
    use futures::FutureExt;

    /// The asker of a quorum's holder is in the inbox too, as long as it waits for a node that has not given the lock yet.
    #[test]
    fn a_holder_hears_that_others_wait_also_while_its_attempt_still_asks() {
        let inbox = Arc::new(Inbox::default());
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let lease = Lease::new(&request, request.now());
        let asker = inbox.enter(request.attempt());
        let ear = inbox.listening.enter(&lease);
        let mut told = std::pin::pin!(ear.called.notified());
        told.as_mut().enable();
        inbox.deliver(request.attempt().to_string().as_bytes());
        assert!(asker.called().now_or_never().is_some(), "the asker");
        assert!(told.as_mut().now_or_never().is_some(), "and the holder");
    }
}
