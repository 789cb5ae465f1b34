//! Local turns, lingering locks, losses and ranges of tokens, walked through state by state (C1, C11, C21).
//!
//! Two clients want one lock of a store that grants leases of a few ticks, each grant with several tokens. A release passes the hold on to
//! the next local task while the local time lasts, lets it rest, or gives it back; the store tells a holder that listens when the other client waits, or never does; an owner
//! enters again; readers join. Every stay has a longest time. Messages come in any order and up to [`LATE`](rules::LATE) ticks late, one may be
//! lost, and one client may die at any moment. The walk looks at every state that can come of it. Then each rule is broken in turn ([`Defect`]), and the walk must
//! find what that does: a rule whose breach goes unnoticed is not modelled.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and says how much it has seen"
)]

mod rules;

use rules::{Defect, Rules};
use stateright::{Checker, HasDiscoveries, Model};

const ONE_GUARD: &str = "one guard at a time";
const TOKENS: &str = "tokens increase";
const TIME_LEFT: &str = "a guard begins with time left";
const NO_REST: &str = "what others wait for does not rest";
const BOUNDS: &str = "others wait no longer than the bounds";
const ALL_GET_IN: &str = "everybody gets in";

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
    walk(Rules::unkind(1, 0)).assert_properties();
}

#[test]
fn every_rule_together_is_safe_when_a_client_dies() {
    walk(Rules::unkind(0, 1)).assert_properties();
}

#[test]
fn others_wait_within_the_bounds_for_turns() {
    walk(Rules::turns()).assert_properties();
}

#[test]
fn others_wait_within_the_bounds_for_rests_where_the_store_tells() {
    walk(Rules::told()).assert_properties();
}

#[test]
fn others_wait_within_the_bounds_for_rests_where_the_store_never_tells() {
    walk(Rules::never_told()).assert_properties();
}

#[test]
fn an_owner_that_enters_again_keeps_others_out() {
    walk(Rules::reentry()).assert_properties();
}

#[test]
fn a_writer_waits_within_the_bounds_for_readers_who_join() {
    let checker = walk(Rules::readers());
    for property in [ONE_GUARD, TOKENS, TIME_LEFT, BOUNDS, ALL_GET_IN] {
        checker.assert_no_discovery(property);
    }
}

#[test]
fn each_rule_is_missed() {
    let (losing, calm) = (Rules::unkind(1, 0), Rules::unkind(0, 0));
    for (defect, rules, found_by) in [
        (Defect::TokensNotSetAside, &calm, TOKENS),
        (Defect::MoreTurnsThanTokens, &calm, TOKENS),
        (Defect::ResumesWhatIsGivenBack, &calm, ONE_GUARD),
        (Defect::ResumesWithoutAClock, &losing, TIME_LEFT),
        (Defect::RestsThoughWanted, &calm, NO_REST),
        (Defect::RestsForEver, &losing, ALL_GET_IN),
        (Defect::ReleasesWhateverIsHeld, &losing, ONE_GUARD),
        (Defect::ValidFromTheAnswer, &calm, ONE_GUARD),
        (Defect::PassesOnForEver, &Rules::turns(), BOUNDS),
        (Defect::NeverListens, &Rules::told(), BOUNDS),
        (Defect::EveryRestAnew, &Rules::never_told(), BOUNDS),
        (Defect::JoinsForEver, &Rules::readers(), BOUNDS),
        (
            Defect::KeepsTheLongestHoldOfTheOneBefore,
            &Rules::reentry(),
            TIME_LEFT,
        ),
        (
            Defect::LeavesWithTheFirstGuard,
            &Rules::reentry(),
            ONE_GUARD,
        ),
    ] {
        let checker = rules
            .but(defect)
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
