//! The short life between `dlock` and the command: this process was started by `dlock` from itself, arranges what must be
//! arranged inside the child, and then becomes the command. That needs no code between fork and exec, so no unsafe code.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use rustix::process::getppid;

use crate::exit;
use crate::run::terminal::Terminal;

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The process id of dlock.
    #[arg(long)]
    parent: i32,
    /// Take the terminal.
    #[arg(long)]
    foreground: bool,
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
        eprintln!("dlock: cannot tie the command to the lock: {error}");
        return exit::CANNOT_EXECUTE;
    }
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(args.parent) {
        // It died before we asked to be told.
        return exit::by_signal(9);
    }
    if args.foreground
        && let Some(terminal) = Terminal::open()
    {
        terminal.take();
    }
    let Some((program, rest)) = args.command.split_first() else {
        return exit::USAGE;
    };
    let error = Command::new(program).args(rest).exec();
    let shown = program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!("dlock: command not found: {shown}");
        exit::NOT_FOUND
    } else {
        eprintln!("dlock: cannot execute {shown}: {error}");
        exit::CANNOT_EXECUTE
    }
}
