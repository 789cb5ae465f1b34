//! The imagined link between one client and the store, and the faults that a test has asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;

use crate::store::Store;

/// How long a client that waits at the store takes to find out that its connection fell silent.
const HEARTBEAT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct ClientLink {
    faults: Mutex<Faults>,
    /// It wakes in the order of coming; a `watch` channel does so in one that changes from run to run, and then no simulation could be replayed.
    changed: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) state: LinkState,
    pub(crate) request_delay: Duration,
    pub(crate) reply_delay: Duration,
    /// Replies to let through before one is lost; `None`: none is lost.
    pub(crate) lose_after: Option<u32>,
    /// How often the connections of that time fell silent. A call that began before the last time gets no answer.
    pub(crate) silenced: u64,
    pub(crate) denied: bool,
}

/// A call that is under way: through which of the imagined connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    silenced: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LinkState {
    #[default]
    Up,
    Cut,
    Hung,
}

impl ClientLink {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            faults: Mutex::default(),
            changed: Notify::new(),
        })
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults());
        self.changed.notify_waiters();
    }

    /// Ends them all. What fell silent stays so.
    pub(crate) fn heal(&self) {
        self.change(|faults| {
            *faults = Faults {
                silenced: faults.silenced,
                ..Faults::default()
            };
        });
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is so.
    async fn until(&self, is_so: impl Fn(&Faults) -> bool) -> Faults {
        loop {
            // Made before the look, so that no change is missed in between.
            let changed = self.changed.notified();
            let faults = *self.faults();
            if is_so(&faults) {
                return faults;
            }
            changed.await;
        }
    }

    /// The way to the store.
    pub(crate) async fn send(&self, store: &Store) -> Result<Call> {
        let delay = self.faults().request_delay;
        store.sleep(delay).await;
        self.up().await?;
        let faults = *self.faults();
        if faults.denied {
            return Err(Error::new(
                ErrorKind::Denied,
                "this client has no rights at the store (a fault that a test asked for): heal it",
            ));
        }
        Ok(Call {
            silenced: faults.silenced,
        })
    }

    /// The way back.
    pub(crate) async fn reply(&self, store: &Store, call: Call) -> Result<()> {
        let delay = self.faults().reply_delay;
        store.sleep(delay).await;
        self.heard(call).await;
        let lost = match &mut self.faults().lose_after {
            Some(0) => true,
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        };
        if lost {
            self.faults().lose_after = None;
            return Err(Error::new(
                ErrorKind::Unreachable,
                "the connection broke before the answer came (a fault that a test asked for)",
            ));
        }
        self.up().await
    }

    /// Waits while the link hangs; an error when it is cut.
    async fn up(&self) -> Result<()> {
        let faults = self.until(|faults| faults.state != LinkState::Hung).await;
        match faults.state {
            LinkState::Up => Ok(()),
            _ => Err(cut_off()),
        }
    }

    /// Resolves with an error when the link is cut, for those who wait at the store.
    pub(crate) async fn broken(&self) -> Error {
        self.until(|faults| faults.state == LinkState::Cut).await;
        cut_off()
    }

    /// Resolves with an error some time after the connection of this call fell silent, as a heartbeat would find out.
    pub(crate) async fn silent(&self, store: &Store, call: Call) -> Error {
        self.until(|faults| faults.silenced != call.silenced).await;
        store.sleep(HEARTBEAT).await;
        Error::new(
            ErrorKind::Unreachable,
            "the connection fell silent (a fault that a test asked for): ask again",
        )
    }

    /// Resolves when the link does not hang; never for a call whose connection fell silent.
    pub(crate) async fn not_hung(&self, call: Call) {
        self.until(|faults| faults.state != LinkState::Hung).await;
        self.heard(call).await;
    }

    /// Never resolves for a call whose connection fell silent.
    async fn heard(&self, call: Call) {
        if self.faults().silenced != call.silenced {
            std::future::pending().await
        }
    }
}

fn cut_off() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "this client is cut off from the store (a fault that a test asked for): heal it",
    )
}
