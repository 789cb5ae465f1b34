//! A child process that ends with us, and that can be stopped, continued and killed.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::Doing;
use crate::{Error, Result, program};

/// How long a process may take to end when it is asked to.
const TERMINATE_LIMIT: Duration = Duration::from_secs(60);

/// A running program. It is killed when this value is dropped, and also when the test process dies, however it dies.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    pid: Pid,
    /// Names this very process: a signal through it can never reach a later process with the same id.
    pidfd: OwnedFd,
}

impl Process {
    /// Starts `command`, with its output appended to the file `log`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(command: &Command, log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .doing(format!("open {}", log.display()))?;
        let err = out.try_clone().doing("share the log file")?;

        let mut wrapped = Command::new(program::find("setpriv", "util-linux")?);
        wrapped
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            wrapped.current_dir(folder);
        }
        wrapped.stdin(Stdio::null()).stdout(out).stderr(err);

        let child = spawn_from_lasting_thread(wrapped).doing(format!("start {name}"))?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).doing(format!("open process {name}"))?;
        Ok(Self {
            child: Mutex::new(child),
            pid,
            pidfd,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it has not ended. A frozen process is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.child().try_wait(), Ok(None))
    }

    /// Kills it (SIGKILL), and returns when it is gone.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.child().wait().ok();
    }

    /// Asks it to end (SIGTERM), and waits until it has. A frozen process is thawed, for else it could not.
    ///
    /// # Errors
    /// When it has not ended after a minute; it is killed then.
    pub async fn terminate(&self) -> Result<()> {
        self.end_by(Signal::TERM).await
    }

    /// The same by another signal.
    pub(crate) async fn end_by(&self, signal: Signal) -> Result<()> {
        self.signal(signal);
        self.signal(Signal::CONT);
        let Ok(ended) = timeout(TERMINATE_LIMIT, self.ended()).await else {
            self.kill();
            let what = format!("process {} ends when asked to", self.pid());
            return Err(Error::TimedOut {
                what,
                limit: TERMINATE_LIMIT,
                last: "killed".into(),
            });
        };
        ended?;
        self.child().wait().doing("collect an ended process")?;
        Ok(())
    }

    /// Stops it (SIGSTOP), and returns when all its threads stand still. The system keeps its connections open.
    ///
    /// # Panics
    /// When it is not running: there is nothing to freeze, and the test that asks is wrong.
    #[track_caller]
    pub fn freeze(&self) {
        assert!(self.is_running(), "process {} is not running", self.pid());
        self.signal(Signal::STOP);
        // The stop is done when the parent could be told of it. NOWAIT leaves the report, and an exit, to `wait`.
        let told = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(self.pid), told), Err(Errno::INTR)) {}
    }

    /// Lets it run on (SIGCONT) after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Resolves when it has ended.
    ///
    /// A thread of its own waits, not one of the runtime: a runtime that shuts down meanwhile must not wait with it.
    async fn ended(&self) -> Result<()> {
        let watched = self.pidfd.try_clone().doing("watch a process")?;
        let (tell, told) = oneshot::channel();
        thread::spawn(move || {
            // NOWAIT leaves the exit status to `wait`.
            let exit = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let wait = || waitid(WaitId::PidFd(watched.as_fd()), exit);
            tell.send(std::iter::repeat_with(wait).find(|told| !matches!(told, Err(Errno::INTR))))
                .ok();
        });
        told.await.ok();
        Ok(())
    }

    /// Sends a signal. A process that has ended cannot be told anything, which is what every caller wants.
    fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).ok();
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processes that work in this folder, or in one below it, whoever is their parent by now.
pub(crate) fn processes_in(folder: &Path) -> Vec<Pid> {
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|id| id.parse().ok());
        // One that has ended meanwhile works nowhere.
        let works_in = fs::read_link(entry.path().join("cwd"));
        if let (Some(pid), Ok(works_in)) = (pid.and_then(Pid::from_raw), works_in)
            && works_in.starts_with(&folder)
        {
            found.push(pid);
        }
    }
    found
}

/// One order to the spawning thread.
struct Order {
    command: Command,
    reply: mpsc::Sender<io::Result<Child>>,
}

/// Spawns from a thread that lives as long as this process.
///
/// The kernel sends the parent-death signal when the *thread* that made the child ends, so a server started by a test
/// thread or a worker of a short-lived runtime would die with it.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for mut order in inbox {
                    order.reply.send(order.command.spawn()).ok();
                }
            })
            .expect("a thread can be started");
        orders
    });
    let (reply, answer) = mpsc::channel();
    SPAWNER
        .send(Order { command, reply })
        .expect("the spawner never ends");
    answer.recv().expect("the spawner always answers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;

    fn sleeper(folder: &Folder) -> Process {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Process::spawn(&command, &folder.file("log")).unwrap()
    }

    /// The letter that /proc shows for the state of a process.
    fn state(process: &Process) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    #[test]
    fn a_process_outlives_the_thread_that_started_it() {
        let folder = Folder::new("process").unwrap();
        let start = || {
            let process = sleeper(&folder);
            // Only then has the wrapper asked for the signal.
            while std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap()
                != "sleep\n"
            {
                thread::yield_now();
            }
            (
                process,
                Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap()),
            )
        };
        let (process, thread) = thread::scope(|scope| scope.spawn(start).join().unwrap());
        // A thread is still exiting when it can be joined; once it is out of /proc, its signals have been sent.
        while thread.exists() {
            thread::yield_now();
        }
        assert!(process.is_running());
        process.freeze();
        assert_eq!(state(&process), 'T');
    }

    #[test]
    fn a_frozen_process_stands_still_and_can_be_killed() {
        let folder = Folder::new("process").unwrap();
        let process = sleeper(&folder);
        for _ in 0..3 {
            process.freeze();
            assert_eq!(state(&process), 'T');
            process.thaw();
            assert_ne!(state(&process), 'T');
        }
        process.freeze();
        process.kill();
        assert!(!process.is_running());
    }

    #[tokio::test]
    async fn terminate_ends_a_frozen_process() {
        let folder = Folder::new("process").unwrap();
        let process = sleeper(&folder);
        process.freeze();
        process.terminate().await.unwrap();
        assert!(!process.is_running());
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let folder = Folder::new("process").unwrap();
        let process = sleeper(&folder);
        let pid = process.pid();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn the_output_goes_to_the_log() {
        let folder = Folder::new("process").unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo out; echo $WORD >&2"])
            .env("WORD", "err");
        let process = Process::spawn(&command, &folder.file("log")).unwrap();
        process.child().wait().unwrap();
        assert_eq!(
            std::fs::read_to_string(folder.file("log")).unwrap(),
            "out\nerr\n"
        );
    }
}
