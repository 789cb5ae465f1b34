//! One client in several runtimes, of which some end and some are left alone.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::{Duration, Instant};

use dlock_core::{Locks, Released, Settings};
use futures::future::join_all;
use integration_tests::RedisServer;
use redis_support::*;
use tokio::runtime::{Builder, Runtime};

/// A runtime that runs by itself.
fn lively() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// A runtime that runs only while somebody blocks on it.
fn sleepy() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// Looks again and again until it is so.
fn until(so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < 2 * SOON, "it does not come to that");
        std::thread::yield_now();
    }
}

async fn cycles(locks: Locks, n: u64) {
    let mutex = locks.mutex(format!("r:{n}")).expect("a name");
    for _ in 0..50 {
        let guard = mutex.lock().await.expect("a lock");
        let _ = guard.release().await;
    }
}

#[test]
fn a_runtime_that_ends_leaves_no_crowd_behind() {
    let (keeps, ends) = (lively(), lively());
    let (server, locks) = keeps.block_on(async {
        let server = RedisServer::start().await.expect("redis");
        let locks = client(&server.url()).await;
        (server, locks)
    });
    let left: Vec<_> = (0..40)
        .map(|n| ends.spawn(cycles(locks.clone(), n)))
        .collect();
    let stay: Vec<_> = (40..80)
        .map(|n| keeps.spawn(cycles(locks.clone(), n)))
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    ends.shutdown_background();
    drop(left);
    keeps.block_on(async {
        let all = tokio::time::timeout(6 * SOON, join_all(stay)).await;
        for task in all.expect("nobody waits for the runtime that ended") {
            task.expect("a task");
        }
        drop(server);
    });
}

/// Somebody stood among those who wait for the next trip, gave up, and lets his runtime sleep: the others go all the same.
#[test]
fn nobody_waits_for_the_runtime_of_one_who_gave_up() {
    let (runs, sleeps) = (lively(), sleepy());
    let (server, locks) = runs.block_on(async {
        let server = RedisServer::start().await.expect("redis");
        let locks = client(&server.url()).await;
        for _ in 0..2 {
            // The server gets to know the scripts.
            join_all((0..20).map(|n| cycles(locks.clone(), n))).await;
        }
        (server, locks)
    });
    for round in 0..5 {
        until(|| locks.stats().in_doubt == 0);
        server.freeze();
        let attempt = |name: String| {
            let mutex = locks.mutex(name).expect("a name");
            async move { mutex.lock_within(SOON).await }
        };
        let alone: Vec<_> = (0..8)
            .map(|n| runs.spawn(attempt(format!("alone:{round}:{n}"))))
            .collect();
        until(|| locks.stats().in_doubt >= 8);
        let waits = runs.spawn(attempt(format!("waits:{round}")));
        until(|| locks.stats().in_doubt >= 9);
        // Its wish is the last when the first answer comes.
        let mutex = locks.mutex(format!("gives up:{round}")).expect("a name");
        let gave_up = sleeps.block_on(mutex.lock_within(Duration::from_millis(20)));
        assert!(gave_up.is_err(), "{gave_up:?}");
        server.thaw();
        runs.block_on(async {
            let all = join_all(alone.into_iter().chain([waits]));
            let all = tokio::time::timeout(2 * SOON, all).await;
            for guard in all.expect("nobody is forgotten") {
                let guard = guard.expect("a task").expect("an answer");
                let end = guard.expect("it is free").release().await;
                assert_eq!(end.expect("release"), Released::Freed);
            }
        });
    }
    runs.block_on(async {
        locks.close().await.expect("close");
        assert_eq!(residue(&server).await, Vec::<String>::new());
        drop(server);
    });
}

/// A runtime fell asleep with the connection, and with a crowd in the middle of it: after some silence the connection is replaced,
/// nobody counts on what sleeps, and everything goes on.
#[test]
fn a_crowd_survives_another_that_fell_asleep() {
    let (runs, sleeps) = (lively(), sleepy());
    let server = runs.block_on(RedisServer::start()).expect("redis");
    let url = format!("{}?answer_timeout=300ms", server.url());
    let settings = Settings::new().retry_unreachable_for(seconds(20));
    let locks = sleeps.block_on(client_with(&url, settings));
    for n in 100..200 {
        sleeps.spawn(cycles(locks.clone(), n));
    }
    until(|| {
        sleeps.block_on(tokio::task::yield_now());
        let stats = locks.stats();
        stats.acquired >= 500 && stats.in_doubt >= 50
    });
    let crowd: Vec<_> = (0..100)
        .map(|n| runs.spawn(cycles(locks.clone(), n)))
        .collect();
    runs.block_on(async {
        let all = tokio::time::timeout(6 * SOON, join_all(crowd)).await;
        for task in all.expect("nobody waits for the runtime that sleeps") {
            task.expect("a task");
        }
        drop(server);
    });
}
