//! Where the token comes from.
//!
//! The token is made by the scripts: `max(last + 1, server time in microseconds)`. The lock's key keeps the last one, so that tokens
//! increase also when the clock does not; and since it is a time, they increase also when the key was lost (eviction, fail-over).
//!
//! An exclusive hold has [`TURNS`] tokens in a row, and the store gives the last of them: `max(last + TURNS, server time)`. So the
//! tokens of one lock run ahead of the clock when it is granted more than 15,625 times a second (once in 64 µs). A grant is a trip to the client
//! and back; the scripts of a grant and its release take the server some 15 µs by themselves, so a fast client could get
//! there; that this one does was not seen, and how near it comes is not measured yet. Passing a hold on among the tasks of a client is no grant.

use dlock_core::backend::{Lease, Request};
use dlock_core::{FencingToken, LockInfo, Mode, Moment};

/// How many tokens an exclusive hold has; `scripts/parts/value.lua` says the same.
pub(crate) const TURNS: u32 = 64;

/// The first token of a hold, of which the store has the last.
pub(crate) fn first_of(last: u64, mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => last.saturating_sub(u64::from(TURNS) - 1),
        _ => last,
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

/// The hold of a request, by the token that the store has given.
pub(crate) fn lease(request: &Request, from: Moment, last: u64) -> Lease {
    Lease::new(request, from).with_token(first_of(last, request.mode()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_set_aside_as_many_tokens_as_a_hold_has() {
        let value = include_str!("scripts/parts/value.lua");
        assert!(value.contains(&format!("local TURNS = {TURNS}\n")));
        assert_eq!(TURNS, crate::node::TURNS);
        assert_eq!(first_of(1063, Mode::Exclusive), 1000);
        assert_eq!(first_of(1063, Mode::Shared), 1063);
    }
}
