use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Ask;
use crate::client::Client;
use crate::name::check_text;
use crate::settings::Checked;
use crate::{
    Backend, Capabilities, Capability, Clock, Election, LockInfo, Mode, MultiLock, Mutex, Name,
    Operation, Result, RwLock, Semaphore, Settings, Stats, SystemClock,
};

/// A client of one store: where locks come from.
///
/// Cheap to clone; clones share connections, background tasks and statistics. Handles ([`Mutex`] and the others) cost
/// nothing until they are used.
///
/// ```
/// use std::sync::Arc;
/// use dlock_core::Locks;
/// use dlock_memory::MemoryBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// let locks = Locks::new(Arc::new(MemoryBackend::new()))?;
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
    settings: Arc<Checked>,
}

impl Locks {
    /// A client with the default [`Settings`].
    ///
    /// # Errors
    ///
    /// When the defaults do not fit the store; use [`builder`](Locks::builder) then.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        Self::builder(backend).build()
    }

    /// A client with settings of your own.
    pub fn builder(backend: Arc<dyn Backend>) -> LocksBuilder {
        LocksBuilder {
            backend,
            clock: Arc::new(SystemClock),
            settings: Settings::new(),
            required: Vec::new(),
        }
    }

    /// The same client with other settings: connections, tasks and statistics are shared.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the setting that is wrong and its range.
    pub fn with(&self, settings: Settings) -> Result<Self> {
        Ok(Self {
            client: self.client.clone(),
            settings: Arc::new(self.check(settings)?),
        })
    }

    fn check(&self, settings: Settings) -> Result<Checked> {
        settings
            .check(self.capabilities())
            .map_err(|error| error.context(self.client.backend_name(), Operation::Configure, None))
    }

    fn ask(&self, name: &str, mode: Mode) -> Result<Ask> {
        self.capabilities().require_mode(mode)?;
        Ok(Ask {
            client: self.client.clone(),
            settings: self.settings.clone(),
            name: Name::new(name)?,
            mode,
            owner: None,
        })
    }

    /// A lock for one holder at a time. Nothing is sent.
    ///
    /// # Errors
    ///
    /// When the name is not a [`Name`].
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex> {
        Ok(Mutex::new(self.ask(name.as_ref(), Mode::Exclusive)?))
    }

    /// A lock for many readers or one writer. Nothing is sent. A writer excludes a [`Mutex`] of the same name.
    ///
    /// # Errors
    ///
    /// When the name is not a [`Name`], or the store has no shared mode.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        Ok(RwLock::new(self.ask(name.as_ref(), Mode::Shared)?))
    }

    /// A lock for at most `limit` holders at a time. Nothing is sent.
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
            self.ask(name.as_ref(), Mode::Permit { limit })?,
        ))
    }

    /// Several locks as one: all or nothing. Nothing is sent.
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
    /// # Errors
    ///
    /// When the name is not a [`Name`], or the store cannot be inspected.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        self.capabilities().require(&[Capability::Inspect])?;
        let ask = self.ask(name.as_ref(), Mode::Exclusive)?;
        Ok(Election::new(ask))
    }

    /// Who holds a lock and who waits for it.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = Name::new(name)?;
        self.trip(Operation::Inspect, self.client.backend.inspect(&name))
            .await
    }

    /// All locks held in the store whose name starts with `prefix`, sorted by name. An empty prefix lists all.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>> {
        let prefix = prefix.as_ref();
        check_text("a prefix", prefix, Name::MAX_BYTES)?;
        self.trip(Operation::List, self.client.backend.list(prefix))
            .await
    }

    /// Frees a lock by force, whoever holds it; `true` when somebody did.
    ///
    /// The holder is told with its next renewal at the latest, and may be at work until then: only the fencing token protects the
    /// resource from it.
    ///
    /// # Errors
    ///
    /// When the store did not confirm.
    pub async fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = Name::new(name)?;
        let broken = self
            .trip(Operation::Break, self.client.backend.break_lock(&name))
            .await?;
        if broken {
            tracing::warn!(%name, backend = self.client.backend_name(), "lock broken by force");
        }
        Ok(broken)
    }

    async fn trip<T>(
        &self,
        operation: Operation,
        trip: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.client.question(&self.settings, operation, trip).await
    }

    /// What this client has done so far, and what it holds now.
    pub fn stats(&self) -> Stats {
        let counts = self.client.ledger.counts();
        let mut stats = self.client.stats.snapshot();
        stats.held = counts.held as u64;
        stats.in_doubt = counts.in_doubt as u64;
        stats
    }

    /// What the store can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.client.backend.capabilities()
    }

    /// Which store this is, without secrets.
    pub fn identity(&self) -> &str {
        self.client.backend.identity()
    }

    /// How long a hold lasts without a renewal.
    pub fn lease(&self) -> Duration {
        self.settings.lease
    }

    /// Ends this client for all its clones: refuses new acquires, gives back every hold that is out (their guards see
    /// [`LossReason::Closed`](crate::LossReason::Closed)), waits until every release is confirmed, and closes the backend.
    ///
    /// Closing twice is harmless.
    ///
    /// # Errors
    ///
    /// When the store did not confirm everything in time; what is left ends with its lease.
    pub async fn close(&self) -> Result<()> {
        self.client.close(&self.settings).await
    }
}

/// Makes a [`Locks`] with settings, a clock and requirements of your own.
#[derive(Debug)]
#[must_use = "nothing happens until `build`"]
pub struct LocksBuilder {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    required: Vec<Capability>,
}

impl LocksBuilder {
    /// Sets the settings.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Replaces the clock, for tests with a paused one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Refuses a store that lacks one of these.
    pub fn require(mut self, needed: &[Capability]) -> Self {
        self.required.extend_from_slice(needed);
        self
    }

    /// Checks everything and makes the client. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when something required is missing, and
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a setting out of its range.
    pub fn build(self) -> Result<Locks> {
        let capabilities = self.backend.capabilities();
        capabilities.require(&self.required)?;
        let backend = capabilities.backend;
        let settings = self
            .settings
            .check(capabilities)
            .map_err(|error| error.context(backend, Operation::Configure, None))?;
        Ok(Locks {
            client: Client::new(self.backend, self.clock),
            settings: Arc::new(settings),
        })
    }
}
