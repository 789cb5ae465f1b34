//! Helper processes: holders that can be paused and killed, and writers of a shared counter.
//!
//! The suite starts the running test program once more for each helper, with a job in the environment variable
//! `DLOCK_CONFORMANCE_JOB`. [`main`](crate::main()) looks for it first, so nothing is to be done when the
//! harness reaches its store by something that is the same in every process, such as a path or a URL from the environment. When the test
//! program starts a server of its own, its `main` calls [`serve`] before that, and the harness gives the server's
//! [`address`](crate::Harness::address):
//!
//! ```no_run
//! # use std::process::ExitCode;
//! # use std::sync::Arc;
//! # use dlock_conformance::{Harness, async_trait};
//! # use dlock_core::backend::Backend;
//! # use dlock_core::Result;
//! # struct Server; struct Mine { server: Server }
//! # impl Server { fn start() -> Self { Self } fn url(&self) -> String { String::new() } }
//! # async fn connect(url: &str) -> Result<Arc<dyn Backend>> { unimplemented!() }
//! # #[async_trait]
//! # impl Harness for Mine {
//! #     fn name(&self) -> &str { "mine" }
//! #     async fn connect(&self) -> Result<Arc<dyn Backend>> { connect(&self.server.url()).await }
//! #     fn address(&self) -> String { self.server.url() }
//! # }
//! fn main() -> ExitCode {
//!     if let Some(code) = dlock_conformance::process::serve(async |url| connect(url).await) {
//!         return code; // this process is a helper, and has done its job
//!     }
//!     let server = Server::start();
//!     dlock_conformance::main(Mine { server })
//! }
//! ```
//!
//! # The protocol
//!
//! A helper writes lines that start with `dlock-helper: ` to its standard output: `asking`, `held`, `done`, `is_held true`, or
//! `failed` with the error. It reads commands from its standard input: `check`, `exit` (without a release), `release`. It
//! ends when that is closed, so none outlives the test.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Guard, Locks, Released, Result, Settings};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::Harness;

pub(crate) const JOB: &str = "DLOCK_CONFORMANCE_JOB";
pub(crate) const PREFIX: &str = "dlock-helper: ";

/// What a helper shall do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) mode: JobMode,
    /// Left out for stores whose holds have no lease of their own.
    pub(crate) lease: Option<Duration>,
    pub(crate) task: Task,
    /// It plays a process in a thread: what dies with that thread must not be kept alive by the rest of the process.
    #[serde(default)]
    pub(crate) in_a_thread: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum JobMode {
    Exclusive,
    Shared,
    Permit(u32),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Waits for the lock, and keeps it.
    Hold,
    /// Adds 1 to the number in a file under the lock, many times.
    Count { file: PathBuf, times: u32 },
}

/// A job and where to do it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) harness: String,
    pub(crate) address: String,
    pub(crate) identity: String,
    pub(crate) job: Job,
}

/// If this process was started as a helper, does its job with a client that `connect` makes from
/// [`Harness::address`], and gives the exit code; `None` otherwise.
///
/// Call it first thing in `main`, before any server is started.
pub fn serve(connect: impl AsyncFnOnce(&str) -> Result<Arc<dyn Backend>>) -> Option<ExitCode> {
    let order = order()?;
    let address = order.address.clone();
    Some(help(order, async { connect(&address).await }))
}

pub(crate) fn serve_harness(harnesses: &[Arc<dyn Harness>]) -> Option<ExitCode> {
    let order = order()?;
    let Some(harness) = harnesses.iter().find(|h| h.name() == order.harness) else {
        say_aloud(&format!("failed: no harness {:?}", order.harness));
        return Some(ExitCode::FAILURE);
    };
    Some(help(order, harness.connect()))
}

fn order() -> Option<Order> {
    let text = std::env::var(JOB).ok()?;
    match serde_json::from_str(&text) {
        Ok(order) => Some(order),
        Err(error) => {
            say_aloud(&format!("failed: {JOB} cannot be read: {error}"));
            std::process::exit(1);
        }
    }
}

fn say_aloud(line: &str) {
    println!("{PREFIX}{line}");
    // Nobody reads any more when the test is over.
    let _ = std::io::stdout().flush();
}

fn help(order: Order, connect: impl Future<Output = Result<Arc<dyn Backend>>>) -> ExitCode {
    let (tell, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { break };
            if tell.send(line).is_err() {
                return;
            }
        }
        std::process::exit(1); // the test is gone
    });
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            say_aloud(&format!("failed: no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        let backend = connect.await?;
        if backend.identity() != order.identity {
            return Err(Error::invalid(format!(
                "the helper is connected to {:?}, the test to {:?}: call process::serve first thing in main",
                backend.identity(),
                order.identity
            )));
        }
        work(backend, &order.job, &say_aloud, commands, &|| {}).await
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_aloud(&format!("failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub(crate) async fn work(
    backend: Arc<dyn Backend>,
    job: &Job,
    say: &(dyn Fn(&str) + Sync),
    mut commands: mpsc::UnboundedReceiver<String>,
    pause: &(dyn Fn() + Sync),
) -> Result<()> {
    let mut settings = Settings::new();
    if let Some(lease) = job.lease {
        settings = settings.lease(lease);
    }
    let locks = Locks::builder(backend)
        .settings(settings)
        .standby(!job.in_a_thread)
        .build()?;
    let (file, times) = match &job.task {
        Task::Hold => {
            say("asking");
            let guard = lock(&locks, job).await?;
            say("held");
            while let Some(command) = commands.recv().await {
                match command.as_str() {
                    "check" => say(&format!("is_held {}", guard.is_held())),
                    "pause" => pause(),
                    "exit" => {
                        // As a program that ends without a word: no destructor runs.
                        std::mem::forget(guard);
                        return Ok(());
                    }
                    "release" => {
                        say(&format!("{:?}", guard.release().await?));
                        return locks.close().await;
                    }
                    other => return Err(Error::invalid(format!("no command {other:?}"))),
                }
            }
            return Ok(());
        }
        Task::Count { file, times } => (file, *times),
    };
    for _ in 0..times {
        let guard = lock(&locks, job).await?;
        let failed = |error| {
            Error::new(ErrorKind::Store, "the counter's file is not usable").with_source(error)
        };
        let number: u64 = std::fs::read_to_string(file)
            .map_err(failed)?
            .trim()
            .parse()
            .map_err(|_| Error::invalid("the counter's file holds no number"))?;
        tokio::task::yield_now().await;
        std::fs::write(file, (number + 1).to_string()).map_err(failed)?;
        let released = guard.release().await?;
        if released != Released::Freed {
            return Err(Error::new(
                ErrorKind::Lost,
                format!("a release under no stress says {released:?}"),
            ));
        }
    }
    locks.close().await?;
    say("done");
    Ok(())
}

async fn lock(locks: &Locks, job: &Job) -> Result<Guard> {
    match job.mode {
        JobMode::Exclusive => locks.mutex(&job.name)?.lock().await,
        JobMode::Shared => locks.rw_lock(&job.name)?.read().await,
        JobMode::Permit(limit) => locks.semaphore(&job.name, limit)?.acquire().await,
    }
}
