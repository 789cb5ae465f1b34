//! What `--on-lost` says.

use std::process::{Command, Stdio};
use std::str::FromStr;

use rustix::process::Signal;
#[cfg(target_os = "linux")]
use rustix_libc_wrappers::process::SignalExt;

use crate::exit::say;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// SIGTERM, and SIGKILL before the lock can pass to another.
    Kill,
    /// Only this signal; the command decides.
    Signal(Signal),
    /// This shell line first, and then as [`Kill`](Self::Kill).
    Exec(String),
    Ignore,
}

impl OnLost {
    /// Whether the command is ended before the lock can pass to another.
    pub(crate) fn stops(&self) -> bool {
        matches!(self, Self::Kill | Self::Exec(_))
    }

    /// Starts the shell line beside the command. Nobody waits for it: the lock's time runs.
    pub(crate) fn start(line: &str, environment: &[(&str, String)], group: i32) {
        let started = Command::new("sh")
            .args(["-c", line])
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .env("DLOCK_GROUP", group.to_string())
            .stdin(Stdio::null())
            .spawn();
        if let Err(error) = started {
            say(format_args!("cannot start the line of --on-lost: {error}"));
        }
    }
}

const NAMES: &[(&str, Signal)] = &[
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("WINCH", Signal::WINCH),
];

impl FromStr for OnLost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kill" => return Ok(Self::Kill),
            "ignore" => return Ok(Self::Ignore),
            _ => {}
        }
        if let Some(line) = text.strip_prefix("exec:").filter(|line| !line.is_empty()) {
            return Ok(Self::Exec(line.to_owned()));
        }
        let Some(name) = text.strip_prefix("signal:") else {
            return Err(
                "write kill, ignore, exec:LINE or signal:NAME, for example signal:USR1".to_owned(),
            );
        };
        let upper = name.to_ascii_uppercase();
        let plain = upper.strip_prefix("SIG").unwrap_or(&upper);
        let by_name = NAMES.iter().find(|(known, _)| *known == plain);
        let by_number = || plain.parse().ok().and_then(numbered);
        by_name
            .map(|(_, signal)| *signal)
            .or_else(by_number)
            .map(Self::Signal)
            .ok_or_else(|| {
                let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                format!(
                    "{name:?} is no signal; known are {} and numbers",
                    known.join(", ")
                )
            })
    }
}

/// Real-time signals have no other name.
fn numbered(number: i32) -> Option<Signal> {
    #[cfg(target_os = "linux")]
    return Signal::from_raw(number);
    #[cfg(not(target_os = "linux"))]
    Signal::from_named_raw(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_signal_is_understood() {
        for text in ["signal:USR1", "signal:usr1", "signal:SIGUSR1", "signal:10"] {
            assert_eq!(text.parse(), Ok(OnLost::Signal(Signal::USR1)), "{text}");
        }
        assert_eq!("kill".parse(), Ok(OnLost::Kill));
        let line = OnLost::Exec("echo a b".to_owned());
        assert_eq!("exec:echo a b".parse(), Ok(line));
        assert!("exec:".parse::<OnLost>().is_err());
        #[cfg(target_os = "linux")]
        {
            assert!(matches!("signal:40".parse(), Ok(OnLost::Signal(s)) if s.as_raw() == 40));
            assert!(
                "signal:32".parse::<OnLost>().is_err(),
                "the C library's own"
            );
        }
        let error = "signal:NOPE".parse::<OnLost>().expect_err("unknown");
        assert!(error.contains("USR1"), "{error}");
        let error = "stop".parse::<OnLost>().expect_err("unknown");
        assert!(error.contains("signal:NAME"), "{error}");
    }
}
