use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{
    Error, ErrorKind, FencingToken, HeldNow, LossReason, Mode, Moment, Name, Operation, Released,
    Result,
};

use super::room::Room;

/// A lock that is held, as [`dlocks::Guard`](crate::Guard): renewed in the background, given back by [`release`](Guard::release) or by
/// dropping it, which never blocks.
///
/// Nothing stops a thread when its hold is lost. Work that takes long asks [`ensure_held`](Guard::ensure_held) between its steps, and
/// hands [`token`](Guard::token) to the resource with every write.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    // Dropped in this order: when the thread learns that nobody is left, the hold has been given back already.
    inner: Arc<dlock_core::Guard>,
    backend: &'static str,
    room: Room,
}

impl Guard {
    pub(super) fn new(inner: dlock_core::Guard, backend: &'static str, room: Room) -> Self {
        Self {
            inner: Arc::new(inner),
            backend,
            room,
        }
    }

    /// The lock's name; of several locks as one, the first.
    pub fn name(&self) -> Name {
        self.inner.name()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.inner.mode()
    }

    /// The fencing token, as [`dlocks::Guard::token`](crate::Guard::token).
    pub fn token(&self) -> Option<FencingToken> {
        self.inner.token()
    }

    /// Every lock of this guard with its token.
    pub fn tokens(&self) -> Vec<(Name, Option<FencingToken>)> {
        self.inner.tokens()
    }

    /// The owner as it is written in the store, which `inspect` shows.
    pub fn owner_id(&self) -> String {
        self.inner.owner_id()
    }

    /// How many guards the owner has on this hold.
    pub fn hold_count(&self) -> u32 {
        self.inner.hold_count()
    }

    /// Whether the hold is good right now. It reads the clock and asks nobody.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Goes on only while the hold is good: `guard.ensure_held()?` between the steps of the work. It reads the clock and asks nobody.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] once the hold is lost.
    pub fn ensure_held(&self) -> Result<()> {
        self.inner.ensure_held()
    }

    /// Renews the lease now, as [`dlocks::Guard::renew_now`](crate::Guard::renew_now): before a step that may take long.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn renew_now(&self) -> Result<()> {
        let inner = self.inner.clone();
        self.room.call(async move { inner.renew_now().await })
    }

    /// Until when the hold is good if it is not renewed again; `None` when it has no deadline.
    pub fn valid_until(&self) -> Option<Moment> {
        self.inner.valid_until()
    }

    /// How long the hold is good if it is not renewed again: zero when it is lost, `None` when it has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.inner.remaining()
    }

    /// Waits at most `limit` for the hold to be lost; `None` when it is still good then. For a thread that watches.
    ///
    /// # Errors
    ///
    /// When called in an async task.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<LossReason>> {
        let signal = self.inner.loss_signal();
        self.room.call(async move {
            // A loss that has happened is told first, also when the limit is zero.
            Ok(tokio::select! {
                biased;
                reason = signal.wait() => reason,
                () = tokio::time::sleep(limit) => None,
            })
        })
    }

    /// Gives the lock back and tells what became of it, as [`dlocks::Guard::release`](crate::Guard::release).
    ///
    /// # Errors
    ///
    /// As there. When called in an async task, the lock is given back in the background all the same.
    pub fn release(self) -> Result<Released> {
        let Self { inner, room, .. } = self;
        match Arc::into_inner(inner) {
            Some(inner) => room.call(async move { inner.release().await }),
            // A call of another kind has it still in hand: it is given back when that drops it.
            None => Ok(Released::Unknown),
        }
    }

    /// Turns a writer's hold into a reader's, as [`dlocks::Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn downgrade(&self) -> Result<()> {
        let inner = self.inner.clone();
        self.room.call(async move { inner.downgrade().await })
    }

    /// Does the work, then gives the lock back; the result counts only if the hold was good to the end.
    pub(super) fn run<T>(self, work: impl FnOnce(&Self) -> T) -> Result<T> {
        let value = work(&self);
        self.ensure_held()?;
        let lost = self.lost_error();
        match self.release() {
            Ok(Released::AlreadyLost) => Err(lost),
            // Good to the end of the work by the clock. What was not confirmed is tried again in the background, or ends with its lease.
            Ok(_) | Err(_) => Ok(value),
        }
    }

    fn lost_error(&self) -> Error {
        Error::new(
            ErrorKind::Lost,
            "the hold did not last until the work was done, so check or repeat the work",
        )
        .with_backend(self.backend)
        .with_operation(Operation::Work)
        .with_name(&self.name())
        .with_held(HeldNow::No)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}
