use std::sync::Arc;

use dlock_core::backend::Request;
use dlock_core::{Mode, Name};

use super::*;
use dlock_core::SystemClock;

fn stake() -> Stake {
    let name = Name::new("a").expect("a name");
    Stake::of(&Request::new(name, Mode::Exclusive, Arc::new(SystemClock)))
}

fn number(number: u64) -> Grant {
    Grant {
        number,
        counts: true,
        twice: false,
    }
}

fn twice(grant: Grant) -> Grant {
    Grant {
        twice: true,
        ..grant
    }
}

fn give(stake: &Stake, node: usize, grant: Grant) {
    stake.begin(node).expect("allowed").gave(grant);
}

/// A hold with token 7, given by the first two nodes.
fn held() -> Stake {
    let stake = stake();
    give(&stake, 0, number(7));
    give(&stake, 1, number(5));
    stake.held(7);
    stake
}

#[test]
fn an_ended_stake_asks_nobody() {
    let stake = stake();
    let [zero, one, two] = [0, 1, 2].map(|node| stake.begin(node).expect("allowed"));
    assert!(stake.begin(2).is_none(), "one is under way");
    zero.gave(number(1));
    one.gave_nothing(false);
    drop(two);
    assert_eq!(stake.anywhere(), 0b101);
    assert!(stake.is_doubtful(2) && !stake.is_doubtful(0));
    stake.end();
    assert!(stake.begin(3).is_none());
}

#[tokio::test]
async fn a_release_between_request_and_answer_is_settled_by_the_answer() {
    let stake = stake();
    let [first, second, third] = [0, 1, 2].map(|node| stake.begin(node).expect("allowed"));
    stake.was_freed_before_the_answer(0);
    stake.was_freed_before_the_answer(2);
    assert_eq!(stake.freed(), 2);
    first.gave(number(1));
    third.gave(twice(number(1)));
    stake.answered(0b101).await;
    assert_eq!(stake.anywhere(), 0b110, "another request may follow");
    // Nobody waits for the second any more, so nobody learns what came of it.
    drop(second);
    stake.answered(0b11).await;
    assert!(stake.is_doubtful(1));
    // Not even a later answer tells.
    give(&stake, 1, number(1));
    assert!(stake.is_doubtful(1));
}

#[test]
fn a_late_grant_counts_if_nobody_with_a_higher_token_was_there() {
    let stake = held();
    assert_eq!(stake.begin_round().proven, 0b11);
    give(&stake, 2, number(7));
    assert_eq!(stake.begin_round().proven, 0b111);
    give(&stake, 3, number(8));
    assert_eq!(stake.begin_round().proven, 0b111);
    let young = Grant {
        counts: false,
        ..number(7)
    };
    give(&stake, 4, young);
    assert_eq!(stake.begin_round().proven, 0b111);
}

#[test]
fn a_number_above_the_token_that_came_before_it_does_not_count() {
    let stake = stake();
    for (node, its) in [8, 7, 7].into_iter().enumerate() {
        give(&stake, node, number(its));
    }
    stake.held(7);
    assert_eq!(stake.begin_round().proven, 0b110);
}

#[test]
fn a_repair_counts_if_the_node_still_named_us() {
    let stake = held();
    assert_eq!([0, 1, 2].map(|node| stake.proposal(node)), [9, 9, 7]);
    stake.lost(0);
    assert_eq!(stake.begin_round().proven, 0b10);
    give(&stake, 0, number(7));
    assert_eq!(stake.begin_round().proven, 0b11);
    stake.lost(0);
    give(&stake, 0, number(9));
    assert_eq!(stake.begin_round().proven, 0b10, "somebody was there");
    stake.lost(0);
    give(&stake, 0, number(9));
    assert_eq!(stake.begin_round().proven, 0b10, "before that");
}

#[test]
fn a_quorum_vouches_for_what_was_there_when_it_was_asked() {
    let stake = held();
    give(&stake, 2, number(9));
    let old = stake.begin_round();
    let new = stake.begin_round();
    stake.vouch(old, 0b100);
    assert_eq!(stake.begin_round().proven, 0b11, "an old answer");
    stake.vouch(new, 0b100);
    assert_eq!(stake.begin_round().proven, 0b11, "a newer one has begun");
    let round = stake.begin_round();
    stake.lost(2);
    stake.vouch(round, 0b100);
    assert_eq!(stake.begin_round().proven, 0b11, "it is lost by now");
    let round = stake.begin_round();
    give(&stake, 2, number(20));
    stake.vouch(round, 0b100);
    assert_eq!(stake.begin_round().proven, 0b11, "given after the question");
    let round = stake.begin_round();
    stake.vouch(round, 0b100);
    assert_eq!(stake.begin_round().proven, 0b111);
}

#[test]
fn what_is_given_after_the_downgrade_as_it_was_asked_for_before_is_too_much() {
    let stake = held();
    let late = stake.begin(2).expect("allowed");
    stake.downgrade();
    assert_eq!(stake.to_share(), 0b111);
    stake.is_shared(0);
    // Its answer has not come: the request may come after the downgrade.
    stake.is_shared(2);
    assert_eq!(stake.to_share(), 0b110);
    late.gave(number(7));
    assert_eq!(stake.to_share(), 0b110);
    stake.is_shared(2);
    assert_eq!(stake.to_share(), 0b010);
    // What is asked for now is shared.
    give(&stake, 3, number(7));
    assert_eq!(stake.to_share(), 0b010);
    stake.end();
    assert_eq!(stake.to_share(), 0);
}

#[test]
fn a_place_in_a_queue_is_freed_like_a_hold() {
    let stake = stake();
    let asked = stake.begin(0).expect("allowed").stands(false);
    assert_eq!(stake.anywhere(), 0b1);
    assert_eq!(stake.left_at(0), Leftover::Place);
    // A sign of life that could not be sent: the place is still there.
    stake.begin(0).expect("allowed").was_not_asked();
    assert_eq!(stake.left_at(0), Leftover::Place);
    // One without an answer may come later.
    drop(stake.begin(0).expect("allowed"));
    assert_eq!(stake.left_at(0), Leftover::Stray);
    stake.called(0, asked, number(7));
    assert_eq!(stake.left_at(0), Leftover::Stray);
    stake.has_not(0);
    assert_eq!(stake.anywhere(), 0);
    // One that was called holds, and nothing else is left.
    let asked = stake.begin(1).expect("allowed").stands(false);
    stake.called(1, asked, number(7));
    assert_eq!((stake.anywhere(), stake.left_at(1)), (0b10, Leftover::Hold));
}

#[test]
fn what_is_given_again_after_giving_way_counts_like_a_first_grant() {
    let stake = stake();
    give(&stake, 0, number(3));
    assert_eq!(stake.gives_way(0), 3, "what is given up");
    // Until it answers, or if it is never asked, there is something to free.
    assert_eq!((stake.anywhere(), stake.left_at(0)), (0b1, Leftover::Place));
    give(&stake, 0, number(7));
    give(&stake, 1, number(7));
    stake.held(7);
    assert!(stake.is_proven(0) && stake.is_proven(1));
}

#[test]
fn a_downgrade_reaches_the_queues_too() {
    let stake = held();
    let _ = stake.begin(2).expect("allowed").stands(false);
    stake.downgrade();
    assert_eq!(stake.to_share(), 0b111);
    // It is not there yet, and comes as a writer's.
    stake.is_shared(2);
    assert_eq!(stake.to_share() & 0b100, 0b100);
}
