//! Where the token comes from: a counter for each name, or the automatic numbers of a table, in steps of [`TURNS`].
//!
//! An exclusive hold has so many tokens in a row, for the tasks of its client that pass it on ([C21](dlock_core::contract#c21)). A counter of a name
//! keeps the *last* of them, where it kept the only one before: so a client that counts by one goes on above all of them. An automatic number, of
//! which our sessions draw every 64th, is the *first*: a server refuses one that is higher than it has drawn (error 1869).

/// How many tokens an exclusive grant sets aside. It stands for `{turns}` in statements.
pub(crate) const TURNS: u32 = 64;

/// The first token of an exclusive hold, of which the server has the last.
pub(crate) fn first_of(last: u64) -> u64 {
    // A client of the version before counts by one, so it may be as low as 1.
    last.saturating_sub(u64::from(TURNS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_grant_comes_after_the_last_of_the_one_before() {
        let turns = u64::from(TURNS);
        assert_eq!(first_of(turns), 1);
        assert_eq!(first_of(1000 + turns), 1001);
        assert_eq!(first_of(1), 0, "of a client that counts by one");
    }
}
