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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let mine = catalogue.read().await?;
    /// let theirs = catalogue.read().await?; // beside the first
    /// assert!(catalogue.try_write().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.read.wait().await
    }

    /// Reads if no writer holds or waits; `None` otherwise.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let writer = catalogue.write().await?;
    /// assert!(catalogue.try_read().await?.is_none()); // show the copy of yesterday instead
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be reached or refuses.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.read.try_now().await
    }

    /// Waits at most `limit` to read.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let writer = catalogue.write().await?;
    /// assert!(catalogue.read_within(Duration::from_millis(10)).await?.is_none());
    /// writer.release().await?;
    /// assert!(catalogue.read_within(Duration::from_secs(2)).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.read.within(limit).await
    }

    /// Waits to write, alone.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let guard = catalogue.write().await?; // waits until all readers have left
    /// // ... change it, with guard.token() ...
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let reader = catalogue.read().await?;
    /// assert!(catalogue.try_write().await?.is_none()); // somebody reads: leave it for later
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`write`](RwLock::write).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.write.try_now().await
    }

    /// Waits at most `limit` to write.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let reader = catalogue.read().await?;
    /// assert!(catalogue.write_within(Duration::from_millis(10)).await?.is_none());
    /// reader.release().await?;
    /// assert!(catalogue.write_within(Duration::from_secs(2)).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`write`](RwLock::write).
    pub async fn write_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.write.within(limit).await
    }

    /// Does the work as a reader, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn prices() -> Vec<u32> { vec![7, 9] }
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let prices = catalogue.run_read(async |_| prices().await).await?; // nobody changes them meanwhile
    /// # assert_eq!(prices, [7, 9]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run_read<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.read().await?.run(work).await
    }

    /// Does the work as a writer, as [`Mutex::run`](crate::Mutex::run).
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn raise_prices(token: Option<dlock_core::FencingToken>) {}
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// catalogue.run_write(async |guard| raise_prices(guard.token()).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`](crate::Mutex::run).
    pub async fn run_write<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.write().await?.run(work).await
    }

    /// Does the work as a reader if no writer holds or waits; `None` otherwise.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn prices() -> Vec<u32> { vec![7, 9] }
    /// # fn prices_of_yesterday() -> Vec<u32> { vec![6, 8] }
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let fresh = catalogue.try_run_read(async |_| prices().await).await?;
    /// let prices = fresh.unwrap_or_else(prices_of_yesterday); // somebody changes them just now
    /// # assert_eq!(prices, [7, 9]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`](crate::Mutex::try_run).
    pub async fn try_run_read<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_read().await?, work).await
    }

    /// Does the work as a writer if nobody holds the lock; `None` otherwise.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn compact() {}
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let done = catalogue.try_run_write(async |_| compact().await).await?;
    /// if done.is_none() {
    ///     println!("it is in use: compacted another time");
    /// }
    /// # assert!(done.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`](crate::Mutex::try_run).
    pub async fn try_run_write<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_write().await?, work).await
    }

    /// Does the work as a reader after a wait of at most `limit`; `None` when it was in vain.
    ///
    /// Used as [`Mutex::run_within`](crate::Mutex::run_within), which has an example.
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
    /// Used as [`Mutex::run_within`](crate::Mutex::run_within), which has an example.
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?;
    /// let reader = catalogue.read().await?;
    /// assert!(catalogue.is_locked().await?); // by a reader, or by a writer: `Locks::inspect` tells which
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.read.inspect().await?.is_locked())
    }

    /// The same lock for an owner, who can enter it again while holding it: a reader to read, a writer to write and
    /// to read.
    ///
    /// ```
    /// # use dlock_core::{ErrorKind, Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.rw_lock("catalogue")?.owned_by(Owner::new());
    /// let writer = catalogue.write().await?;
    /// let reader = catalogue.read().await?; // inside its own writing
    /// drop((writer, reader));
    ///
    /// let reader = catalogue.read().await?;
    /// let refused = catalogue.write().await; // not the other way: two who do this would wait for each other
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.read.owner = Some(owner);
        self.write.owner = Some(owner);
        self
    }

    /// The lock's name.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// assert_eq!(locks.rw_lock("catalogue")?.name().as_str(), "catalogue");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &Name {
        &self.read.name
    }
}
