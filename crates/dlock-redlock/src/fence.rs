//! The number that a quorum agrees on, and the tokens that it stands for.
//!
//! A node counts in steps of [`TURNS`] for those who hold alone, so an attempt that owns a number at a node owns as many before it there, and what it
//! owns at a quorum nobody else ever does. The number is the last token of the hold: the nodes, votes, raises and proofs know no other.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::{FencingToken, LockInfo, Mode};
pub(crate) use dlock_redis::node::TURNS;

/// The number to propose as the token: our clock, in microseconds. Only a hint, with which the nodes mostly agree at once; that
/// tokens are unique and in order does not rest on it.
pub(crate) fn clock_hint() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
    // A node without a counter takes it as it is, and the hold has as many tokens up to it: also with a clock before 1970.
    micros.max(u64::from(TURNS))
}

/// The first token of a hold, by the number that a quorum agreed on.
pub(crate) fn first_of(last: u64, mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => last.saturating_sub(u64::from(TURNS) - 1),
        _ => last,
    }
}

/// The other way round.
pub(crate) fn last_of(first: u64, mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => first.saturating_add(u64::from(TURNS) - 1),
        _ => first,
    }
}

/// What is known of a lock, with the first token of each hold, as its guard began with.
pub(crate) fn with_first_tokens(mut info: LockInfo) -> LockInfo {
    for holder in &mut info.holders {
        let first = |last: FencingToken| FencingToken::new(first_of(last.get(), holder.mode));
        holder.token = holder.token.map(first);
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_alone_has_several_tokens() {
        assert_eq!(first_of(1063, Mode::Exclusive), 1000);
        assert_eq!(last_of(1000, Mode::Exclusive), 1063);
        assert_eq!(first_of(1063, Mode::Shared), 1063);
    }
}
