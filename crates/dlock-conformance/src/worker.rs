//! Helpers as the suite sees them: started, told what to do, stopped, killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc as blocking};
use std::thread::JoinHandle;

use dlock_core::{Capabilities, Reach};
use tokio::sync::{mpsc, oneshot};

use crate::Harness;
use crate::process::{JOB, Job, Order, PREFIX, work};

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

/// Why no helper can be started whose time of day is wrong; `None` when one can.
pub(crate) fn missing_skewed(capabilities: &Capabilities, harness: &dyn Harness) -> Option<String> {
    if capabilities.reach == Reach::Process {
        return Some("helpers are threads, and a process has one clock".to_owned());
    }
    missing(capabilities, harness).or_else(|| {
        let found = skewed_env(0).is_some();
        (!found).then(|| "the program faketime (libfaketime) is not installed".to_owned())
    })
}

/// The environment of a process that is to be so many seconds ahead of the right time of day. What counts elapsed time is not moved.
pub(crate) fn skewed_env(ahead: i64) -> Option<Vec<(&'static str, String)>> {
    static LIBRARY: OnceLock<Option<String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // It knows where its library is, which differs from machine to machine.
        let asked = Command::new("faketime")
            .args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"])
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8(asked.stdout).ok()?;
        Some(text.trim().to_owned()).filter(|path| asked.status.success() && !path.is_empty())
    });
    Some(vec![
        ("LD_PRELOAD", library.clone()?),
        ("FAKETIME", format!("{ahead:+}")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ])
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
        Self::start_with(harness, capabilities, identity, job, &[])
    }

    /// Starts it with more in its environment.
    pub(crate) fn start_with(
        harness: &Arc<dyn Harness>,
        capabilities: &Capabilities,
        identity: &str,
        job: Job,
        env: &[(&'static str, String)],
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
            .envs(env.iter().map(|(name, value)| (name, value)))
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

    fn thread(harness: Arc<dyn Harness>, mut job: Job) -> Self {
        job.in_a_thread = true;
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
