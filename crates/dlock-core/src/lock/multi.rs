mod take;

use std::time::Duration;

use self::take::wait_within;
pub(super) use self::take::{take_all, wait_for_all};
use super::mutex::run_with;
use crate::engine::spec::{LockSpec, Patience};
use crate::{Error, Guard, Mutex, Owner, Result};

/// Several locks as one: all or nothing, of one store or of several.
///
/// Made by [`Locks::multi`](crate::Locks::multi), or from mutexes of different clients with [`MultiLock::new`]. The guard is good
/// while all of them are. If one cannot be had, those that were taken are given back.
///
/// Members are taken in an order that does not depend on who asks, by store and name. Where two processes know a store under
/// different names, their orders differ; so nobody waits for ever while holding: a member that is not had within a second
/// makes the others free, is then waited for alone, and the others are taken after it.
///
/// ```
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let both = locks.multi(["account:1", "account:2"])?;
/// both.run(async |guard| {
///     for (name, token) in guard.tokens() { /* a transfer, fenced on both sides */ }
/// }).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancel safety
///
/// As for [`Mutex`]: what was taken is given back in the background.
#[derive(Debug, Clone)]
pub struct MultiLock {
    members: Vec<Mutex>,
}

impl MultiLock {
    /// Joins mutexes; a lock that is named twice counts once.
    ///
    /// ```
    /// # use dlock_core::{Locks, MultiLock};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let (here, there) = (dlock_memory::MemoryBackend::new(), dlock_memory::MemoryBackend::new());
    /// let warehouse = Locks::new(here)?;
    /// let shop = Locks::new(there)?; // another store
    /// let both = MultiLock::new([warehouse.mutex("item:42")?, shop.mutex("item:42")?])?;
    /// let guard = both.lock().await?;
    /// assert_eq!(guard.tokens().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when there are none.
    pub fn new(mutexes: impl IntoIterator<Item = Mutex>) -> Result<Self> {
        let mut members: Vec<Mutex> = mutexes.into_iter().collect();
        if members.is_empty() {
            return Err(Error::invalid(
                "a multi-lock needs at least one lock: give it names",
            ));
        }
        members.sort_by(|a, b| key(a).cmp(&key(b)));
        members.dedup_by(|a, b| key(a) == key(b));
        Ok(Self { members })
    }

    /// Waits for all of them.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let both = locks.multi(["account:1", "account:2"])?;
    /// let guard = both.lock().await?; // another who names them the other way round does not wait for us for ever
    /// assert!(locks.mutex("account:2")?.is_locked().await?);
    /// guard.release().await?; // both
    /// assert!(!locks.mutex("account:2")?.is_locked().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock`], naming the member that failed. The shortest `wait_at_most` of the members' settings holds for
    /// all of them together. [`Error::held_now`] is [`HeldNow::Unknown`](crate::HeldNow::Unknown) when a member that was had could not be given back yet.
    pub async fn lock(&self) -> Result<Guard> {
        wait_for_all(&self.specs()).await
    }

    /// Takes all of them if all are free; `None` when one is held by others.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let second = locks.mutex("account:2")?.lock().await?;
    /// let both = locks.multi(["account:1", "account:2"])?;
    /// assert!(both.try_lock().await?.is_none());
    /// assert!(!locks.mutex("account:1")?.is_locked().await?); // the one that was free was given back
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_lock`], naming the member that failed.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        take_all(&self.specs(), None).await
    }

    /// Waits at most `limit` for all of them together; `None` when one was still held by others. The limit is kept also when a
    /// store hangs, and also while members are given back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let both = locks.multi(["account:1", "account:2"])?;
    /// let Some(guard) = both.lock_within(Duration::from_secs(2)).await? else {
    ///     println!("one of the accounts is in use: try later");
    ///     return Ok(());
    /// };
    /// # guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::lock_within`], naming the member that failed.
    pub async fn lock_within(&self, limit: Duration) -> Result<Option<Guard>> {
        let specs = self.specs();
        match Patience::within(limit) {
            Patience::Try => take_all(&specs, None).await,
            _ => wait_within(&specs, Some(limit)).await,
        }
    }

    /// Does the work while all are held, as [`Mutex::run`].
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn transfer(cents: u32) -> u32 { cents }
    /// let both = locks.multi(["account:1", "account:2"])?;
    /// let moved = both.run(async |_| transfer(500).await).await?;
    /// # assert_eq!(moved, 500);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run`].
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        self.lock().await?.run(work).await
    }

    /// Does the work if all are free; `None` otherwise.
    ///
    /// Used as [`Mutex::try_run`], which has an example.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::try_run`].
    pub async fn try_run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        run_with(self.try_lock().await?, work).await
    }

    /// Does the work after a wait of at most `limit`; `None` when it was in vain.
    ///
    /// Used as [`Mutex::run_within`], which has an example.
    ///
    /// # Errors
    ///
    /// As for [`Mutex::run_within`].
    pub async fn run_within<T>(
        &self,
        limit: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<Option<T>> {
        run_with(self.lock_within(limit).await?, work).await
    }

    /// Whether anybody holds one of them, as the stores see it now.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let both = locks.multi(["account:1", "account:2"])?;
    /// let first = locks.mutex("account:1")?.lock().await?;
    /// assert!(both.is_locked().await?); // one is enough
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a store cannot be asked, or cannot tell.
    pub async fn is_locked(&self) -> Result<bool> {
        for member in &self.members {
            if member.is_locked().await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The same locks for an owner, who can enter them again while holding them.
    ///
    /// ```
    /// # use dlock_core::{Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let owner = Owner::new();
    /// let first = locks.mutex("account:1")?.owned_by(owner).lock().await?;
    /// let both = locks.multi(["account:1", "account:2"])?.owned_by(owner);
    /// let guard = both.lock().await?; // enters the first again, and takes the second
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owned_by(mut self, owner: Owner) -> Self {
        for member in &mut self.members {
            member.spec.owner = Some(owner);
        }
        self
    }

    /// The locks, in the order in which they are taken.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let both = locks.multi(["account:2", "account:1"])?;
    /// let names: Vec<_> = both.members().iter().map(|member| member.name().as_str()).collect();
    /// assert_eq!(names, ["account:1", "account:2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn members(&self) -> &[Mutex] {
        &self.members
    }

    fn specs(&self) -> Vec<&LockSpec> {
        self.members.iter().map(|member| &member.spec).collect()
    }
}

/// By store, then by name.
fn key(mutex: &Mutex) -> (&str, &str) {
    (mutex.spec.client.backend.identity(), mutex.name())
}
