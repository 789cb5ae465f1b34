use std::sync::Arc;

use tokio::runtime::Handle;

use super::Locks;
use crate::backend::Backend;
use crate::engine::client::Client;
use crate::engine::rooms::Rooms;
use crate::{Capability, Clock, Operation, Result, Settings, SystemClock};

/// Makes a [`Locks`] with settings, a clock and requirements of your own.
#[derive(Debug)]
#[must_use = "nothing happens until `build`"]
pub struct LocksBuilder {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    required: Vec<Capability>,
    runtime: Option<Handle>,
    standby: bool,
}

impl LocksBuilder {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            clock: Arc::new(SystemClock),
            settings: Settings::new(),
            required: Vec::new(),
            runtime: None,
            standby: true,
        }
    }

    /// Sets the settings.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, Settings};
    /// let settings = Settings::new().lease(Duration::from_secs(10)).label("nightly job");
    /// let locks = Locks::builder(dlock_memory::MemoryBackend::new()).settings(settings).build()?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Replaces the clock, for tests with a paused one.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, TokioClock};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// // In a test with `#[tokio::test(start_paused = true)]`: hours pass at once.
    /// let clock = Arc::new(TokioClock::new());
    /// let store = dlock_memory::MemoryBackend::with_clock(clock.clone());
    /// let locks = Locks::builder(store).clock(clock).build()?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// tokio::time::sleep(Duration::from_secs(3600)).await;
    /// assert!(guard.is_held()); // it was renewed some 360 times
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where the background work of this client runs: renewals, losses, clean-up. Default: the runtime of the first call.
    ///
    /// Whatever runtime it is, a thread of dlock's own takes over when that runtime has ended, is blocked or is not driven.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// let background = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    /// let locks = Locks::builder(dlock_memory::MemoryBackend::new())
    ///     .runtime(background.handle().clone()) // renewals do not wait for what else this program does
    ///     .build()?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Whether that thread stands by. Default: yes, one for all clients of the process, which sleeps most of the time.
    ///
    /// Without it a hold lives only as long as the runtime of its client is driven: for programs that want no thread, and for tests
    /// that play the death of a process.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// let locks = Locks::builder(dlock_memory::MemoryBackend::new()).standby(false).build()?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn standby(mut self, on: bool) -> Self {
        self.standby = on;
        self
    }

    /// Refuses a store that lacks one of these.
    ///
    /// ```
    /// # use dlock_core::{Capability, ErrorKind, Locks};
    /// let memory = dlock_memory::MemoryBackend::new();
    /// let refused = Locks::builder(memory).require(&[Capability::NetworkWide]).build();
    /// assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported); // before anything was locked in vain
    /// ```
    pub fn require(mut self, needed: &[Capability]) -> Self {
        self.required.extend_from_slice(needed);
        self
    }

    /// Checks everything and makes the client. Nothing is sent.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{ErrorKind, Locks, Settings};
    /// let wrong = Settings::new().lease(Duration::from_millis(1));
    /// let error = Locks::builder(dlock_memory::MemoryBackend::new()).settings(wrong).build().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Invalid);
    /// assert!(error.to_string().contains("the lease")); // it says what is wrong, and the range
    /// ```
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
            client: Client::new(
                self.backend,
                self.clock,
                Rooms::new(self.runtime, self.standby),
            ),
            given: Arc::new(self.settings),
            settings: Arc::new(settings),
        })
    }
}
