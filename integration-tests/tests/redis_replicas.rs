//! Holds that replicas must have, in a Cluster.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use dlock_core::{Locks, Released, Settings};
use integration_tests::{RedisCluster, RedisServer, Reply};
use redis_support::*;

async fn cluster() -> (RedisCluster, String) {
    let cluster = RedisCluster::start_with(1).await.expect("a cluster");
    let hosts: Vec<_> = cluster.addrs().iter().map(ToString::to_string).collect();
    let url = format!(
        "redis+cluster://{}?replicas=1&replicas_timeout=500ms",
        hosts.join(",")
    );
    (cluster, url)
}

/// The node that follows a master.
async fn replica_of<'a>(cluster: &'a RedisCluster, master: &RedisServer) -> &'a RedisServer {
    for node in cluster.nodes() {
        let role = node.command(&["ROLE"]).await.expect("ROLE");
        if role.list().get(2) == Some(&Reply::Number(i64::from(master.port()))) {
            return node;
        }
    }
    panic!("it has a replica");
}

fn patient(locks: &Locks) -> Locks {
    let settings = Settings::new().retry_unreachable_for(seconds(60));
    locks.with(settings).expect("good settings")
}

#[tokio::test]
async fn in_a_cluster_a_hold_counts_when_replicas_have_it() {
    let (cluster, url) = cluster().await;
    let locks = client(&url).await;
    let guard = lock(&locks, "a").await;
    // The other modes, a waiter and a hand-over go the same way.
    let reader = locks.rw_lock("readers").expect("a name").read().await;
    let _ = reader.expect("a reader").release().await.expect("release");
    let theirs = client(&url).await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&locks, "a", 1).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let guard = waiter.await.expect("a task");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);

    let master = cluster.master_of("dlock:{a}").await.expect("a master");
    let replica = replica_of(&cluster, master).await;
    replica.freeze();
    let error = locks.mutex("a").expect("a name").try_lock().await;
    let error = error.expect_err("not replicated");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // It is undone, and nobody else is kept out by it.
    replica.thaw();
    let guard = lock(&patient(&locks), "a").await;
    let token = guard.token();
    assert!(token.is_some());
    // It is at the replica when the acquire returns, so it survives this fail-over.
    master.kill();
    let promoted = cluster.master_after("dlock:{a}", master).await;
    assert_eq!(promoted.expect("a new master").port(), replica.port());
    let value = replica.command(&["GET", "dlock:{a}"]).await.expect("GET");
    let value = value.text().expect("the hold");
    // The value has the last of the 64 tokens of the hold, the guard the first.
    let last = token.map(|token| token.get() + 63);
    assert_eq!(value[..16].parse().ok(), last);
}

/// The first request after a move is sent on by the old node.
#[tokio::test]
async fn in_a_cluster_replicas_are_waited_for_after_a_slot_has_moved() {
    let (cluster, url) = cluster().await;
    let locks = client(&url).await;
    let _ = lock(&locks, "a").await.release().await;
    let from = cluster.master_of("dlock:{a}").await.expect("a master");
    let to = cluster.master_of("dlock:{b}").await.expect("a master");
    assert_ne!(from.port(), to.port(), "two masters");
    let slot = cluster.slot_of("dlock:{a}").await.expect("a slot");
    cluster.begin_move(&slot, from, to).await.expect("begun");
    cluster.end_move(&slot, from, to).await.expect("ended");
    let guard = lock(&patient(&locks), "a").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    // A lock that others hold is busy, and no error.
    let one = lock(&locks, "a").await;
    let two = client(&url).await;
    let two = two.mutex("a").expect("a name").try_lock().await;
    assert!(matches!(two, Ok(None)), "{two:?}");
    assert_eq!(one.release().await.expect("release"), Released::Freed);
}
