use std::time::Duration;

use dlock_core::{Name, Result};

use super::{Guard, Semaphore};

impl Semaphore {
    /// Waits for a permit.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](super::Mutex::lock), and `Conflict` for another limit than the one in use.
    pub fn acquire(&self) -> Result<Guard> {
        let lock = self.inner.clone();
        self.asker.wait(async move { lock.acquire().await })
    }

    /// Takes a permit if one is free; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker.attempt(async move { lock.try_acquire().await })
    }

    /// Waits at most `limit` for a permit.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub fn acquire_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker
            .attempt(async move { lock.acquire_within(limit).await })
    }

    /// Does the work with a permit, as [`Mutex::run`](super::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](super::Mutex::run).
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.acquire()?.run(work)
    }

    /// Does the work if the lock is free, as [`run`](Semaphore::run); `None` when others hold it.
    ///
    /// # Errors
    ///
    /// As for [`run`](Semaphore::run).
    pub fn try_run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>> {
        self.try_acquire()?.map(|guard| guard.run(work)).transpose()
    }

    /// Does the work, as [`run`](Semaphore::run), after waiting at most `limit`; `None` when others still hold the lock then.
    ///
    /// # Errors
    ///
    /// As for [`run`](Semaphore::run).
    pub fn run_within<T>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        self.acquire_within(limit)?
            .map(|guard| guard.run(work))
            .transpose()
    }

    /// Waits for several permits as one guard, as [`dlocks::Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn acquire_many(&self, permits: u32) -> Result<Guard> {
        let lock = self.inner.clone();
        self.asker
            .wait(async move { lock.acquire_many(permits).await })
    }

    /// Takes several permits if they are free; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`acquire_many`](Semaphore::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker
            .attempt(async move { lock.try_acquire_many(permits).await })
    }

    /// How many permits are free, as the store sees it now.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub fn available_permits(&self) -> Result<u32> {
        let lock = self.inner.clone();
        self.asker
            .room
            .call(async move { lock.available_permits().await })
    }

    /// Whether anybody holds a permit, as the store sees it now.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub fn is_locked(&self) -> Result<bool> {
        let lock = self.inner.clone();
        self.asker.room.call(async move { lock.is_locked().await })
    }

    /// How many permits there are.
    pub fn limit(&self) -> u32 {
        self.inner.limit()
    }

    /// The semaphore's name.
    pub fn name(&self) -> &Name {
        self.inner.name()
    }
}
