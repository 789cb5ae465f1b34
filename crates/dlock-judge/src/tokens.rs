//! C11: tokens are there, never come twice, and increase.

use std::collections::HashMap;

use crate::history::{History, Mode};
use crate::holds::{Hold, holds};
use crate::report::{Finding, Kind};

/// Looks at the tokens of every lock, where the store has any.
///
/// Whoever asked after another had been told has a higher token. Between two of whom one excludes the other that goes for the order in which
/// they were told as well: they cannot have held at once.
///
/// A client that does not know yet that its hold is gone passes it on among its own tasks (C21), with tokens that are lower than
/// those of who got the lock meanwhile. The grants were in order: what is wrong is that two held, so it is told as that.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    if !history.setup().fencing {
        return Vec::new();
    }
    let all = holds(history);
    let mut findings = Vec::new();
    for name in history.locks() {
        let mut seen: HashMap<u64, &Hold> = HashMap::new();
        let mut before: Vec<(&Hold, u64)> = Vec::new();
        for hold in all.iter().filter(|hold| hold.lock == name) {
            let mut find = |kind, why| findings.push(Finding::new(kind, name, hold.from, why));
            let Some(token) = hold.token else {
                find(Kind::TokenMissing, hold.text());
                continue;
            };
            if let Some(other) = seen.insert(token, hold) {
                let why = format!("{} and {}", other.text(), hold.text());
                find(Kind::TokenTwice, why);
            }
            let excludes = |other: &Hold| {
                [hold.mode, other.mode].contains(&Mode::Exclusive)
                    // Whoever was over before it was told may be told in any order.
                    && other.until > other.from
                    && hold.until > hold.from
            };
            let higher: Vec<_> = before
                .iter()
                .filter(|(other, higher)| {
                    *higher > token && (other.from < hold.asked || excludes(other))
                })
                .collect();
            // Neither asked after the other was told, and both held at once: they may have been told in any order, and what is wrong is the second holder.
            let at_once = |other: &Hold| other.from >= hold.asked && other.until > hold.from;
            let highest = |all: bool| {
                let those = higher.iter().filter(|(other, _)| all || !at_once(other));
                those.max_by_key(|(_, token)| *token)
            };
            if let Some((other, _)) = highest(false).or_else(|| highest(true)) {
                let why = format!("{} after {}", hold.text(), other.text());
                let is_turn = is_turn_of_an_older_hold(&before, hold, token, other);
                let kind = match at_once(other) || is_turn {
                    true => Kind::TwoHolders,
                    false => Kind::TokenOrder,
                };
                find(kind, why);
            }
            before.push((hold, token));
        }
    }
    findings
}

/// How many tokens a grant brings at most.
const TURNS: u64 = 64;

/// Whether the hold was passed on by a task of the same process that had it before the other one came.
fn is_turn_of_an_older_hold(
    before: &[(&Hold, u64)],
    hold: &Hold,
    token: u64,
    other: &Hold,
) -> bool {
    hold.mode == Mode::Exclusive
        && before.iter().any(|(earlier, first)| {
            earlier.process == hold.process
                && earlier.mode == Mode::Exclusive
                && earlier.from < other.from
                && (token.saturating_sub(TURNS - 1)..token).contains(first)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Op, Phase};
    use crate::testing::Script;

    fn kinds(script: &Script) -> Vec<Kind> {
        let found = check(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn increasing_tokens_are_good_and_each_lock_has_its_own() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 5, Some(20));
        script.hold(2, "m", Mode::Exclusive, 30, 6, Some(40));
        script.hold(2, "n", Mode::Exclusive, 35, 1, Some(40));
        assert_eq!(kinds(&script), []);
    }

    #[test]
    fn a_token_that_goes_back_comes_twice_or_is_missing_is_found() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 5, Some(20));
        script.hold(2, "m", Mode::Exclusive, 30, 4, Some(40));
        assert_eq!(kinds(&script), [Kind::TokenOrder]);
        script.hold(3, "m", Mode::Exclusive, 50, 5, Some(60));
        assert_eq!(kinds(&script), [Kind::TokenOrder, Kind::TokenTwice]);
        script.ask(3, Op::Try, "m", Mode::Exclusive, 70);
        script.answer(71, Phase::Ok, None, Some(80));
        assert!(kinds(&script).contains(&Kind::TokenMissing));
        script.setup(false, false);
        assert_eq!(kinds(&script), []);
    }

    #[test]
    fn who_passes_a_lost_hold_on_is_a_second_holder() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 64, Some(20));
        script.hold(2, "m", Mode::Exclusive, 30, 128, Some(40));
        script.hold(1, "m", Mode::Exclusive, 50, 65, Some(60));
        assert_eq!(kinds(&script), [Kind::TwoHolders]);
        // Not one who never had it before, and not by a number that no grant of its own has brought.
        script.hold(3, "m", Mode::Exclusive, 70, 66, Some(80));
        assert_eq!(kinds(&script), [Kind::TwoHolders, Kind::TokenOrder]);
        script.hold(2, "m", Mode::Exclusive, 90, 10, Some(95));
        assert_eq!(kinds(&script)[2..], [Kind::TokenOrder]);
    }

    #[test]
    fn two_who_hold_at_once_may_have_been_told_in_any_order() {
        let mut script = Script::new();
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, 10);
        script.answer(20, Phase::Ok, Some(500), Some(100));
        script.ask(2, Op::Acquire, "m", Mode::Exclusive, 15);
        script.answer(30, Phase::Ok, Some(400), Some(100));
        assert_eq!(kinds(&script), [Kind::TwoHolders]);
        // Not one who asked when another had been told, and not one after the other.
        script.ask(3, Op::Acquire, "m", Mode::Exclusive, 25);
        script.answer(40, Phase::Ok, Some(300), Some(100));
        assert_eq!(kinds(&script), [Kind::TwoHolders, Kind::TokenOrder]);
        script.hold(4, "m", Mode::Exclusive, 200, 200, Some(210));
        assert_eq!(kinds(&script)[2..], [Kind::TokenOrder]);
    }

    #[test]
    fn readers_who_asked_at_once_may_be_told_in_any_order() {
        let mut script = Script::new();
        script.ask(1, Op::Acquire, "r", Mode::Shared, 10);
        script.answer(20, Phase::Ok, Some(5), Some(100));
        script.ask(2, Op::Acquire, "r", Mode::Shared, 15);
        script.answer(30, Phase::Ok, Some(4), Some(100));
        assert_eq!(kinds(&script), []);
        script.ask(3, Op::Acquire, "r", Mode::Shared, 25);
        script.answer(40, Phase::Ok, Some(3), Some(100));
        assert_eq!(kinds(&script), [Kind::TokenOrder]);
    }
}
