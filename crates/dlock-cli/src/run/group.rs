//! The command and everything it starts: one process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, test_kill_process_group, wait,
};

use crate::exit::{self, Failure};
use crate::run::terminal::Terminal;

#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
}

/// What became of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The command has ended, with the code to exit with.
    Ended(u8),
    /// The command was stopped, by this signal.
    Stopped(i32),
    /// Something else that it left behind has ended.
    Other,
}

impl Group {
    /// Starts the command by way of the shim, so that it dies with us.
    pub(crate) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
        terminal: Option<&Terminal>,
    ) -> Result<Self, Failure> {
        // What the command leaves behind becomes our child, so that we see it end.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
        let foreground = terminal.is_some_and(Terminal::is_ours);
        let mut shim = Command::new(myself());
        shim.arg0("dlock")
            .arg("__exec")
            .arg(format!("--parent={}", getpid().as_raw_nonzero()))
            .args(foreground.then_some("--foreground"))
            .arg("--")
            .args(command)
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .process_group(0);
        let child = shim.spawn().map_err(|error| {
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

    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// To the whole group; harmless when it is gone.
    pub(crate) fn send(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    pub(crate) fn is_gone(&self) -> bool {
        test_kill_process_group(self.leader).is_err()
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
            News::Ended(exit::by_signal(signal))
        } else {
            let code = status.exit_status().unwrap_or_default();
            News::Ended(u8::try_from(code).unwrap_or(u8::MAX))
        })
    }
}

/// This very program, also when its file was replaced meanwhile.
pub(crate) fn myself() -> std::path::PathBuf {
    if cfg!(target_os = "linux") {
        return "/proc/self/exe".into();
    }
    std::env::current_exe().unwrap_or_else(|_| "dlock".into())
}
