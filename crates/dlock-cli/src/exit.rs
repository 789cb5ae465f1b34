//! Exit codes, and what is said with them: one line on stderr that tells what to do.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::error::ErrorKind as Parsing;
use dlocks::{Error, ErrorKind};

/// A doctor's finding, or a demo that went wrong.
pub(crate) const UNSAFE: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const LOST: u8 = 80;
pub(crate) const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// How `dlock run` ends: as its command did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Code(u8),
    /// By this signal, so that a shell around us does what it would do if the command were its own: a script stops at Ctrl-C.
    Signal(i32),
}

/// A line on stderr. Whoever does not read it, or has no room for it, is no reason to end.
pub(crate) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "dlock: {line}");
}

/// Ends this process by a signal. Returns the code to exit with when that cannot be done.
pub(crate) fn by_the_signal(number: i32) -> u8 {
    // What we catch, and no safe call can undo, has its default action again in the program that we become.
    let _ = std::process::Command::new(crate::run::myself())
        .arg0("dlock")
        .args(["__end", &number.to_string()])
        .exec();
    by_signal(number)
}

/// What that program does.
pub(crate) fn end_by(number: i32) -> u8 {
    use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
    let code = by_signal(number);
    let Some(signal) = Signal::from_named_raw(number) else {
        return code;
    };
    if let Ok(named) = nix::sys::signal::Signal::try_from(number) {
        let mut set = nix::sys::signal::SigSet::empty();
        set.add(named);
        let _ = set.thread_unblock();
    }
    // The core that matters is the command's.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    // The first process of a container ends by no signal of its own.
    if getpid() != Pid::INIT {
        // The first SIGSEGV or SIGBUS ends in the handler of Rust's runtime, which then leaves it to the system.
        let _ = kill_process(getpid(), signal);
        let _ = kill_process(getpid(), signal);
    }
    code
}

/// The exit code, or the line to print with one.
pub(crate) type ExitResult = Result<u8, Failure>;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Conflict => USAGE,
            ErrorKind::Busy => NOT_ACQUIRED,
            ErrorKind::Lost => LOST,
            _ => UNAVAILABLE,
        };
        Self::new(code, error.to_string())
    }
}

/// As shells do: 128 and the signal's number.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(u8::MAX, |number| number.saturating_add(128))
}

/// Help and version are answers; anything else is one line and 64.
pub(crate) fn of_parsing(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), Parsing::DisplayHelp | Parsing::DisplayVersion) {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == Parsing::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(USAGE);
    }
    say(one_line(&error.render().to_string()));
    ExitCode::from(USAGE)
}

/// clap explains over several lines; what matters stands before the usage.
fn one_line(text: &str) -> String {
    let before_usage = text.split("\nUsage:").next().unwrap_or_default();
    let before_usage = before_usage.split("\nFor more").next().unwrap_or_default();
    let words: Vec<&str> = before_usage.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    format!("{line} (see dlock --help)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_the_codes_that_the_manual_names() {
        for (kind, code) in [
            (ErrorKind::Invalid, 64),
            (ErrorKind::Unsupported, 64),
            (ErrorKind::Conflict, 64),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::TimedOut, 69),
            (ErrorKind::Denied, 69),
            (ErrorKind::Store, 69),
            (ErrorKind::Busy, 75),
            (ErrorKind::Lost, 80),
        ] {
            assert_eq!(Failure::from(Error::new(kind, "")).code, code, "{kind:?}");
        }
        assert_eq!(by_signal(15), 143);
    }

    #[test]
    fn a_usage_error_is_one_line() {
        let text = "error: unexpected argument '--x' found\n\n  tip: maybe '--y'\n\nUsage: dlock run\n\nFor more";
        assert_eq!(
            one_line(text),
            "unexpected argument '--x' found tip: maybe '--y' (see dlock --help)"
        );
    }
}
