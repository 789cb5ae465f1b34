use std::time::Duration;

use dlock_core::{Name, Owner, Result};

use super::{Guard, Mutex};

impl Mutex {
    /// Waits for the lock.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Mutex::lock`](crate::Mutex::lock), and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in an async task: so for
    /// all calls here that wait.
    pub fn lock(&self) -> Result<Guard> {
        let lock = self.inner.clone();
        self.asker.wait(async move { lock.lock().await })
    }

    /// Takes the lock if it is free; `None` when others hold it.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Mutex::try_lock`](crate::Mutex::try_lock).
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker.attempt(async move { lock.try_lock().await })
    }

    /// Waits at most `limit`; `None` when others still hold the lock then. Zero is a try.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Mutex::lock_within`](crate::Mutex::lock_within).
    pub fn lock_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let lock = self.inner.clone();
        self.asker
            .attempt(async move { lock.lock_within(limit).await })
    }

    /// Takes the lock, does the work in this thread, and gives the lock back after it. If the work panics, the lock is given back too.
    ///
    /// ```
    /// # #[cfg(feature = "memory")]
    /// # fn main() -> Result<(), dlocks::Error> {
    /// let stock = dlocks::blocking::connect("memory:")?.mutex("stock:42")?;
    /// let sold = stock.run(|guard| {
    ///     guard.ensure_held()?; // between the steps of long work: nobody can stop a thread from outside
    ///     Ok::<_, dlocks::Error>(1)
    /// })??;
    /// # assert_eq!(sold, 1);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "memory"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](Mutex::lock), and [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the hold did not last until the work was done.
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        self.lock()?.run(work)
    }

    /// Does the work if the lock is free, as [`run`](Mutex::run); `None` when others hold it.
    ///
    /// # Errors
    ///
    /// As for [`run`](Mutex::run).
    pub fn try_run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>> {
        self.try_lock()?.map(|guard| guard.run(work)).transpose()
    }

    /// Does the work, as [`run`](Mutex::run), after waiting at most `limit`; `None` when others still hold the lock then.
    ///
    /// # Errors
    ///
    /// As for [`run`](Mutex::run).
    pub fn run_within<T>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        self.lock_within(limit)?
            .map(|guard| guard.run(work))
            .transpose()
    }

    /// The same lock for an owner, who can enter it again while holding it.
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.inner = self.inner.owned_by(owner);
        self
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

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.inner.name()
    }
}
