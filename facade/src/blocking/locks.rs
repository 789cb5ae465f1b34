use std::fmt;
use std::future::Future;
use std::time::Duration;

use dlock_core::{Capabilities, Capability, LockInfo, Result, Settings, Stats};

use super::room::Room;
use super::{MultiLock, Mutex, RwLock, Semaphore};

/// Connects to a store by its URL, with the default [`Settings`], as [`dlocks::connect`](crate::connect).
///
/// # Errors
///
/// As there, and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in an async task.
pub fn connect(url: &str) -> Result<Locks> {
    builder(url).connect()
}

/// Connects with settings and requirements of your own, as [`dlocks::builder`](crate::builder).
pub fn builder(url: impl Into<String>) -> Builder {
    Builder(crate::builder(url))
}

/// Makes a client in its own thread by a future of yours, for a backend that has no URL here. The client is this one's alone: it is
/// closed when the last handle is dropped.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), dlocks::Error> {
/// let locks = dlocks::blocking::open(async {
///     // Connect here: what a client starts belongs to the runtime that it was made in.
///     dlocks::Locks::new(dlocks::memory::MemoryBackend::new())
/// })?;
/// # let _ = locks;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
///
/// # Errors
///
/// What the future gives, and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in an async task.
pub fn open(make: impl Future<Output = Result<crate::Locks>> + Send + 'static) -> Result<Locks> {
    let (room, inner) = Room::open(make)?;
    Ok(Locks { inner, room })
}

/// Made by [`builder`].
#[derive(Debug)]
#[must_use = "nothing happens until `connect`"]
pub struct Builder(crate::Builder);

impl Builder {
    /// Sets how locks are taken and kept.
    pub fn settings(self, settings: Settings) -> Self {
        Self(self.0.settings(settings))
    }

    /// Refuses a store that lacks one of these properties.
    pub fn require(self, needed: &[Capability]) -> Self {
        Self(self.0.require(needed))
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// As for [`connect`], and when a requirement or a setting does not fit the store.
    pub fn connect(self) -> Result<Locks> {
        open(self.0.connect())
    }
}

/// A client of one store, as [`dlocks::Locks`](crate::Locks), with a thread of its own.
///
/// Cheap to clone; clones and everything made from them share the thread. It ends when the last of them is dropped, after giving back
/// what was still to be given back.
#[derive(Clone)]
pub struct Locks {
    inner: crate::Locks,
    room: Room,
}

impl Locks {
    /// The same client with other settings.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::with`](crate::Locks::with).
    pub fn with(&self, settings: Settings) -> Result<Self> {
        Ok(Self {
            inner: self.inner.with(settings)?,
            room: self.room.clone(),
        })
    }

    /// What was set.
    pub fn settings(&self) -> &Settings {
        self.inner.settings()
    }

    fn backend(&self) -> &'static str {
        self.inner.capabilities().backend
    }

    /// A lock for one holder at a time. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::mutex`](crate::Locks::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex> {
        let inner = self.inner.mutex(name)?;
        Ok(Mutex::new(inner, self.backend(), self.room.clone()))
    }

    /// A lock for many readers or one writer. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::rw_lock`](crate::Locks::rw_lock).
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        let inner = self.inner.rw_lock(name)?;
        Ok(RwLock::new(inner, self.backend(), self.room.clone()))
    }

    /// A lock for at most `limit` holders at a time. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::semaphore`](crate::Locks::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Result<Semaphore> {
        let inner = self.inner.semaphore(name, limit)?;
        Ok(Semaphore::new(inner, self.backend(), self.room.clone()))
    }

    /// Several locks of this store as one: all or nothing. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::multi`](crate::Locks::multi).
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<MultiLock> {
        let inner = self.inner.multi(names)?;
        Ok(MultiLock::new(inner, self.backend(), self.room.clone()))
    }

    /// Who holds a lock and who waits for it.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::inspect`](crate::Locks::inspect).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let (inner, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.room.call(async move { inner.inspect(name).await })
    }

    /// All locks held in the store whose name starts with `prefix`, sorted by name.
    ///
    /// # Errors
    ///
    /// As for [`dlocks::Locks::list`](crate::Locks::list).
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>> {
        let (inner, prefix) = (self.inner.clone(), prefix.as_ref().to_owned());
        self.room.call(async move { inner.list(prefix).await })
    }

    /// Frees a lock by force, as [`dlocks::Locks::break_lock`](crate::Locks::break_lock).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        let (inner, name) = (self.inner.clone(), name.as_ref().to_owned());
        self.room.call(async move { inner.break_lock(name).await })
    }

    /// What this client has done so far, and what it holds now. Asks nobody.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// What the store can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    /// Which store this is, without secrets.
    pub fn identity(&self) -> &str {
        self.inner.identity()
    }

    /// How long a hold lasts without a renewal.
    pub fn lease(&self) -> Duration {
        self.inner.lease()
    }

    /// Ends this client for all its clones, as [`dlocks::Locks::close`](crate::Locks::close): a program's last act.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn close(&self) -> Result<()> {
        let inner = self.inner.clone();
        self.room.call(async move { inner.close().await })
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("store", &self.identity())
            .finish_non_exhaustive()
    }
}
