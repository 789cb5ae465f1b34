//! A small process that ends the command's whole group when `dlock` is killed. The kernel does that for the command itself (see
//! the shim), but not for what the command has started, and not for a command that runs as another user.
//!
//! It holds the reading end of a pipe whose other end only `dlock` has, so it sees its end however that comes. It is no part of
//! the command's group or of ours, has none of our files open but stderr, and no signal but SIGKILL ends it.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::exit::{self, Failure, say};
use crate::run::group::{Left, left, myself};

/// Between two looks at a group that was killed, and how many.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 250;
/// What `dlock` says when there is nothing more to do.
const DISMISSED: &str = "done";

#[derive(Debug)]
pub(crate) struct Keeper {
    process: Child,
}

impl Keeper {
    pub(crate) fn start() -> Result<Self, Failure> {
        let process = Command::new(myself())
            .arg0("dlock")
            .arg("__keep")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // To tell of those whom it cannot end, when nobody else can tell any more.
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                let text = format!("cannot start a process: {error}");
                Failure::new(exit::CANNOT_EXECUTE, text)
            })?;
        Ok(Self { process })
    }

    /// From now on the group ends with us.
    pub(crate) fn watch(&mut self, group: Pid) {
        self.say(&group.as_raw_nonzero().to_string());
    }

    /// The group is gone.
    pub(crate) fn dismiss(mut self) {
        self.say(DISMISSED);
        // In a container nobody else may collect it.
        let _ = self.process.wait();
    }

    fn say(&mut self, line: &str) {
        if let Some(ear) = &mut self.process.stdin {
            let _ = writeln!(ear, "{line}");
        }
    }
}

/// What the keeper does.
pub(crate) fn keep() -> u8 {
    let _ = SigSet::all().thread_block();
    let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
    let group = lines.next().and_then(|line| line.parse().ok());
    let Some(group) = group.and_then(Pid::from_raw) else {
        // It was killed before there was a group, or there will be none.
        return 0;
    };
    if lines.next().as_deref() == Some(DISMISSED) {
        return 0;
    }
    let mut found = Left::Somebody;
    for _ in 0..LOOKS {
        let _ = kill_process_group(group, Signal::KILL);
        found = left(group);
        if found != Left::Somebody {
            break;
        }
        std::thread::sleep(LOOK);
    }
    let group = group.as_raw_nonzero();
    match found {
        Left::Nobody => {}
        Left::OutOfReach => say(format_args!(
            "dlock was killed, and processes of group {group} run as another user: they go on without the lock"
        )),
        Left::Somebody => say(format_args!(
            "dlock was killed, and processes of group {group} do not end: they go on without the lock"
        )),
    }
    0
}
