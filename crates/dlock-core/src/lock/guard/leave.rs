//! How a guard is left: the lock is given back, or a writer goes on as a reader.

use futures::future::join_all;

use super::Guard;
use super::grip::Grip;
use super::run::lost_error;
use crate::engine::client::one_writer_alone;
use crate::{Capability, Operation, Released, Result};

impl Guard {
    /// Gives the lock back and tells what became of it.
    ///
    /// Renewal stops first. What the store does not confirm within the trip time-out is
    /// [`Released::Unknown`], and is tried again in the background.
    ///
    /// ```
    /// # use dlock_core::{Locks, Released};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("report")?.lock().await?;
    /// // ... work ...
    /// match guard.release().await? {
    ///     Released::Freed | Released::StillHeld => println!("done under the lock to the end"),
    ///     Released::AlreadyLost => println!("somebody else may have been at it too: check the report"),
    ///     _ => println!("the store has not answered; it is told again in the background"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store refuses for a reason that a retry cannot mend, for example a permission that was taken away;
    /// [`Error::held_now`](crate::Error::held_now) then tells that the lock is still held. It is tried again in the background all the same; on a store
    /// with leases the lease ends it, on one with sessions the end of the session.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        let Self { first, rest, .. } = self;
        if rest.is_empty() {
            return first.release().await;
        }
        let answers = join_all(std::iter::once(first).chain(rest).map(Grip::release)).await;
        // The worst of them speaks for all.
        let mut worst = Released::Freed;
        let mut refused = None;
        for answer in answers {
            worst = match (worst, answer) {
                (worst, Err(error)) => {
                    refused.get_or_insert(error);
                    worst
                }
                (Released::AlreadyLost, _) | (_, Ok(Released::AlreadyLost)) => {
                    Released::AlreadyLost
                }
                (Released::Unknown, _) | (_, Ok(Released::Unknown)) => Released::Unknown,
                (Released::StillHeld, _) | (_, Ok(Released::StillHeld)) => Released::StillHeld,
                _ => Released::Freed,
            };
        }
        match refused {
            Some(error) => Err(error),
            None => Ok(worst),
        }
    }

    /// Turns a writer's hold into a reader's without a moment in between at which another writer could get in.
    ///
    /// From the call on, this guard counts as a reader's, also when the answer was lost: the store is then asked again in
    /// the background, with the next renewal or the release. Repeating it is harmless.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let guard = catalogue.write().await?;
    /// // ... change it ...
    /// guard.downgrade().await?;
    /// let reader = catalogue.try_read().await?; // other readers come in, writers do not
    /// assert!(reader.is_some());
    /// assert!(catalogue.try_write().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the store cannot, [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) for anything but a writer's single hold,
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the hold is gone, and what befalls the trip.
    ///
    /// # Cancel safety
    ///
    /// As for a lost answer.
    pub async fn downgrade(&self) -> Result<()> {
        let Grip { client, entry, .. } = &self.first;
        let with_context = |error| client.with_context(error, Operation::Downgrade, &entry.name());
        if !self.rest.is_empty() || !entry.was_taken_to_write() {
            return Err(with_context(one_writer_alone()));
        }
        if !self.is_held() {
            return Err(with_context(lost_error(self.reason_if_lost())));
        }
        client
            .backend
            .capabilities()
            .require(&[Capability::Downgrade])?;
        client.downgrade(entry).await.map_err(with_context)
    }
}
