//! Where the token comes from: the last one is kept in the gate's file, for all names behind that gate.

use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::Result;

use crate::error::failed;
use crate::gate::Gate;

/// How many tokens a grant sets aside: the tasks of one client pass the hold on so often. Few enough that the tokens do not run
/// ahead of the clock, since a grant takes longer than so many microseconds together with its turns.
pub(crate) const TURNS: u32 = 64;

impl Gate {
    /// Higher than every token of this gate before (C11). It is at least the time in microseconds, so that it also increases
    /// over a runtime folder that is emptied at log-out, and over a disk that lost the last writes with its power.
    pub(crate) fn next_token(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        // A new file is shorter: there was no token.
        let last = match self.file.read_at(&mut bytes, 0) {
            Ok(8) => u64::from_le_bytes(bytes),
            Ok(_) => 0,
            Err(error) => return Err(failed("read", &self.path, error)),
        };
        let token = next(last, now_micros());
        self.file
            .write_all_at(&last_of(token).to_le_bytes(), 0)
            .map_err(|error| failed("write", &self.path, error))?;
        Ok(token)
    }
}

fn next(last: u64, now: u64) -> u64 {
    last.saturating_add(1).max(now)
}

fn last_of(token: u64) -> u64 {
    token.saturating_add(u64::from(TURNS) - 1)
}

pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn tokens_increase_whatever_the_clock_does() {
        assert_eq!(next(0, 1000), 1000);
        assert_eq!(next(1000, 1000), 1001, "two in one microsecond");
        assert_eq!(next(1001, 500), 1002, "a clock that was set back");
        assert_eq!(next(0, 2000), 2000, "a counter that was lost");
    }
}
