//! Where tokens come from: each grant of a name has a number that is above all before it, drawn from a sequence ([C11](dlock_core::contract#c11)).
//!
//! A hold has [`TURNS`] tokens in a row, one for each task of the client to which it is passed on ([C21](dlock_core::contract#c21)): from
//! `number * TURNS` to just below those of the next number. In the tables stand the numbers, so a sweep, a restart and a fail-over know nothing of it. Tokens
//! stay below 2^53 up to number 2^47, and fit a signed 64-bit column up to 2^57: a thousand grants and places in queues a second for 4,000 years, and
//! for 4 million. A hold with a later number is refused, and undone: a token that does not increase would be worse.

use crate::error::Trouble;

/// How many tokens a hold has.
pub(crate) const TURNS: u32 = 64;

/// The first token of the hold with this number.
pub(crate) fn token(number: i64) -> Result<u64, Trouble> {
    let first = number.checked_mul(i64::from(TURNS));
    first
        // The last one must fit too.
        .filter(|first| first.checked_add(i64::from(TURNS) - 1).is_some())
        .and_then(|first| u64::try_from(first).ok())
        .ok_or_else(|| Trouble::unexpected_reply("a number that makes no token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_hold_lie_below_those_of_the_next() {
        let first = |number| token(number).expect("a token");
        for number in [1, 2, 1000, (1 << 47) - 1] {
            let last = first(number) + u64::from(TURNS) - 1;
            assert!(last < first(number + 1));
            assert!(last < 1 << 53, "what JSON and JavaScript keep");
            // Those of the versions before were the number itself.
            assert!(first(number) > number.cast_unsigned());
        }
    }

    #[test]
    fn tokens_that_would_not_fit_are_refused_in_doubt() {
        let last = (1_i64 << 57) - 1;
        let highest = token(last).expect("the last that fits") + u64::from(TURNS) - 1;
        assert_eq!(highest, i64::MAX.cast_unsigned());
        for number in [last + 1, i64::MAX, -1] {
            let trouble = token(number).expect_err("no token");
            assert!(trouble.is_sent(), "what was taken is undone");
        }
    }
}
