//! The terminal goes to the command's process group while it runs, as a shell does it, and comes back at the end.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
// In a container the group or the session of a process may be one outside of it, whose id reads as 0: rustix's functions
// take that for impossible.
use nix::unistd::{getpgid, getpgrp, getppid, getsid};
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal, whatever stdin is.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
}

impl Terminal {
    /// `None` when there is none: under cron, in a service, in a pipe of another session.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Self { tty })
    }

    /// Whether our own process group has it.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| Some(group) == our_group())
    }

    /// Gives it to a group, if it is ours to give.
    pub(crate) fn give(&self, group: Pid) {
        if self.is_ours() {
            let _ = tcsetpgrp(&self.tty, group);
        }
    }

    /// Takes it for our own process group.
    pub(crate) fn take(&self) {
        let Some(group) = our_group() else {
            return;
        };
        // From the background this would stop us, unless the signal is blocked.
        let blocked = block_ttou();
        let _ = tcsetpgrp(&self.tty, group);
        if blocked {
            let _ = ttou().thread_unblock();
        }
    }

    /// Takes it back from a group that has it, dead or alive. `true` when it had it.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        let had_it = tcgetpgrp(&self.tty).is_ok_and(|owner| owner == group);
        if had_it {
            self.take();
        }
        had_it
    }
}

fn ttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTTOU);
    set
}

/// `true` when it was not blocked before.
fn block_ttou() -> bool {
    let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    !before.contains(Signal::SIGTTOU) && ttou().thread_block().is_ok()
}

/// `None` when its leader is outside of the container we are in.
fn our_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

/// Whether somebody outside of our process group looks after it, who can continue it after a stop: a shell with job control.
pub(crate) fn has_job_control() -> bool {
    let Ok(session) = getsid(None) else {
        return false;
    };
    let ancestors = std::iter::successors(Some(getppid()), |pid| parent_of(*pid))
        // Process 0 is one outside of our container.
        .take_while(|pid| pid.as_raw() > 0)
        .map_while(|pid| Some((getsid(Some(pid)).ok()?, getpgid(Some(pid)).ok()?)))
        .map(|(session, group)| (session.as_raw(), group.as_raw()));
    is_looked_after((session.as_raw(), getpgrp().as_raw()), ancestors)
}

/// By the session and the group of a process and of its ancestors. An id of 0 is one outside of our container.
fn is_looked_after(own: (i32, i32), ancestors: impl IntoIterator<Item = (i32, i32)>) -> bool {
    let (session, group) = own;
    ancestors
        .into_iter()
        // What another session does is not about us.
        .take_while(|(theirs, _)| *theirs == session)
        .any(|(_, other)| other != group)
}

fn parent_of(pid: nix::unistd::Pid) -> Option<nix::unistd::Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold anything; the state and the parent follow.
    let (_, rest) = stat.rsplit_once(')')?;
    let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
    Some(nix::unistd::Pid::from_raw(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_group_of_our_session_can_continue_us() {
        for (what, own, ancestors, expected) in [
            (
                "a shell with job control",
                (10, 20),
                &[(10, 10), (1, 1)][..],
                true,
            ),
            (
                "its script without",
                (10, 20),
                &[(10, 20), (10, 10), (1, 1)],
                true,
            ),
            (
                "a leader of a session",
                (20, 20),
                &[(10, 10), (1, 1)],
                false,
            ),
            ("a script in one", (20, 20), &[(20, 20), (1, 1)], false),
            ("a service", (20, 20), &[(1, 1)], false),
            ("nobody above", (20, 20), &[], false),
            // In a container that was entered from outside, as CI does it: session and group are those of the one who entered.
            ("all outside", (0, 0), &[], false),
            ("a script outside", (0, 0), &[(0, 0), (1, 1)], false),
            ("a group of our own there", (0, 30), &[(0, 0)], true),
        ] {
            let found = is_looked_after(own, ancestors.iter().copied());
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn our_own_ids_can_be_asked_for_wherever_we_are() {
        // Outside of a session of the container these ids are 0: no panic, whatever the answer is.
        let _ = has_job_control();
        let _ = our_group();
    }
}
