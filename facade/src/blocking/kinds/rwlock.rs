use std::time::Duration;

use dlock_core::{Name, Owner, Result};

use super::{Guard, RwLock};

impl RwLock {
    /// Waits to read, together with other readers.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](super::Mutex::lock), here and below.
    pub fn read(&self) -> Result<Guard> {
        let lock = self.inner.clone();
        self.asker.wait(async move { lock.read().await })
    }

    /// Reads if no writer holds or waits; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock`](super::Mutex::try_lock).
    pub fn try_read(&self) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker.attempt(async move { lock.try_read().await })
    }

    /// Waits at most `limit` to read.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock_within`](super::Mutex::lock_within).
    pub fn read_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker
            .attempt(async move { lock.read_within(limit).await })
    }

    /// Waits to write, alone. The guard can be [downgraded](Guard::downgrade).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](super::Mutex::lock).
    pub fn write(&self) -> Result<Guard> {
        let lock = self.inner.clone();
        self.asker.wait(async move { lock.write().await })
    }

    /// Writes if nobody holds the lock; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock`](super::Mutex::try_lock).
    pub fn try_write(&self) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker.attempt(async move { lock.try_write().await })
    }

    /// Waits at most `limit` to write.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock_within`](super::Mutex::lock_within).
    pub fn write_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker
            .attempt(async move { lock.write_within(limit).await })
    }

    /// Does the work as a reader, as [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](super::Mutex::run).
    pub fn run_read<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.read()?.run(work)
    }

    /// Does the work as a writer, as [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](super::Mutex::run).
    pub fn run_write<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.write()?.run(work)
    }

    /// Whether anybody holds the lock, as the store sees it now.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub fn is_locked(&self) -> Result<bool> {
        let lock = self.inner.clone();
        self.asker.room.call(async move { lock.is_locked().await })
    }

    /// The same lock for an owner, who can enter it again while holding it.
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.inner = self.inner.owned_by(owner);
        self
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.inner.name()
    }
}
