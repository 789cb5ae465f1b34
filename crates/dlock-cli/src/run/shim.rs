//! The short life between `dlock` and the command: this process was started by `dlock` from itself, arranges what must be
//! arranged inside the child, and then becomes the command. That needs no code between fork and exec, so no unsafe code.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use rustix::process::getppid;

use crate::exit::{self, say};
use crate::run::signals;
use crate::run::terminal::Terminal;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The process id of dlock.
    #[arg(long)]
    parent: i32,
    /// Take the terminal.
    #[arg(long)]
    foreground: bool,
    /// Block the signal that tells of children, as it was when dlock was started.
    #[arg(long)]
    block_child: bool,
    /// Wait for SIGCONT before anything runs: somebody has to know of our group first.
    #[arg(long)]
    wait: bool,
    /// Unblock SIGCONT after that.
    #[arg(long)]
    unblock_cont: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only when it fails.
pub(crate) fn become_command(args: &ExecArgs) -> u8 {
    // From here on the kernel kills us, and the command we become, when dlock dies.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    if let Err(error) =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
    {
        say(format_args!("cannot tie the command to the lock: {error}"));
        return exit::CANNOT_EXECUTE;
    }
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(args.parent) {
        // It died before we asked to be told.
        return exit::by_signal(9);
    }
    if args.wait {
        signals::wait_for_cont();
    }
    if args.unblock_cont {
        signals::unblock_cont();
    }
    if args.foreground
        && let Some(terminal) = Terminal::open()
    {
        terminal.take();
    }
    if args.block_child {
        signals::block_child();
    }
    let Some((program, rest)) = args.command.split_first() else {
        return exit::USAGE;
    };
    let error = Command::new(program).args(rest).exec();
    let shown = program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        say(format_args!("command not found: {shown}"));
        exit::NOT_FOUND
    } else {
        say(format_args!("cannot execute {shown}: {error}"));
        exit::CANNOT_EXECUTE
    }
}
