//! Which process wrote a line. It is asked only when the proof of life of that process is missing, because another program removed
//! the file: what is not there cannot be locked, and a holder that lives must not lose its lock by that ([C1](dlock_core::contract#c1)).

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A process, so that no other is mistaken for it. What cannot be known here is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) pid: u32,
    /// When it started: its number may be given to another later.
    start: u64,
    /// The namespaces in which its number and its start mean something: a container has its own.
    space: (u64, u64),
    /// Since which start of the machine.
    boot: u64,
}

static OURS: LazyLock<Origin> = LazyLock::new(|| Origin {
    pid: std::process::id(),
    start: start_of("self").unwrap_or_default(),
    space: (namespace("pid"), namespace("time")),
    boot: boot(),
});

impl Origin {
    pub(crate) fn ours() -> Self {
        OURS.clone()
    }

    /// Whether it may still live. In doubt it does: a lock that is kept too long is better than one with two holders.
    pub(crate) fn may_live(&self) -> bool {
        self.may_live_seen_from(&OURS)
    }

    fn may_live_seen_from(&self, viewer: &Self) -> bool {
        if self.boot != viewer.boot && self.boot != 0 && viewer.boot != 0 {
            return false;
        }
        if self.space != viewer.space || self.space.0 == 0 {
            // Of another container: its number means nothing here.
            return true;
        }
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return true;
        };
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return false;
        }
        match start_of(&self.pid.to_string()) {
            Some(start) if self.start != 0 => start == self.start,
            _ => true,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (processes, time) = self.space;
        let Self {
            pid, start, boot, ..
        } = self;
        write!(f, "{pid}.{start}.{processes}.{time}.{boot:x}")
    }
}

impl FromStr for Origin {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('.');
        let mut part = || parts.next().ok_or(());
        let origin = Self {
            pid: part()?.parse().map_err(|_| ())?,
            start: part()?.parse().map_err(|_| ())?,
            space: (
                part()?.parse().map_err(|_| ())?,
                part()?.parse().map_err(|_| ())?,
            ),
            boot: u64::from_str_radix(part()?, 16).map_err(|_| ())?,
        };
        match parts.next() {
            None => Ok(origin),
            Some(_) => Err(()),
        }
    }
}

/// In ticks since the machine started; `None` where it cannot be read.
fn start_of(process: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in parentheses, may hold anything; the state is the third field, and the start the 22nd.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(target_os = "linux")]
fn namespace(kind: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |found| found.ino())
}

/// There is only one.
#[cfg(not(target_os = "linux"))]
fn namespace(_kind: &str) -> u64 {
    1
}

fn boot() -> u64 {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .and_then(|id| uuid::Uuid::parse_str(id.trim()).ok())
        .map_or(0, |id| id.as_u64_pair().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let ours = Origin::ours();
        assert_eq!(ours.to_string().parse(), Ok(ours.clone()));
        for text in ["", "1", "1.2.3.4", "1.2.3.4.5.6", "x.2.3.4.5"] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_is_surely_gone_is_dead() {
        let ours = Origin {
            boot: 7,
            ..Origin::ours()
        };
        // Ended and collected: the number is free, or another's.
        let mut ended = std::process::Command::new("true").spawn().expect("a child");
        let number = ended.id();
        ended.wait().expect("its end");
        let of = |change: fn(&mut Origin)| {
            let mut other = ours.clone();
            change(&mut other);
            other
        };
        for (what, origin, may_live) in [
            ("this process", ours.clone(), true),
            (
                "a number that was given to another",
                of(|o| o.start += 1),
                false,
            ),
            ("an earlier start of the machine", of(|o| o.boot = 8), false),
            ("an unknown start of the machine", of(|o| o.boot = 0), true),
            ("another container", of(|o| o.space = (2, 2)), true),
            ("no idea where", of(|o| o.space = (0, 0)), true),
            (
                "another user's",
                Origin {
                    pid: 1,
                    start: 0,
                    ..ours.clone()
                },
                true,
            ),
            (
                "a process that has ended",
                Origin {
                    pid: number,
                    ..ours.clone()
                },
                false,
            ),
        ] {
            assert_eq!(origin.may_live_seen_from(&ours), may_live, "{what}");
        }
    }
}
