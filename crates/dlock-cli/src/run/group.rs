//! The command and everything it starts: one process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group,
    wait,
};

use crate::exit::{self, End, Failure};
use crate::run::processes;
use crate::run::signals;
use crate::run::terminal::Terminal;

#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
}

/// The shim waits until its group is known to whoever ends it with us: otherwise what the command starts at once could outlive us. Only
/// where the kernel ends the shim with us: elsewhere it would wait for ever.
const WAITS: bool = cfg!(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd"
));

/// What became of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The command has ended, and how.
    Ended(End),
    /// The command was stopped, by this signal.
    Stopped(i32),
    /// Something else that it left behind has ended.
    Other,
}

/// What is left of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nobody,
    Somebody,
    /// Processes that belong to another user now, as `sudo` starts them: we may not signal them.
    OutOfReach,
}

impl Group {
    /// Starts the command by way of the shim, so that it dies with us.
    pub(crate) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
        terminal: Option<&Terminal>,
        children_blocked: bool,
    ) -> Result<Self, Failure> {
        // What the command leaves behind becomes our child, so that we see it end.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
        let foreground = terminal.is_some_and(Terminal::is_ours);
        let unblock = signals::block_cont();
        let mut shim = Command::new(myself());
        shim.arg0("dlock")
            .arg("__exec")
            .arg(format!("--parent={}", getpid().as_raw_nonzero()))
            .args(foreground.then_some("--foreground"))
            .args(children_blocked.then_some("--block-child"))
            .args(WAITS.then_some("--wait"))
            .args(unblock.then_some("--unblock-cont"))
            .arg("--")
            .args(command)
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .process_group(0);
        let started = shim.spawn();
        if unblock {
            signals::unblock_cont();
        }
        let child = started.map_err(|error| {
            Failure::new(
                exit::CANNOT_EXECUTE,
                format!("cannot start a process: {error}"),
            )
        })?;
        let leader = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Failure::new(exit::CANNOT_EXECUTE, "the new process has no id"))?;
        if foreground && let Some(terminal) = terminal {
            // The shim does it too; whoever comes first.
            terminal.give(leader);
        }
        Ok(Self { leader })
    }

    /// Lets the command begin.
    pub(crate) fn begin(&self) {
        if WAITS {
            let _ = kill_process(self.leader, Signal::CONT);
        }
    }

    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// To the whole group; harmless when it is gone. `false` when nobody of it may be signalled by us.
    pub(crate) fn send(&self, signal: Signal) -> bool {
        kill_process_group(self.leader, signal) != Err(Errno::PERM)
    }

    pub(crate) fn left(&self) -> Left {
        left(self.leader)
    }

    /// The next thing that happened to a child, without waiting.
    pub(crate) fn news(&self) -> Option<News> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let (pid, status) = wait(options).ok().flatten()?;
        if pid != self.leader {
            return Some(News::Other);
        }
        Some(if let Some(signal) = status.stopping_signal() {
            News::Stopped(signal)
        } else if let Some(signal) = status.terminating_signal() {
            News::Ended(End::Signal(signal))
        } else {
            let code = status.exit_status().unwrap_or_default();
            News::Ended(End::Code(u8::try_from(code).unwrap_or(u8::MAX)))
        })
    }
}

/// What is left of the group with this id.
pub(crate) fn left(group: Pid) -> Left {
    match test_kill_process_group(group) {
        Err(Errno::PERM) => Left::OutOfReach,
        Err(_) => Left::Nobody,
        // Those that have ended can still be signalled until their parent collects them, which may never happen.
        Ok(()) if processes::all_have_ended(group) => Left::Nobody,
        Ok(()) => Left::Somebody,
    }
}

/// This very program, also when its file was replaced meanwhile.
pub(crate) fn myself() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() {
        return running.to_owned();
    }
    // Without /proc: as the caller found it. A name without a slash is looked for in PATH, as the caller did.
    std::env::current_exe().unwrap_or_else(|_| {
        std::env::args_os()
            .next()
            .map_or_else(|| "dlock".into(), PathBuf::from)
    })
}
