//! Who is measured.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use dlocks::{Capability, Guard, Locks, Settings};

use crate::Result;

/// Something with locks: dlock with some store, or what it is compared to.
#[async_trait]
pub trait Subject: Send + Sync {
    /// What tables call it.
    fn name(&self) -> &str;

    /// A new client, as another process would have one.
    ///
    /// # Errors
    /// When it cannot connect.
    async fn client(&self) -> Result<Arc<dyn Client>>;

    /// Starts a process that calls [`serve`](crate::serve) with this subject; none where locks do not reach another process.
    fn worker(&self) -> Option<Command> {
        None
    }
}

/// A client, which several tasks may use.
#[async_trait]
pub trait Client: Send + Sync {
    /// Takes a lock, and waits as long as it takes.
    ///
    /// # Errors
    /// When the store fails.
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>>;

    /// Leaves nothing behind.
    async fn close(&self) {}
}

/// A lock that is held.
#[async_trait]
pub trait Hold: Send {
    /// Gives it back; done when the store has confirmed.
    ///
    /// # Errors
    /// When the store fails, or the hold was lost.
    async fn release(self: Box<Self>) -> Result<()>;
}

/// dlock itself, with the store of a URL.
#[derive(Debug)]
pub struct Dlock {
    name: String,
    url: String,
    settings: Settings,
    worker: Option<(std::path::PathBuf, Vec<String>)>,
}

/// Where a worker process finds the URL: it may hold a password, and everybody can read a command line.
const WORKER_URL: &str = "DLOCK_BENCH_URL";

impl Dlock {
    /// Locks of this store, with the default settings.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            name: "dlock".to_owned(),
            url: url.into(),
            settings: Settings::new(),
            worker: None,
        }
    }

    /// The subject of a process that [`started_by`](Self::started_by) has started.
    ///
    /// # Errors
    /// When this process was started otherwise.
    pub fn in_worker() -> Result<Self> {
        Ok(Self::new(std::env::var(WORKER_URL)?))
    }

    /// What tables call it.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Other settings. Those of a worker process are the defaults.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The program, with its arguments, that calls [`serve`](crate::serve) with [`in_worker`](Self::in_worker).
    #[must_use]
    pub fn started_by(mut self, program: impl Into<std::path::PathBuf>, args: &[&str]) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.worker = Some((program.into(), args));
        self
    }

    /// Whether its locks exclude other processes.
    ///
    /// # Errors
    /// When it cannot connect.
    pub async fn is_between_processes(&self) -> Result<bool> {
        let locks = self.connect().await?;
        let reaches = locks.capabilities().has(Capability::HostWide);
        locks.close().await?;
        Ok(reaches)
    }

    async fn connect(&self) -> Result<Locks> {
        let builder = dlocks::builder(&self.url).settings(self.settings.clone());
        Ok(builder.connect().await?)
    }
}

#[async_trait]
impl Subject for Dlock {
    fn name(&self) -> &str {
        &self.name
    }

    async fn client(&self) -> Result<Arc<dyn Client>> {
        Ok(Arc::new(self.connect().await?))
    }

    fn worker(&self) -> Option<Command> {
        let (program, args) = self.worker.as_ref()?;
        let mut command = Command::new(program);
        command.args(args).env(WORKER_URL, &self.url);
        Some(command)
    }
}

#[async_trait]
impl Client for Locks {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        Ok(Box::new(self.mutex(name)?.lock().await?))
    }

    async fn close(&self) {
        // The figures are there already.
        let _ = Self::close(self).await;
    }
}

#[async_trait]
impl Hold for Guard {
    async fn release(self: Box<Self>) -> Result<()> {
        match Guard::release(*self).await? {
            dlocks::Released::AlreadyLost => Err("a lock was lost".into()),
            _ => Ok(()),
        }
    }
}
