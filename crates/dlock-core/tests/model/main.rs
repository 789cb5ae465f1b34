//! Local turns, lingering locks, losses and ranges of tokens, walked through state by state (C1, C11, C21).
//!
//! Two clients with two tasks want one lock of a store that grants leases of a few ticks, each grant with [`TURNS`] tokens. A release passes the hold on to
//! the next local task, lets it rest, or gives it back; the store tells a holder when the other client waits. Messages come in any
//! order and up to [`LATE`] ticks late, one may be lost, and one client may die at any moment. The walk looks at every state that
//! can come of it. Then each rule is broken in turn ([`Defect`]), and the walk must find what that does: a rule whose
//! breach goes unnoticed is not modelled.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and says how much it has seen"
)]

mod rules;

use rules::{Defect, Rules};
use stateright::{Checker, HasDiscoveries, Model};

/// Two writers are never in at once; tokens increase; nobody begins without time; what others wait for does not rest; all get in.
const PROPERTIES: [&str; 5] = [
    "one guard at a time",
    "tokens increase",
    "a guard begins with time left",
    "what others wait for does not rest",
    "everybody gets in",
];

fn walk(rules: Rules) -> impl Checker<Rules> {
    let checker = rules.checker().threads(2).spawn_dfs().join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker
}

#[test]
fn every_rule_together_is_safe_when_a_message_is_lost() {
    walk(Rules::new(1, 0)).assert_properties();
}

#[test]
fn every_rule_together_is_safe_when_a_client_dies() {
    walk(Rules::new(0, 1)).assert_properties();
}

#[test]
fn each_rule_is_missed() {
    for (defect, losses, found_by) in [
        (Defect::TokensNotSetAside, 0, PROPERTIES[1]),
        (Defect::MoreTurnsThanTokens, 0, PROPERTIES[1]),
        (Defect::ResumesWhatIsGivenBack, 0, PROPERTIES[0]),
        (Defect::ResumesWithoutAClock, 1, PROPERTIES[2]),
        (Defect::RestsThoughWanted, 0, PROPERTIES[3]),
        (Defect::RestsForEver, 1, PROPERTIES[4]),
        (Defect::ReleasesWhateverIsHeld, 1, PROPERTIES[0]),
        (Defect::ValidFromTheAnswer, 0, PROPERTIES[0]),
    ] {
        let rules = Rules {
            defect: Some(defect),
            ..Rules::new(losses, 0)
        };
        let checker = rules
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyOf([found_by].into()))
            .spawn_bfs()
            .join();
        assert!(
            checker.discovery(found_by).is_some(),
            "{defect:?} was not found by {found_by:?}"
        );
    }
}
