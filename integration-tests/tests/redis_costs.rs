//! What a lock costs one Redis server: requests, and the commands that they run inside.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use dlock_core::{Locks, Released};
use integration_tests::RedisServer;
use redis_support::*;

#[tokio::test]
async fn a_cycle_costs_two_requests_and_leaves_a_counter() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client(&server.url()).await;
    // The first cycle teaches the server the scripts.
    assert_eq!(
        lock(&locks, "warm").await.release().await.expect("release"),
        Released::Freed
    );
    server
        .command(&["CONFIG", "RESETSTAT"])
        .await
        .expect("reset");
    let mut last = 0;
    for _ in 0..50 {
        let guard = lock(&locks, "stock:42").await;
        let token = guard.token().expect("fencing").get();
        assert!(token > last);
        last = token;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    assert_eq!(calls(&server, "evalsha").await, 100);
    assert_eq!(calls(&server, "eval").await, 0);
    assert_eq!(calls(&server, "publish").await, 0);
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_contended_hand_off_costs_two_requests_and_one_message() {
    const ROUNDS: u64 = 20;
    let server = RedisServer::start().await.expect("redis");
    // No sign of life comes in between.
    let url = server.url() + "?waiter_lease=60s";
    let clients = [client(&url).await, client(&url).await];
    for locks in &clients {
        let _ = lock(locks, "warm").await.release().await;
    }
    let mut guard = lock(&clients[0], "a").await;
    server
        .command(&["CONFIG", "RESETSTAT"])
        .await
        .expect("reset");
    for round in 0..ROUNDS {
        let other = clients[(round as usize + 1) % 2].clone();
        let waiter = tokio::spawn(async move { lock(&other, "a").await });
        // The queue is looked at without a script, so as not to count.
        integration_tests::until("a waiter", SOON, || async {
            let queue = server.command(&["ZCARD", "dlock:{a}:q"]).await?;
            if number(&queue) == 1 {
                return Ok(());
            }
            Err(integration_tests::Error::answer("ZCARD", "0"))
        })
        .await
        .expect("a waiter");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        guard = waiter.await.expect("the waiter");
    }
    // To enter the queue, and the release of whoever holds it.
    assert_eq!(calls(&server, "evalsha").await, 2 * ROUNDS);
    assert_eq!(calls(&server, "eval").await, 0);
    assert_eq!(calls(&server, "publish").await, ROUNDS);
}

/// How many commands the server has run since its statistics were reset, by scripts or not, without `INFO` and `CONFIG`.
async fn commands(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).await;
    let stats = stats.expect("INFO").text().unwrap_or_default();
    let all = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        if command.starts_with("info") || command.starts_with("config") {
            return None;
        }
        rest.split(',').next()?.parse::<u64>().ok()
    });
    all.sum()
}

async fn reset(server: &RedisServer) {
    let reset = server.command(&["CONFIG", "RESETSTAT"]).await;
    reset.expect("reset");
}

/// Most of what a lock costs the server are the commands inside its scripts.
#[tokio::test]
async fn the_scripts_run_few_commands() {
    let server = RedisServer::start().await.expect("redis");
    // No sign of life comes in between.
    let url = server.url() + "?waiter_lease=60s";
    let (one, two, three) = (client(&url).await, client(&url).await, client(&url).await);
    for locks in [&one, &two, &three] {
        let _ = lock(locks, "a").await.release().await.expect("release");
    }
    reset(&server).await;
    let guard = lock(&one, "a").await;
    assert_eq!(commands(&server).await, 1 + 3, "the script: GET, TIME, SET");
    reset(&server).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    assert_eq!(commands(&server).await, 1 + 3, "the script: GET, PTTL, SET");

    let guard = lock(&one, "a").await;
    let coming = |locks: Locks| tokio::spawn(async move { lock(&locks, "a").await });
    let to_wait = async || {
        integration_tests::until("a waiter", SOON, || async {
            match calls(&server, "hset").await {
                0 => Err(integration_tests::Error::answer("HSET", "none")),
                _ => Ok(()),
            }
        })
        .await
        .expect("a waiter");
        commands(&server).await
    };
    reset(&server).await;
    let first = coming(two);
    assert_eq!(to_wait().await, 1 + 8, "to wait as the first");
    reset(&server).await;
    let second = coming(three);
    assert_eq!(to_wait().await, 1 + 6, "to wait behind another");
    reset(&server).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    assert_eq!(commands(&server).await, 1 + 9, "to hand over");
    for waiter in [first, second] {
        let guard = waiter.await.expect("the waiter");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}
