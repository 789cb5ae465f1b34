//! What the scripts with a queue are told with every call.

use std::fmt::Write;
use std::time::Duration;

use dlock_core::Mode;
use dlock_core::backend::AttemptId;

use crate::config::{Config, Style};
use crate::connect::millis;

/// The time to live of a fence counter has so many digits, so that the scripts find what follows it: 300 years.
const LONGEST: u64 = 9_999_999_999_999;

/// The settings of a client as its scripts read them: `lock.lua` says what is where.
#[derive(Debug, Clone)]
pub(crate) struct ScriptArgs {
    /// The order of waiters, and whether this is a cluster.
    style: &'static str,
    /// How permits are asked for: P, or L where their limit may change.
    permit: char,
    /// The lease of a waiter and the time to live of a fence counter.
    times: String,
    fence: u64,
    /// For everything but an acquire.
    plain: String,
}

impl ScriptArgs {
    pub(crate) fn new(config: &Config) -> Self {
        let style = match (config.style, config.is_cluster()) {
            (Style::Barging, false) => "B-",
            (Style::Barging, true) => "BC",
            (_, false) => "F-",
            (_, true) => "FC",
        };
        Self {
            permit: if config.limit_may_change { 'L' } else { 'P' },
            ..Self::with(style, config.waiter_lease, config.fence_ttl)
        }
    }

    fn with(style: &'static str, waiter_lease: Duration, fence: Duration) -> Self {
        let fence = millis(fence).min(LONGEST);
        let times = format!("{} {fence:013}", millis(waiter_lease));
        Self {
            style,
            permit: 'P',
            plain: format!("{style}- {times}"),
            times,
            fence,
        }
    }

    /// The same for a check: nothing of it is remembered longer than a moment.
    pub(crate) fn for_a_moment(&self) -> Self {
        let moment = Duration::from_millis(1);
        Self::with(self.style, moment, moment)
    }

    pub(crate) fn plain(&self) -> &str {
        &self.plain
    }

    /// For an acquire; with an inbox if the attempt is ready to wait.
    pub(crate) fn acquire(&self, mode: Mode, lease: Duration, inbox: &str) -> String {
        let mut text = String::with_capacity(64 + inbox.len());
        text.push_str(self.style);
        // Writing to a string cannot fail.
        let _ = match mode {
            Mode::Exclusive => text.write_char('X'),
            Mode::Shared => text.write_char('S'),
            Mode::Permit { limit } => write!(text, "{}{limit}", self.permit),
            // A mode of a later core, which asks only for those that the capabilities name: alone is always safe.
            _ => text.write_char('X'),
        };
        let _ = write!(text, " {} {} {inbox}", self.times, millis(lease));
        text
    }

    /// The end of the lock's value while `attempt` holds it.
    pub(crate) fn holder(&self, attempt: AttemptId, label: &str) -> Vec<u8> {
        let mut text = Vec::with_capacity(45 + label.len());
        text.extend_from_slice(&Attempt32::new(attempt).0);
        let mut left = self.fence;
        let mut digits = [b'0'; 13];
        for digit in digits.iter_mut().rev() {
            *digit += (left % 10) as u8;
            left /= 10;
        }
        text.extend_from_slice(&digits);
        text.extend_from_slice(label.as_bytes());
        text
    }

    /// How long the key of a lock lives that is held for `lease`, in milliseconds.
    pub(crate) fn lasts(&self, lease: Duration) -> u64 {
        millis(lease).saturating_add(self.fence)
    }

    pub(crate) fn fence(&self) -> String {
        self.fence.to_string()
    }
}

/// An attempt as it is written into the store: 32 hexadecimal digits, without a trip to the heap.
#[derive(Debug)]
pub(crate) struct Attempt32([u8; 32]);

impl Attempt32 {
    pub(crate) fn new(attempt: AttemptId) -> Self {
        let mut text = [0; 32];
        attempt.as_uuid().simple().encode_lower(&mut text);
        Self(text)
    }
}

impl AsRef<[u8]> for Attempt32 {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_find_everything_at_its_place() {
        let args = ScriptArgs::with("F-", Duration::from_secs(5), Duration::from_secs(86_400));
        assert_eq!(args.plain(), "F-- 5000 0000086400000");
        let lease = Duration::from_secs(30);
        assert_eq!(
            args.acquire(Mode::Exclusive, lease, "in"),
            "F-X 5000 0000086400000 30000 in"
        );
        assert_eq!(
            args.acquire(Mode::Permit { limit: 12 }, lease, ""),
            "F-P12 5000 0000086400000 30000 "
        );
        let changing = ScriptArgs {
            permit: 'L',
            ..args.clone()
        };
        assert_eq!(
            changing.acquire(Mode::Permit { limit: 3 }, lease, ""),
            "F-L3 5000 0000086400000 30000 "
        );
        let attempt = AttemptId::new();
        let holder = String::from_utf8(args.holder(attempt, "me")).expect("text");
        assert_eq!(holder, format!("{attempt}0000086400000me"));
        assert_eq!(args.lasts(lease), 86_430_000);
        let endless = ScriptArgs::with("F-", lease, Duration::MAX);
        assert_eq!(endless.holder(attempt, "").len(), 45);
    }
}
