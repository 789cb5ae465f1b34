mod builder;
mod inspect;

use std::sync::Arc;
use std::time::Duration;

pub use self::builder::LocksBuilder;
use crate::backend::IntoBackend;
use crate::engine::client::Client;
use crate::engine::spec::LockSpec;
use crate::lock::settings::ResolvedSettings;
use crate::{
    Capabilities, Capability, Election, Mode, MultiLock, Mutex, Name, Operation, Result, RwLock,
    Semaphore, Settings, Stats,
};

/// A client of one store: where locks come from.
///
/// Cheap to clone; clones share connections, background tasks and statistics. Handles ([`Mutex`] and the others) cost
/// nothing until they are used.
///
/// ```
/// use dlock_core::Locks;
/// use dlock_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// let locks = Locks::new(MemoryBackend::new())?;
/// let stock = locks.mutex("stock:42")?;
///
/// let guard = stock.lock().await?;
/// assert!(stock.try_lock().await?.is_none()); // contention is not an error
/// let _ = guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Locks {
    client: Arc<Client>,
    /// What was set, and what follows from it.
    given: Arc<Settings>,
    settings: Arc<ResolvedSettings>,
}

impl Locks {
    /// A client with the default [`Settings`].
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When the defaults do not fit the store; use [`builder`](Locks::builder) then.
    pub fn new<Kind>(backend: impl IntoBackend<Kind>) -> Result<Self> {
        Self::builder(backend).build()
    }

    /// A client with settings of your own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Capability, Locks, Settings};
    /// let locks = Locks::builder(dlock_memory::MemoryBackend::new())
    ///     .settings(Settings::new().lease(Duration::from_secs(10)))
    ///     .require(&[Capability::Fencing]) // an error instead of a lock without tokens
    ///     .build()?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn builder<Kind>(backend: impl IntoBackend<Kind>) -> LocksBuilder {
        LocksBuilder::new(backend.into_backend())
    }

    /// The same client with other settings: connections, tasks and statistics are shared. What `settings` does not set stays as this
    /// client has it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, Settings};
    /// # fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let quick = locks.with(Settings::new().lease(Duration::from_secs(5)))?;
    /// let quick_and_named = quick.with(Settings::new().label("nightly job"))?;
    /// assert_eq!(quick_and_named.lease(), Duration::from_secs(5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the setting that is wrong and its range.
    pub fn with(&self, settings: Settings) -> Result<Self> {
        let given = settings.over(&self.given);
        let settings = given.check(self.capabilities()).map_err(|error| {
            error.context(self.client.backend_name(), Operation::Configure, None)
        })?;
        Ok(Self {
            client: self.client.clone(),
            given: Arc::new(given),
            settings: Arc::new(settings),
        })
    }

    /// What was set for this client; what was not has its default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, Settings};
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let quick = locks.with(Settings::new().lease(Duration::from_secs(5)))?;
    /// assert_eq!(quick.settings().asked_lease(), Some(Duration::from_secs(5)));
    /// assert_eq!(locks.settings().asked_lease(), None); // has the default
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn settings(&self) -> &Settings {
        &self.given
    }

    fn spec(&self, name: &str, mode: Mode) -> Result<LockSpec> {
        self.capabilities().require_mode(mode)?;
        Ok(LockSpec {
            client: self.client.clone(),
            settings: self.settings.clone(),
            name: Name::new(name)?,
            mode,
            owner: None,
        })
    }

    /// A lock for one holder at a time. Nothing is sent.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the name is not a [`Name`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex> {
        Ok(Mutex::new(self.spec(name.as_ref(), Mode::Exclusive)?))
    }

    /// A lock for many readers or one writer. Nothing is sent. A writer excludes a [`Mutex`] of the same name.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let reader = locks.rw_lock("catalogue")?.read().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the name is not a [`Name`], or the store has no shared mode.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        Ok(RwLock::new(self.spec(name.as_ref(), Mode::Shared)?))
    }

    /// A lock for at most `limit` holders at a time. Nothing is sent.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let permit = locks.semaphore("licences", 3)?.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the name is not a [`Name`], the limit is 0, or the store has no permits.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Result<Semaphore> {
        if limit == 0 {
            return Err(crate::Error::invalid(
                "a semaphore with 0 permits lets nobody in: give 1 or more",
            ));
        }
        Ok(Semaphore::new(
            self.spec(name.as_ref(), Mode::Permit { limit })?,
        ))
    }

    /// Several locks as one: all or nothing. Nothing is sent.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let both = locks.multi(["account:1", "account:2"])?.lock().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a name is not a [`Name`], or there are none.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiLock> {
        let mutexes: Result<Vec<Mutex>> = names.into_iter().map(|name| self.mutex(name)).collect();
        MultiLock::new(mutexes?)
    }

    /// An election: its leader is whoever holds the exclusive lock of this name. Nothing is sent.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let leadership = locks.election("scheduler")?.campaign("10.0.0.7:8080").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the name is not a [`Name`], or the store cannot be inspected.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        self.capabilities().require(&[Capability::Inspect])?;
        let spec = self.spec(name.as_ref(), Mode::Exclusive)?;
        Ok(Election::new(spec))
    }

    /// What this client has done so far, and what it holds now.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// locks.mutex("stock:42")?.lock().await?.release().await?;
    /// let stats = locks.stats();
    /// assert_eq!((stats.acquired, stats.held), (1, 0));
    /// println!("{} acquires, half of them within {:?}", stats.acquired, stats.wait.p50);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        let counts = self.client.ledger.counts();
        let mut stats = self.client.ledger.stats.snapshot();
        stats.held = counts.held as u64;
        stats.in_doubt = (counts.asking + counts.releasing + counts.undoing) as u64;
        stats
    }

    /// What the store can do.
    ///
    /// ```
    /// # use dlock_core::{Capability, Locks};
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// if !locks.capabilities().has(Capability::NetworkWide) {
    ///     println!("another machine is not kept out: {:?}", locks.capabilities().reach);
    /// }
    /// # assert!(!locks.capabilities().has(Capability::NetworkWide));
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn capabilities(&self) -> &Capabilities {
        self.client.backend.capabilities()
    }

    /// Which store this is, without secrets.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # let locks = Locks::new(dlock_memory::Config::from_url("memory:shop")?.connect())?;
    /// assert_eq!(locks.identity(), "memory:shop");
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn identity(&self) -> &str {
        self.client.backend.identity()
    }

    /// How long a hold lasts without a renewal.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// assert_eq!(locks.lease(), Duration::from_secs(30));
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn lease(&self) -> Duration {
        self.settings.lease
    }

    /// Ends this client for all its clones: refuses new acquires, gives back every hold that is out (their guards see
    /// [`LossReason::Closed`](crate::LossReason::Closed)), waits until every release is confirmed, and closes the backend.
    ///
    /// Closing twice is harmless: a second call finishes what one that was dropped or failed has left.
    ///
    /// ```
    /// # use dlock_core::{ErrorKind, Locks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// locks.close().await?; // at the end of the program: nothing stays in the store
    /// assert!(!guard.is_held());
    /// let error = locks.mutex("stock:42")?.lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Closed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store did not confirm everything within the [`retry_unreachable_for`](Settings::retry_unreachable_for) patience and a trip; what is left ends with
    /// its lease, or with the session.
    pub async fn close(&self) -> Result<()> {
        self.client.close(&self.settings).await
    }
}
