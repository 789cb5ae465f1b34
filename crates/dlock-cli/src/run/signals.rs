//! Every signal that can be caught is passed on to the command. Those that were ignored when we started stay ignored, for us
//! and for the command (nohup).

use std::future::poll_fn;
use std::task::Poll;

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
            if !HARMLESS.contains(&signal) {
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

/// A bit for each signal that we were told to ignore.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
