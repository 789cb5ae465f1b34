//! How a lock goes from one task of a client to the next.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use dlock_core::{Guard, Locks, Released, Settings};
use integration_tests::{Direction, FaultProxy, RedisServer};
use redis_support::*;
use tokio::task::JoinHandle;

/// Waits for the lock in a task of its own, with a label.
fn wait_for(locks: &Locks, name: &str, label: &str) -> JoinHandle<Guard> {
    let settings = Settings::new().label(label);
    let mutex = locks.with(settings).expect("settings").mutex(name);
    let mutex = mutex.expect("a name");
    tokio::spawn(async move { mutex.lock().await.expect("a lock") })
}

/// Waits until the server says that the lock is held with this label.
async fn held_with(locks: &Locks, name: &str, label: &str) {
    let seen = async {
        loop {
            let info = locks.inspect(name).await.expect("an answer");
            if info.holders.iter().any(|holder| holder.label == label) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let seen = tokio::time::timeout(SOON, seen).await;
    seen.unwrap_or_else(|_| panic!("{label} does not get {name}"));
}

#[tokio::test]
async fn the_next_task_asks_while_the_release_is_still_under_way() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let url = format!("{}?answer_timeout=30s", through(&server, &proxy));
    let settings = Settings::new().trip_timeout(seconds(30));
    let (mine, other) = (
        client_with(&url, settings).await,
        client(&server.url()).await,
    );
    // The server gets to know the scripts.
    let _ = lock(&mine, "a").await.release().await;
    let guard = lock(&mine, "a").await;
    let next = wait_for(&mine, "a", "next");
    tokio::task::yield_now().await;
    // Requests arrive, answers do not.
    proxy.black_hole(Direction::ToClient);
    let release = tokio::spawn(guard.release());
    held_with(&other, "a", "next").await;
    assert!(!release.is_finished() && !next.is_finished());
    // The answers are lost for good: both find out what has become of their requests.
    proxy.heal().await;
    proxy.reset_all().await;
    let _ = release.await.expect("a task");
    let guard = tokio::time::timeout(SOON, next).await.expect("in time");
    let end = guard.expect("a task").release().await;
    assert_eq!(end.expect("release"), Released::Freed);
    drop(lock(&other, "a").await);
    for locks in [mine, other] {
        locks.close().await.expect("close");
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn who_waits_at_the_server_comes_before_the_next_task_of_the_holder() {
    let server = RedisServer::start().await.expect("redis");
    let (mine, other) = (client(&server.url()).await, client(&server.url()).await);
    for _ in 0..5 {
        let guard = lock(&mine, "a").await;
        let local = wait_for(&mine, "a", "local");
        let remote = wait_for(&other, "a", "remote");
        waiting(&mine, "a", 1).await;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        let remote = tokio::time::timeout(SOON, remote).await.expect("in time");
        waiting(&other, "a", 1).await;
        assert!(!local.is_finished(), "it has overtaken the other client");
        let end = remote.expect("a task").release().await;
        assert_eq!(end.expect("release"), Released::Freed);
        let local = tokio::time::timeout(SOON, local).await.expect("in time");
        drop(local.expect("a task").release().await);
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}
