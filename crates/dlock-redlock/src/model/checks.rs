//! What is walked through, and what must come of it.

use stateright::{Checker, Model};

use super::{Rules, Step, representative};

/// Looks at every state, or at the first so many of a space that is too large for a test.
fn check(rules: Rules, at_most: usize) -> impl Checker<Rules> {
    let checker = rules
        .checker()
        .threads(2)
        .symmetry_fn(representative)
        .target_state_count(at_most)
        .spawn_dfs()
        .join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker
}

fn writers(attempts: Vec<u8>) -> Rules {
    Rules {
        attempts,
        shared: false,
        strays: 0,
        amnesia: 0,
        careless: false,
    }
}

fn readers(attempts: Vec<u8>) -> Rules {
    Rules {
        shared: true,
        ..writers(attempts)
    }
}

const ALL: usize = 20_000_000;
const MANY: usize = 1_000_000;

fn no_counterexample(checker: &impl Checker<Rules>) {
    checker.assert_no_discovery("tokens are unique");
    checker.assert_no_discovery("tokens are ordered");
}

/// Two attempts, of which one may have a clock that is behind.
#[test]
fn tokens_of_writers_are_unique_and_ordered() {
    for attempts in [vec![0, 0], vec![3, 0]] {
        let checker = check(writers(attempts), ALL);
        assert!(checker.state_count() < ALL, "not all were looked at");
        checker.assert_properties();
    }
}

#[test]
fn tokens_of_readers_are_unique_and_ordered() {
    let checker = check(readers(vec![2, 0]), ALL);
    assert!(checker.state_count() < ALL, "not all were looked at");
    checker.assert_properties();
}

/// A request that arrives a second time, at any moment.
#[test]
fn requests_that_arrive_twice_do_no_harm() {
    for rules in [writers(vec![0, 2]), readers(vec![0, 0])] {
        let rules = Rules { strays: 1, ..rules };
        no_counterexample(&check(rules, MANY));
    }
}

#[test]
fn tokens_of_three_attempts_are_unique_and_ordered() {
    no_counterexample(&check(writers(vec![0, 2, 0]), MANY));
    no_counterexample(&check(readers(vec![0, 2, 0]), MANY));
}

/// A node that acknowledges a number which another attempt wrote gives one token to two: the model sees such mistakes.
#[test]
fn a_careless_raise_is_found() {
    let rules = Rules {
        careless: true,
        ..readers(vec![0, 0])
    };
    let checker = check(rules, ALL);
    checker.assert_any_discovery("tokens are unique");
}

/// The known hole (R33): a node that lost its data may be the only one that two quorums have in common.
#[test]
fn amnesia_breaks_the_order() {
    let rules = Rules {
        amnesia: 1,
        ..writers(vec![0, 0])
    };
    let checker = check(rules, ALL);
    let hole = checker
        .discovery("tokens are ordered")
        .or_else(|| checker.discovery("tokens are unique"));
    let steps = hole.expect("the checker finds the hole").into_actions();
    assert!(steps.iter().any(|step| matches!(step, Step::Forget(_))));
}
