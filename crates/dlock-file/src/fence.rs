//! Where the token comes from: the last one is kept in the gate's file, for all names behind that gate.

use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::{Mode, Result};

use crate::error::failed;
use crate::gate::Gate;

/// How many tokens an exclusive grant sets aside: the tasks of one client pass the hold on so often. Few, because a counter that is
/// lost begins again at the clock: tokens should not run ahead of it for long, and a grant of a file takes about so many microseconds.
pub(crate) const TURNS: u32 = 64;

impl Gate {
    /// Higher than every token of this gate before ([C11](dlock_core::contract#c11)). It is at least the time in microseconds, so that it also increases
    /// over a runtime folder that is emptied at log-out, and over a disk that lost the last writes with its power.
    pub(crate) fn next_token(&self, mode: Mode) -> Result<u64> {
        let mut bytes = [0; 8];
        // A new file is shorter: there was no token.
        let last = match self.file.read_at(&mut bytes, 0) {
            Ok(8) => u64::from_le_bytes(bytes),
            Ok(_) => 0,
            Err(error) => return Err(failed("read", &self.path, error)),
        };
        let token = next(last, now_micros());
        self.file
            .write_all_at(&last_of(token, mode).to_le_bytes(), 0)
            .map_err(|error| failed("write", &self.path, error))?;
        Ok(token)
    }
}

fn next(last: u64, now: u64) -> u64 {
    last.saturating_add(1).max(now)
}

fn last_of(token: u64, mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => token.saturating_add(u64::from(TURNS) - 1),
        _ => token,
    }
}

pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_increase_whatever_the_clock_does() {
        assert_eq!(next(0, 1000), 1000);
        assert_eq!(next(1000, 1000), 1001, "two in one microsecond");
        assert_eq!(next(1001, 500), 1002, "a clock that was set back");
        assert_eq!(next(0, 2000), 2000, "a counter that was lost");
    }

    #[test]
    fn an_exclusive_hold_has_a_token_for_each_turn() {
        assert_eq!(last_of(1000, Mode::Exclusive), 1000 + u64::from(TURNS) - 1);
        assert_eq!(last_of(1000, Mode::Shared), 1000);
        assert_eq!(next(last_of(1000, Mode::Exclusive), 1000), 1064);
    }
}
