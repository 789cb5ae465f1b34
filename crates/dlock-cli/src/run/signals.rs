//! Every signal that can be caught is passed on to the command. Those that were ignored when we started stay ignored, for us
//! and for the command (nohup).

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal as Named};
use rustix::process::Signal;
#[cfg(target_os = "linux")]
use rustix_libc_wrappers::process::SignalExt;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::{self, Failure};

/// Not among them: SIGCHLD, which is for us; SIGTTIN and SIGTTOU, which stop whoever is in the background; SIGPIPE and faults, which
/// would be our own.
const CAUGHT: &[Signal] = &[
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TRAP,
    Signal::ABORT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TERM,
    Signal::CONT,
    Signal::TSTP,
    Signal::URG,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::VTALARM,
    Signal::PROF,
    Signal::WINCH,
    Signal::IO,
    Signal::SYS,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Signal::POWER,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Signal::STKFLT,
];

/// Those that end no program by default.
const HARMLESS: &[Signal] = &[Signal::CONT, Signal::TSTP, Signal::URG, Signal::WINCH];

/// Whether it ends a program that does nothing about it.
pub(crate) fn is_deadly(signal: Signal) -> bool {
    !HARMLESS.contains(&signal)
}

#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    children: Stream,
}

/// What woke us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// To be passed on.
    Signal(Signal),
    /// Something happened to a child.
    Child,
}

impl Signals {
    pub(crate) fn catch() -> Result<Self, Failure> {
        let failed =
            |error| Failure::new(exit::UNAVAILABLE, format!("cannot catch signals: {error}"));
        let ignored = ignored();
        let mut streams = Vec::new();
        for caught in CAUGHT.iter().copied().chain(real_time()) {
            let number = caught.as_raw();
            if ignored & (1 << (number - 1)) == 0 {
                let stream = signal(SignalKind::from_raw(number)).map_err(failed)?;
                streams.push((caught, stream));
            }
        }
        Ok(Self {
            streams,
            children: signal(SignalKind::child()).map_err(failed)?,
        })
    }

    /// The next thing that the kernel told us.
    pub(crate) async fn next(&mut self) -> Event {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(Event::Signal(*signal));
                }
            }
            if let Poll::Ready(Some(())) = self.children.poll_recv(context) {
                return Poll::Ready(Event::Child);
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that would have ended us, while there is no command yet.
    pub(crate) async fn deadly(&mut self) -> i32 {
        loop {
            let Event::Signal(signal) = self.next().await else {
                continue;
            };
            if signal == Signal::TSTP {
                // Caught for the command's sake; now it is for us.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            }
            if is_deadly(signal) {
                return signal.as_raw();
            }
        }
    }
}

/// Those without a name of their own, as many as the C library leaves to programs.
fn real_time() -> impl Iterator<Item = Signal> {
    #[cfg(target_os = "linux")]
    let all = (0..).map_while(Signal::rt);
    // The runtime does not know them elsewhere.
    #[cfg(not(target_os = "linux"))]
    let all = std::iter::empty();
    all
}

fn only(signal: Named) -> SigSet {
    let mut set = SigSet::empty();
    set.add(signal);
    set
}

fn child() -> SigSet {
    only(Named::SIGCHLD)
}

/// Blocks SIGCONT, by which the shim is told to go on, before it is started: it inherits that, and the signal waits for it. `true` when
/// it was not blocked before.
pub(crate) fn block_cont() -> bool {
    let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    !before.contains(Named::SIGCONT) && only(Named::SIGCONT).thread_block().is_ok()
}

pub(crate) fn unblock_cont() {
    let _ = only(Named::SIGCONT).thread_unblock();
}

/// In the shim: waits until it is told.
pub(crate) fn wait_for_cont() {
    let _ = only(Named::SIGCONT).wait();
}

/// A caller may have blocked the signal that tells of children, and we wait for it. `true` when it was blocked.
pub(crate) fn unblock_child() -> bool {
    let before = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    before.contains(Named::SIGCHLD) && child().thread_unblock().is_ok()
}

/// For the command, as its caller wanted it.
pub(crate) fn block_child() {
    let _ = child().thread_block();
}

/// A bit for each signal that we were told to ignore.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_else(ignored_by_trial)
}

/// Without `/proc`: a child inherits what is ignored, so one that survives a signal to itself tells.
fn ignored_by_trial() -> u64 {
    let deadly = CAUGHT.iter().filter(|signal| !HARMLESS.contains(signal));
    deadly
        .map(|signal| signal.as_raw())
        .filter(|number| {
            let trial = std::process::Command::new("sh")
                // No core for the sake of a question.
                .args(["-c", "ulimit -c 0; kill -$0 $$; exit 0"])
                .arg(number.to_string())
                .status();
            trial.is_ok_and(|status| status.success())
        })
        .fold(0, |mask, number| mask | 1 << (number - 1))
}
