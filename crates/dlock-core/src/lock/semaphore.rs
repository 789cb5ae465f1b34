use std::time::Duration;

use super::multi;
use super::mutex::run_with;
use crate::engine::spec::LockSpec;
use crate::{Error, Guard, Mode, Name, Result};

/// A lock for at most `limit` holders at a time, each with a lease of its own.
///
/// Made by [`Locks::semaphore`](crate::Locks::semaphore). Everybody must give the same limit: while a semaphore is in
/// use, another limit is [`ErrorKind::Conflict`](crate::ErrorKind::Conflict). Not reentrant, whatever the owner: each
/// acquire takes a permit.
///
/// ```
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let licences = locks.semaphore("licences", 3)?;
/// let one = licences.acquire().await?;
/// let two = licences.acquire_many(2).await?;
/// assert_eq!(licences.available_permits().await?, 0);
/// assert!(licences.try_acquire().await?.is_none());
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// As for [`Mutex`](crate::Mutex).
#[derive(Debug, Clone)]
pub struct Semaphore {
    spec: LockSpec,
}

impl Semaphore {
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self { spec }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock), and `Conflict` for another limit than the one in use.
    pub async fn acquire(&self) -> Result<Guard> {
        self.spec.wait().await
    }

    /// Takes a permit if one is free; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.spec.try_now().await
    }

    /// Waits at most `limit` for a permit.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.spec.within(limit).await
    }

    /// Does the work with a permit, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.acquire().await?.run(work).await
    }

    /// Does the work with a permit if one is free; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`](crate::Mutex::try_run).
    pub async fn try_run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_acquire().await?, work).await
    }

    /// Does the work with a permit after a wait of at most `limit`; `None` when it was in vain.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run_within`](crate::Mutex::run_within).
    pub async fn run_within<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        run_with(self.acquire_within(limit).await?, work).await
    }

    /// Waits for several permits, which one guard then holds: all or none.
    ///
    /// Two who each have a part of what they want do not wait for each other for ever: who does not get the rest in a while gives
    /// back what it has, and begins anew.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire), and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for none or more than there
    /// are.
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard> {
        let parts = self.parts(permits)?;
        multi::wait_for_all(&parts).await
    }

    /// Takes several permits if so many are free; `None` otherwise.
    ///
    /// # Errors
    ///
    /// As for [`acquire_many`](Semaphore::acquire_many).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>> {
        let parts = self.parts(permits)?;
        multi::take_all(&parts, None).await
    }

    fn parts(&self, permits: u32) -> Result<Vec<&LockSpec>> {
        if permits == 0 || permits > self.limit() {
            return Err(Error::invalid(format!(
                "{permits} permits of a semaphore that has {}: ask for 1 to {0}",
                self.limit()
            )));
        }
        Ok((0..permits).map(|_| &self.spec).collect())
    }

    /// How many permits nobody holds, as the store sees it now. The answer may be old when it arrives.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn available_permits(&self) -> Result<u32> {
        let info = self.spec.inspect().await?;
        let held = u32::try_from(info.holders.len()).unwrap_or(u32::MAX);
        Ok(self.limit().saturating_sub(held))
    }

    /// Whether anybody holds a permit, as the store sees it now.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.spec.inspect().await?.is_locked())
    }

    /// How many permits there are.
    pub fn limit(&self) -> u32 {
        match self.spec.mode {
            Mode::Permit { limit } => limit,
            _ => 1,
        }
    }

    /// The semaphore's name.
    pub fn name(&self) -> &Name {
        &self.spec.name
    }
}
