use std::sync::Arc;

use dlock_core::{Capability, Clock, Locks, Result, Settings};

use crate::lease;
use crate::scheme::open;

/// Connects to a store by its URL, with the default [`Settings`].
///
/// The parameter `lease` means the same in every URL: how long a hold lasts without a renewal, as in `redis://cache?lease=10s`. A store
/// whose holds live as long as their session (etcd, ZooKeeper, two modes of MySQL) takes it as the session's time. Locks between the processes of a
/// host end with their process, and need none.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlocks::Error> {
/// let locks = dlocks::connect("memory:").await?;
/// let guard = locks.mutex("stock:42")?.lock().await?;
/// # let _ = guard.release().await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that is wrong (the message names the part) or whose scheme is
/// not known (it lists those that are), [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a scheme
/// whose feature is not enabled, and whatever befalls the connection.
pub async fn connect(url: &str) -> Result<Locks> {
    builder(url).connect().await
}

/// Connects with settings and requirements of your own.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlocks::Error> {
/// use std::time::Duration;
/// use dlocks::{Capability, Settings};
///
/// let locks = dlocks::builder("memory:")
///     .settings(Settings::new().lease(Duration::from_secs(10)))
///     .require(&[Capability::Fencing, Capability::Fair])
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
pub fn builder(url: impl Into<String>) -> Builder {
    Builder {
        url: url.into(),
        settings: Settings::new(),
        required: Vec::new(),
        clock: None,
    }
}

/// Made by [`builder`].
#[must_use = "nothing happens until `connect`"]
pub struct Builder {
    url: String,
    settings: Settings,
    required: Vec<Capability>,
    clock: Option<Arc<dyn Clock>>,
}

impl Builder {
    /// Sets how locks are taken and kept. A lease that is set here comes before the URL's, but cannot change a session: there both must
    /// be the same.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Refuses a store that lacks one of these properties.
    pub fn require(mut self, needed: &[Capability]) -> Self {
        self.required.extend_from_slice(needed);
        self
    }

    /// Replaces the clock, for tests with a paused one, or one that runs at a rate of its own.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// As for [`connect`], and when a requirement or a setting does not fit the store.
    pub async fn connect(self) -> Result<Locks> {
        let (url, lease) = lease::split(&self.url)?;
        let settings = match (lease, self.settings.asked_lease()) {
            (Some(lease), None) => self.settings.lease(lease),
            _ => self.settings,
        };
        let builder = Locks::builder(open(&url).await?)
            .settings(settings)
            .require(&self.required);
        match self.clock {
            Some(clock) => builder.clock(clock).build(),
            None => builder.build(),
        }
    }
}

/// Without the URL, which may hold a password.
impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}
