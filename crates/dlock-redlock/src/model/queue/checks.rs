//! What is walked through, and what must come of it.

use stateright::{Checker, Model};

use super::{Mistake, Queues};

const ALL: usize = 20_000_000;

fn check(rules: Queues) -> impl Checker<Queues> {
    let checker = rules.checker().threads(2).target_state_count(ALL);
    let checker = checker.spawn_dfs().join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    assert!(checker.state_count() < ALL, "not all were looked at");
    checker
}

fn queues(waiters: usize, down: usize, mistake: Mistake) -> Queues {
    Queues {
        waiters,
        down,
        lost_calls: 0,
        lost_places: 0,
        late: 0,
        split: false,
        mistake,
    }
}

#[test]
fn everybody_who_waits_gets_the_lock() {
    for (waiters, down) in [(2, 0), (2, 1), (3, 1)] {
        check(queues(waiters, down, Mistake::None)).assert_properties();
    }
}

/// A lost call is found by the next sign of life, and a forgotten place is taken again.
#[test]
fn lost_calls_and_places_stop_nobody() {
    for (down, lost_calls, lost_places) in [(0, 1, 0), (0, 0, 1), (1, 1, 1)] {
        let rules = Queues {
            lost_calls,
            lost_places,
            ..queues(2, down, Mistake::None)
        };
        let checker = check(rules);
        checker.assert_no_discovery("one at a time");
        checker.assert_no_discovery("nobody waits for ever");
    }
}

/// A request to give way that comes again, when its attempt may have been given the node anew and hold the lock by it, takes nothing away.
#[test]
fn late_request_to_give_way_takes_no_later_grant() {
    for split in [false, true] {
        let rules = Queues {
            late: 1,
            split,
            ..queues(2, 0, Mistake::None)
        };
        let checker = check(rules);
        checker.assert_no_discovery("one at a time");
        checker.assert_no_discovery("nobody waits for ever");
    }
}

/// Without the number of the grant it does: two hold the lock at the same time.
#[test]
fn giving_way_without_a_number_is_found() {
    let rules = Queues {
        late: 1,
        split: true,
        ..queues(2, 0, Mistake::GivesWayWithoutNumber)
    };
    check(rules).assert_any_discovery("one at a time");
}

/// Where nodes have different orders, or nobody gives way, or two give way to each other, they block each other for ever.
#[test]
fn mistakes_of_the_queue_are_found() {
    for mistake in [
        Mistake::NodesNumber,
        Mistake::StandsTooLate,
        Mistake::NobodyGivesWay,
    ] {
        let checker = check(queues(2, 1, mistake));
        let found = checker.discovery("nobody waits for ever");
        assert!(found.is_some(), "{mistake:?}");
        checker.assert_no_discovery("one at a time");
    }
    let rules = Queues {
        lost_calls: 1,
        ..queues(2, 1, Mistake::NoSignsOfLife)
    };
    let checker = check(rules);
    checker.assert_any_discovery("nobody waits for ever");
}
