use std::time::Duration;

use super::mutex::run_with;
use crate::engine::spec::LockSpec;
use crate::{Guard, Mode, Name, Owner, Result};

/// A lock for many readers or one writer.
///
/// Made by [`Locks::rw_lock`](crate::Locks::rw_lock). Where the store is fair, a waiting writer is not starved: readers
/// that come later wait behind it ([C19](crate::contract#c19)). A writer can [`downgrade`](Guard::downgrade) to a reader; the other way is refused,
/// because two upgrades wait for each other for ever.
///
/// ```
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let catalogue = locks.rw_lock("catalogue")?;
/// let writer = catalogue.write().await?;
/// writer.downgrade().await?; // no other writer gets in between
/// let reader = catalogue.read().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// As for [`Mutex`](crate::Mutex).
#[derive(Debug, Clone)]
pub struct RwLock {
    read: LockSpec,
    write: LockSpec,
}

impl RwLock {
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self {
            write: spec.with_mode(Mode::Exclusive),
            read: spec.with_mode(Mode::Shared),
        }
    }

    /// Waits to read, together with other readers.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.read.wait().await
    }

    /// Reads if no writer holds or waits; `None` otherwise.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached or refuses.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.read.try_now().await
    }

    /// Waits at most `limit` to read.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.read.within(limit).await
    }

    /// Waits to write, alone.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock); [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when the same
    /// owner holds it for reading.
    pub async fn write(&self) -> Result<Guard> {
        self.write.wait().await
    }

    /// Writes if nobody holds the lock; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`write`](RwLock::write).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.write.try_now().await
    }

    /// Waits at most `limit` to write.
    ///
    /// # Errors
    ///
    /// As for [`write`](RwLock::write).
    pub async fn write_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.write.within(limit).await
    }

    /// Does the work as a reader, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run_read<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.read().await?.run(work).await
    }

    /// Does the work as a writer, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run_write<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.write().await?.run(work).await
    }

    /// Does the work as a reader if no writer holds or waits; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`](crate::Mutex::try_run).
    pub async fn try_run_read<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_read().await?, work).await
    }

    /// Does the work as a writer if nobody holds the lock; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`](crate::Mutex::try_run).
    pub async fn try_run_write<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_write().await?, work).await
    }

    /// Does the work as a reader after a wait of at most `limit`; `None` when it was in vain.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run_within`](crate::Mutex::run_within).
    pub async fn run_read_within<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        run_with(self.read_within(limit).await?, work).await
    }

    /// Does the work as a writer after a wait of at most `limit`; `None` when it was in vain.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run_within`](crate::Mutex::run_within).
    pub async fn run_write_within<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        run_with(self.write_within(limit).await?, work).await
    }

    /// Whether anybody holds the lock, to read or to write, as the store sees it now. The answer may be old when it arrives.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.read.inspect().await?.is_locked())
    }

    /// The same lock for an owner, who can enter it again while holding it: a reader to read, a writer to write and
    /// to read.
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.read.owner = Some(owner);
        self.write.owner = Some(owner);
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.read.name
    }
}
