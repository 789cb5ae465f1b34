use std::time::Duration;

use dlock_core::Result;

use super::{Guard, MultiLock};

impl MultiLock {
    /// Waits for all of them.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::MultiLock::lock`](crate::MultiLock::lock).
    pub fn lock(&self) -> Result<Guard> {
        let lock = self.inner.clone();
        self.asker.wait(async move { lock.lock().await })
    }

    /// Takes all of them if all are free; `None` when one is held by others.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::MultiLock::try_lock`](crate::MultiLock::try_lock).
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker.attempt(async move { lock.try_lock().await })
    }

    /// Waits at most `limit` for all of them together; `None` when one was still held by others.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::MultiLock::lock_within`](crate::MultiLock::lock_within).
    pub fn lock_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker
            .attempt(async move { lock.lock_within(limit).await })
    }

    /// Does the work with all of them, as [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](super::Mutex::run).
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.lock()?.run(work)
    }

    /// Does the work if the lock is free, as [`run`](MultiLock::run); `None` when others hold it.
    ///
    /// # Errors
    ///
    /// As for [`run`](MultiLock::run).
    pub fn try_run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>> {
        self.try_lock()?.map(|guard| guard.run(work)).transpose()
    }

    /// Does the work, as [`run`](MultiLock::run), after waiting at most `limit`; `None` when others still hold the lock then.
    ///
    /// # Errors
    ///
    /// As for [`run`](MultiLock::run).
    pub fn run_within<T>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        self.lock_within(limit)?
            .map(|guard| guard.run(work))
            .transpose()
    }

    /// Whether anybody holds one of them, as the store sees it now.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub fn is_locked(&self) -> Result<bool> {
        let lock = self.inner.clone();
        self.asker.room.call(async move { lock.is_locked().await })
    }
}
