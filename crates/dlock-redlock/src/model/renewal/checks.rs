//! What is walked through, and what must come of it.

use stateright::{Checker, Model};

use super::{Mistake, Rules};
use crate::stake::Mask;

fn check(rules: Rules) -> impl Checker<Rules> {
    let checker = rules
        .checker()
        .threads(2)
        .target_state_count(MOST)
        .spawn_dfs()
        .join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker
}

/// Of a space that is too large for a test, the first so many are looked at.
const MOST: usize = 12_000_000;
const ALL: Mask = 0b111;
const BARE: Mask = 0b011;

fn rules(given: Mask, rounds: u8, ends: u8, others: u8) -> Rules {
    Rules {
        rounds,
        ends,
        others,
        given,
        mistake: Mistake::None,
    }
}

#[test]
fn nobody_is_told_of_a_hold_that_others_have_had() {
    // The last: a node that others have had is repaired, and counts in the third renewal. Larger spaces, up to three renewals, two ends and
    // two takers (26 million states), were walked through by hand and found right; they take a minute.
    for rules in [
        rules(ALL, 2, 2, 2),
        rules(BARE, 2, 1, 2),
        rules(ALL, 3, 1, 1),
    ] {
        let checker = check(rules);
        assert!(checker.state_count() < MOST, "not all were looked at");
        checker.assert_no_discovery("nothing is extended that others have held");
        checker.assert_any_discovery("extended");
        if rules.others >= 2 {
            checker.assert_any_discovery("lost after others held it");
        }
        if rules.rounds >= 3 {
            checker.assert_any_discovery("a repaired node counts again");
        }
    }
}

#[test]
fn the_model_finds_what_would_be_wrong() {
    for mistake in [Mistake::EveryRepairCounts, Mistake::EveryExtensionCounts] {
        let rules = Rules {
            mistake,
            ..rules(ALL, 2, 2, 2)
        };
        check(rules).assert_any_discovery("nothing is extended that others have held");
    }
}
