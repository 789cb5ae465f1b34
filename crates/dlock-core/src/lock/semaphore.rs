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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn render() {}
    /// let licences = locks.semaphore("licences", 3)?;
    /// let permit = licences.acquire().await?; // waits while three others have one
    /// render().await;
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock), and `Conflict` for another limit than the one in use.
    pub async fn acquire(&self) -> Result<Guard> {
        self.spec.wait().await
    }

    /// Takes a permit if one is free; `None` otherwise.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let licences = locks.semaphore("licences", 1)?;
    /// let permit = licences.acquire().await?;
    /// assert!(licences.try_acquire().await?.is_none()); // all are taken
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.spec.try_now().await
    }

    /// Waits at most `limit` for a permit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let licences = locks.semaphore("licences", 1)?;
    /// let permit = licences.acquire().await?;
    /// assert!(licences.acquire_within(Duration::from_millis(10)).await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.spec.within(limit).await
    }

    /// Does the work with a permit, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn call_the_partner() -> u32 { 200 }
    /// let partner = locks.semaphore("partner-api", 5)?; // five calls at a time, of all our machines together
    /// let answer = partner.run(async |_| call_the_partner().await).await?;
    /// # assert_eq!(answer, 200);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.acquire().await?.run(work).await
    }

    /// Does the work with a permit if one is free; `None` otherwise.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn call_the_partner() -> u32 { 200 }
    /// let partner = locks.semaphore("partner-api", 5)?;
    /// match partner.try_run(async |_| call_the_partner().await).await? {
    ///     Some(answer) => println!("{answer}"),
    ///     None => println!("429: five calls are under way"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`](crate::Mutex::try_run).
    pub async fn try_run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_acquire().await?, work).await
    }

    /// Does the work with a permit after a wait of at most `limit`; `None` when it was in vain.
    ///
    /// Used as [`Mutex::run_within`](crate::Mutex::run_within), which has an example.
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let memory = locks.semaphore("gigabytes", 8)?;
    /// let large = memory.acquire_many(6).await?; // one guard for six permits
    /// assert_eq!(memory.available_permits().await?, 2);
    /// assert!(memory.acquire_many(9).await.is_err()); // there will never be so many
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let memory = locks.semaphore("gigabytes", 8)?;
    /// let large = memory.acquire_many(6).await?;
    /// assert!(memory.try_acquire_many(3).await?.is_none()); // and none of the two that are left was taken
    /// assert!(memory.try_acquire_many(2).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let licences = locks.semaphore("licences", 3)?;
    /// let permit = licences.acquire().await?;
    /// println!("{} of {} are free", licences.available_permits().await?, licences.limit());
    /// # assert_eq!(licences.available_permits().await?, 2);
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let licences = locks.semaphore("licences", 3)?;
    /// assert!(!licences.is_locked().await?);
    /// let permit = licences.acquire().await?;
    /// assert!(licences.is_locked().await?); // by one at least; whether more get in tells `available_permits`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.spec.inspect().await?.is_locked())
    }

    /// How many permits there are.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// assert_eq!(locks.semaphore("licences", 3)?.limit(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn limit(&self) -> u32 {
        match self.spec.mode {
            Mode::Permit { limit } => limit,
            _ => 1,
        }
    }

    /// The semaphore's name.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// assert_eq!(locks.semaphore("licences", 3)?.name().as_str(), "licences");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &Name {
        &self.spec.name
    }
}
