use std::time::Duration;

use crate::engine::spec::LockSpec;
use crate::{Guard, Name, Owner, Result};

/// A lock for one holder at a time, between tasks, processes and machines.
///
/// Made by [`Locks::mutex`](crate::Locks::mutex). Not reentrant by itself: two acquires exclude each other even in one
/// task, unless they have the same [`Owner`].
///
/// ```
/// use std::time::Duration;
/// use dlock_core::Locks;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let mutex = locks.mutex("stock:42")?;
///
/// // Everything inside is done under the lock, and stopped if the lock is lost.
/// let sold = mutex.run(async |guard| guard.token()).await?;
/// assert!(sold.is_some());
///
/// // By hand: wait, try, or wait for a while.
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// assert!(mutex.lock_within(Duration::from_millis(10)).await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// Every method here may be dropped at any moment. What the store may have done by then is undone in the background ([C13](crate::contract#c13)).
#[derive(Debug, Clone)]
pub struct Mutex {
    pub(crate) spec: LockSpec,
}

impl Mutex {
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self { spec }
    }

    /// Waits for the lock, first come, first served where the store can.
    ///
    /// It waits for ever, or as long as [`Settings::wait_at_most`](crate::Settings::wait_at_most) says.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// // ... alone, until the guard is released or dropped ...
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be reached for longer than [`Settings::retry_unreachable_for`](crate::Settings::retry_unreachable_for), refuses, or the
    /// client is closed; [`ErrorKind::Busy`](crate::ErrorKind::Busy) when `wait_at_most` has passed.
    pub async fn lock(&self) -> Result<Guard> {
        self.spec.wait().await
    }

    /// Takes the lock if it is free; `None` when others hold it. Never waits for a holder.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn tidy_up() {}
    /// match locks.mutex("tidy-up")?.try_lock().await? {
    ///     Some(guard) => {
    ///         tidy_up().await;
    ///         guard.release().await?;
    ///     }
    ///     None => println!("another is at it"), // an error would say that nobody can know
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be reached or refuses.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.spec.try_now().await
    }

    /// Waits at most `limit`; `None` when others still hold the lock then. Zero is a try.
    ///
    /// The limit is kept also when the store hangs, to within 100 ms; then the result is an error, since nobody knows whether
    /// the lock was held.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let mutex = locks.mutex("stock:42")?;
    /// let guard = mutex.lock_within(Duration::from_secs(2)).await?;
    /// assert!(guard.is_some()); // nobody else had it
    /// let too_long = mutex.lock_within(Duration::from_millis(10)).await?;
    /// assert!(too_long.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](Mutex::lock).
    pub async fn lock_within(&self, limit: Duration) -> Result<Option<Guard>> {
        self.spec.within(limit).await
    }

    /// Takes the lock, does the work, and gives the lock back after it: commit inside, and the order is right.
    ///
    /// If the hold is lost, the work is cancelled at its next await point, and the result is an error. The guard gives the work
    /// its fencing token.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # async fn sell_one(token: Option<dlock_core::FencingToken>) -> u32 { 1 }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let stock = locks.mutex("stock:42")?;
    /// let sold = stock.run(async |guard| sell_one(guard.token()).await).await?;
    /// # assert_eq!(sold, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Work that may fail returns a `Result` of its own; [`flat`](crate::Flat::flat) makes one of the two.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Mutex::lock), and [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the hold did not last until
    /// the work was done, also when only the release finds out.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.lock().await?.run(work).await
    }

    /// Does the work if the lock is free; `None`, and nothing is done, when others hold it: the job that must not run twice.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # async fn send_the_mails() -> u32 { 3 }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let nightly = locks.mutex("nightly")?;
    /// match nightly.try_run(async |_| send_the_mails().await).await? {
    ///     Some(sent) => println!("{sent} mails sent"),
    ///     None => println!("another machine is at it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`try_lock`](Mutex::try_lock), and `Lost` as for [`run`](Mutex::run).
    pub async fn try_run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_lock().await?, work).await
    }

    /// As [`try_run`](Mutex::try_run), after a wait of at most `limit`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn sell_one() -> u32 { 1 }
    /// let stock = locks.mutex("stock:42")?;
    /// let sold = stock.run_within(Duration::from_secs(2), async |_| sell_one().await).await?;
    /// println!("{}", if sold.is_some() { "sold" } else { "many people want this one: try again" });
    /// # assert_eq!(sold, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock_within`](Mutex::lock_within), and `Lost` as for [`run`](Mutex::run).
    pub async fn run_within<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        run_with(self.lock_within(limit).await?, work).await
    }

    /// The same lock for an owner, who can enter it again while holding it.
    ///
    /// ```
    /// # use dlock_core::{Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let (mine, other) = (Owner::new(), Owner::new());
    /// let stock = locks.mutex("stock:42")?.owned_by(mine);
    /// let outer = stock.lock().await?;
    /// assert!(stock.try_lock().await?.is_some()); // entered again
    /// assert!(stock.clone().owned_by(other).try_lock().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        self.spec.owner = Some(owner);
        self
    }

    /// Whether anybody holds the lock, as the store sees it now. The answer may be old when it arrives.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let nightly = locks.mutex("nightly")?;
    /// println!("the nightly job {}", if nightly.is_locked().await? { "runs" } else { "does not run" });
    /// // To decide whether to run it is what `try_lock` is for: between this answer and the next step anybody may take the lock.
    /// # assert!(!nightly.is_locked().await?);
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

    /// Whether this lock's [`Owner`], or the owner of the scope we are in, holds it now, so that another acquire would enter it
    /// again. Asks nobody. Without an owner nobody can enter again, and the answer is no.
    ///
    /// ```
    /// # use dlock_core::{Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let stock = locks.mutex("stock:42")?.owned_by(Owner::new());
    /// assert!(!stock.is_owned());
    /// let guard = stock.lock().await?;
    /// assert!(stock.is_owned());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_owned(&self) -> bool {
        let owner = self.spec.owner.or_else(Owner::current);
        let now = self.spec.client.clock.now();
        owner.is_some_and(|owner| self.spec.client.ledger.is_owned(owner, self.name(), now))
    }

    /// The lock's name.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let stock = locks.mutex("stock:42")?;
    /// assert_eq!(stock.name().as_str(), "stock:42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &Name {
        &self.spec.name
    }
}

/// Does the work if there is a guard for it.
pub(crate) async fn run_with<T>(
    guard: Option<Guard>,
    work: impl AsyncFnOnce(&Guard) -> T,
) -> Result<Option<T>> {
    match guard {
        Some(guard) => guard.run(work).await.map(Some),
        None => Ok(None),
    }
}
