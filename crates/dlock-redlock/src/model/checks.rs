//! What is walked through, and what must come of it.

use stateright::{Checker, Model};

use super::Who::{OlderWriter, Reader, Writer};
use super::{Mistake, Rules, Step, Who, representative};

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

fn rules(attempts: &[(Who, u8)]) -> Rules {
    Rules {
        attempts: attempts.to_vec(),
        strays: 0,
        amnesia: 0,
        mistake: Mistake::None,
    }
}

/// With what they propose.
fn writers(proposals: &[u8]) -> Rules {
    rules(&proposals.iter().map(|p| (Writer, *p)).collect::<Vec<_>>())
}

fn readers(proposals: &[u8]) -> Rules {
    rules(&proposals.iter().map(|p| (Reader, *p)).collect::<Vec<_>>())
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
    for proposals in [[0, 0], [3, 0], [5, 0]] {
        let checker = check(writers(&proposals), ALL);
        assert!(checker.state_count() < ALL, "not all were looked at");
        checker.assert_properties();
    }
}

#[test]
fn tokens_of_readers_are_unique_and_ordered() {
    let checker = check(readers(&[2, 0]), ALL);
    assert!(checker.state_count() < ALL, "not all were looked at");
    checker.assert_properties();
}

/// All tokens of a writer are its own, whoever comes before or after it: a reader, or a client of the version before, which takes one.
#[test]
fn tokens_of_a_writer_beside_others_are_unique_and_ordered() {
    for other in [Reader, OlderWriter] {
        for (writer, theirs) in [(0, 0), (2, 0), (0, 2)] {
            let checker = check(rules(&[(Writer, writer), (other, theirs)]), ALL);
            assert!(checker.state_count() < ALL, "not all were looked at");
            no_counterexample(&checker);
            checker.assert_any_discovery("all held it one after the other");
        }
    }
    let three = rules(&[(Writer, 0), (Reader, 0), (Writer, 2)]);
    no_counterexample(&check(three, MANY));
}

/// Nodes that count by one give the tokens of a writer's later turns to the next one.
#[test]
fn tokens_that_are_not_set_aside_are_found() {
    for attempts in [
        [(Writer, 0), (Writer, 0)],
        [(Writer, 4), (OlderWriter, 0)],
        [(Writer, 0), (Reader, 0)],
    ] {
        let rules = Rules {
            mistake: Mistake::NothingSetAside,
            ..rules(&attempts)
        };
        let checker = check(rules, ALL);
        let found = checker.discovery("tokens are ordered");
        let found = found.or_else(|| checker.discovery("tokens are unique"));
        assert!(found.is_some(), "{attempts:?}");
    }
}

/// A request that arrives a second time, at any moment.
#[test]
fn requests_that_arrive_twice_do_no_harm() {
    for rules in [writers(&[0, 2]), readers(&[0, 0])] {
        let rules = Rules { strays: 1, ..rules };
        no_counterexample(&check(rules, MANY));
    }
}

#[test]
fn tokens_of_three_attempts_are_unique_and_ordered() {
    no_counterexample(&check(writers(&[0, 2, 0]), MANY));
    no_counterexample(&check(readers(&[0, 2, 0]), MANY));
}

/// A node that acknowledges a number which another attempt wrote gives one token to two: the model sees such mistakes.
#[test]
fn a_careless_raise_is_found() {
    let rules = Rules {
        mistake: Mistake::CarelessRaise,
        ..readers(&[0, 0])
    };
    let checker = check(rules, ALL);
    checker.assert_any_discovery("tokens are unique");
}

/// The known hole: a node that lost its data may be the only one that two quorums have in common.
#[test]
fn amnesia_breaks_the_order() {
    let rules = Rules {
        amnesia: 1,
        ..writers(&[0, 0])
    };
    let checker = check(rules, ALL);
    let hole = checker
        .discovery("tokens are ordered")
        .or_else(|| checker.discovery("tokens are unique"));
    let steps = hole.expect("the checker finds the hole").into_actions();
    assert!(steps.iter().any(|step| matches!(step, Step::Forget(_))));
}
