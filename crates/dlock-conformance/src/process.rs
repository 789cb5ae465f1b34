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
//! # use dlock_core::{Backend, Result};
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

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;
use std::time::Duration;

use dlock_core::{
    Backend, Capabilities, Error, ErrorKind, Guard, Locks, Reach, Released, Result, Settings,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::Harness;

const JOB: &str = "DLOCK_CONFORMANCE_JOB";
const PREFIX: &str = "dlock-helper: ";

/// What a helper shall do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) mode: JobMode,
    /// Left out for stores whose holds have no lease of their own.
    pub(crate) lease: Option<Duration>,
    pub(crate) task: Task,
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
struct Order {
    harness: String,
    address: String,
    identity: String,
    job: Job,
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

async fn work(
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
    let locks = Locks::builder(backend).settings(settings).build()?;
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

/// Set by `main`: this program, started again, knows what to do.
static STARTS_ITSELF: AtomicBool = AtomicBool::new(false);

pub(crate) fn can_start_myself() {
    STARTS_ITSELF.store(true, Ordering::Relaxed);
}

/// Why no helper can be started; `None` when one can.
pub(crate) fn missing(capabilities: &Capabilities, harness: &dyn Harness) -> Option<String> {
    let can = capabilities.reach == Reach::Process
        || STARTS_ITSELF.load(Ordering::Relaxed)
        || harness.helper().is_some();
    (!can).then(|| {
        "helper processes need a test whose main is dlock_conformance::main, or Harness::helper"
            .to_owned()
    })
}

/// A helper at work: a process, or for a store that only reaches one process, a thread with a runtime of its own.
pub(crate) struct Worker {
    lines: mpsc::UnboundedReceiver<String>,
    body: Body,
}

enum Body {
    Process {
        child: Child,
        input: ChildStdin,
    },
    Thread {
        commands: mpsc::UnboundedSender<String>,
        kill: Option<oneshot::Sender<()>>,
        resume: blocking::Sender<()>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Worker {
    pub(crate) fn start(
        harness: &Arc<dyn Harness>,
        capabilities: &Capabilities,
        identity: &str,
        job: Job,
    ) -> Self {
        if capabilities.reach == Reach::Process {
            return Self::thread(harness.clone(), job);
        }
        let order = Order {
            harness: harness.name().to_owned(),
            address: harness.address(),
            identity: identity.to_owned(),
            job,
        };
        let mut command = harness.helper().unwrap_or_else(|| {
            Command::new(std::env::current_exe().expect("the path of this program"))
        });
        let mut child = command
            .env(
                JOB,
                serde_json::to_string(&order).expect("an order is JSON"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the helper starts");
        let (tell, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(PREFIX)
                    && tell.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        let input = child.stdin.take().expect("it is piped");
        Self {
            lines,
            body: Body::Process { child, input },
        }
    }

    fn thread(harness: Arc<dyn Harness>, job: Job) -> Self {
        let (tell, lines) = mpsc::unbounded_channel();
        let (commands, commands_in) = mpsc::unbounded_channel();
        let (kill, killed) = oneshot::channel();
        let (resume, resumed) = blocking::channel::<()>();
        let resumed = std::sync::Mutex::new(resumed);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let say = |line: &str| {
                let _ = tell.send(line.to_owned());
            };
            let pause = || {
                let _ = resumed.lock().expect("not poisoned").recv();
            };
            runtime.block_on(async {
                let work = async {
                    let backend = harness.connect().await?;
                    work(backend, &job, &say, commands_in, &pause).await
                };
                tokio::select! {
                    biased;
                    _ = killed => {}
                    outcome = work => if let Err(error) = outcome {
                        say(&format!("failed: {error}"));
                    }
                }
            });
            // Nothing that runs in it gets to clean up.
            runtime.shutdown_background();
        });
        Self {
            lines,
            body: Body::Thread {
                commands,
                kill: Some(kill),
                resume,
                thread: Some(thread),
            },
        }
    }

    /// What the helper says next; `None` when it has ended.
    pub(crate) async fn line(&mut self) -> Option<String> {
        self.lines.recv().await
    }

    pub(crate) fn tell(&mut self, command: &str) {
        match &mut self.body {
            Body::Process { input, .. } => {
                writeln!(input, "{command}").expect("the helper listens");
            }
            Body::Thread { commands, .. } => {
                commands
                    .send(command.to_owned())
                    .expect("the helper listens");
            }
        }
    }

    /// Stops it without its knowing, by SIGSTOP or by blocking its thread.
    pub(crate) fn pause(&mut self) {
        match &self.body {
            Body::Process { child, .. } => signal(child, "-STOP"),
            Body::Thread { .. } => self.tell("pause"),
        }
    }

    pub(crate) fn resume(&mut self) {
        match &self.body {
            Body::Process { child, .. } => signal(child, "-CONT"),
            Body::Thread { resume, .. } => {
                let _ = resume.send(());
            }
        }
    }

    /// Ends it by SIGKILL, or by dropping its runtime.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        match &mut self.body {
            Body::Process { child, .. } => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Body::Thread {
                kill,
                resume,
                thread,
                ..
            } => {
                let _ = resume.send(());
                if let Some(kill) = kill.take() {
                    let _ = kill.send(());
                }
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
        }
    }
}

fn signal(child: &Child, signal: &str) {
    // The shell has it built in; a small system may lack the program.
    let status = Command::new("sh")
        .args(["-c", &format!("kill {signal} {}", child.id())])
        .status()
        .expect("a shell");
    assert!(status.success(), "kill {signal}: {status}");
}
