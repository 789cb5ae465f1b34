//! The tokens of a hold that the tasks of a client pass on: a quorum sets them aside, whatever its counters were.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Guard, Locks, Released, Settings};
use redis_support::lock;
use redlock_support::*;

/// How many tokens a hold has.
const TURNS: u64 = 64;
/// Far ahead of every clock: what is given is above the counters alone.
const AHEAD: u64 = 4_000_000_000_000_000;

fn token(guard: &Guard) -> u64 {
    guard.token().expect("fencing").get()
}

/// Sets the counter of a lock that nobody holds at a node.
async fn count_on(five: &Five, node: usize, counter: u64) {
    let counter = counter.to_string();
    let set = ["SET", "redlock:{a}", &counter, "PX", "600000"];
    five.servers[node].command(&set).await.expect("SET");
}

/// A client that takes all turns it may have.
async fn patient(url: &str) -> Locks {
    let settings = Settings::new();
    let settings = settings.local_turns(u32::MAX).local_time(Duration::MAX);
    client_with(url, settings).await
}

/// Passes a lock on through all its tokens, and tells them.
async fn all_turns(locks: &Locks) -> Vec<u64> {
    let mutex = locks.mutex("a").expect("a name");
    let first = lock(locks, "a").await;
    let tokens = Arc::new(std::sync::Mutex::new(vec![token(&first)]));
    let tasks: Vec<_> = (1..TURNS)
        .map(|_| {
            let (mutex, tokens) = (mutex.clone(), tokens.clone());
            tokio::spawn(async move {
                let guard = mutex.lock().await.expect("the lock");
                tokens.lock().expect("no panic").push(token(&guard));
                guard.release().await.expect("release")
            })
        })
        .collect();
    integration_tests::until("all wait", redis_support::SOON, || async {
        match locks.stats().waiting {
            waiting if waiting == TURNS - 1 => Ok(()),
            waiting => Err(integration_tests::Error::answer(
                "waiting",
                waiting.to_string(),
            )),
        }
    })
    .await
    .expect("they wait");
    assert_eq!(first.release().await.expect("release"), Released::Freed);
    for task in tasks {
        assert_eq!(task.await.expect("no panic"), Released::Freed);
    }
    let tokens = tokens.lock().expect("no panic").clone();
    assert_eq!(locks.stats().acquired, 1, "the nodes were asked again");
    tokens
}

/// Two quorums that have one node in common, which knows all tokens of the first.
#[tokio::test]
async fn all_tokens_of_a_hold_are_below_those_of_the_next_quorum() {
    let three = start(3).await.expect("servers");
    for node in 0..3 {
        count_on(&three, node, AHEAD).await;
    }
    let (one, _cut) = cut_off(&three, 2, PERSISTENT).await;
    let (two, _other_cut) = cut_off(&three, 0, PERSISTENT).await;
    let tokens = all_turns(&patient(&one).await).await;
    let expected: Vec<u64> = (AHEAD + 1..=AHEAD + TURNS).collect();
    assert_eq!(tokens, expected);
    let next = lock(&client(&two).await, "a").await;
    assert!(token(&next) > AHEAD + TURNS, "{}", token(&next));
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    clean(&three).await;
}

/// Counters that differ by less than a hold has tokens are raised: all tokens are above what either of them had given before.
#[tokio::test]
async fn tokens_of_a_hold_whose_counters_were_raised_are_its_own() {
    let three = start(3).await.expect("servers");
    for (node, ahead) in [(0, 0), (1, 10), (2, 40)] {
        count_on(&three, node, AHEAD + ahead).await;
    }
    let (one, _cut) = cut_off(&three, 2, PERSISTENT).await;
    let (two, _other_cut) = cut_off(&three, 0, PERSISTENT).await;
    let tokens = all_turns(&patient(&one).await).await;
    let expected: Vec<u64> = (AHEAD + 11..=AHEAD + 10 + TURNS).collect();
    assert_eq!(tokens, expected);
    let other = client(&two).await;
    let next = lock(&other, "a").await;
    assert!(token(&next) > AHEAD + 10 + TURNS, "{}", token(&next));
    let shown = other.inspect("a").await.expect("it answers");
    assert_eq!(shown.holders[0].token, next.token());
    let listed = other.list("a").await.expect("it answers");
    assert_eq!(listed[0].holders[0].token, next.token());
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    clean(&three).await;
}

/// A node that missed the acquire is given the hold with its number, and counts: not with the first of its tokens, which is below it.
#[tokio::test]
async fn node_that_is_given_a_hold_later_has_its_last_token() {
    let three = start(3).await.expect("servers");
    let (url, cut) = cut_off(&three, 2, PERSISTENT).await;
    let locks = client_with(&url, Settings::new().lease(seconds(3))).await;
    let guard = lock(&locks, "a").await;
    cut.heal().await;
    let last = format!("{:016}-", token(&guard) + TURNS - 1);
    integration_tests::until("the third has it too", redis_support::SOON, || async {
        let value = three.servers[2].command(&["GET", "redlock:{a}"]).await?;
        match format!("{value:?}") {
            text if text.contains(&last) => Ok(()),
            text => Err(integration_tests::Error::answer("GET", text)),
        }
    })
    .await
    .expect("a repair");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    clean(&three).await;
}
