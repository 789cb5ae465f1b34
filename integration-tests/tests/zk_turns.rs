//! A hold that the tasks of one client pass on, as ZooKeeper and its transactions see it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod zk_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Guard, Locks, Order, Released, Settings};
use dlock_zk::{Config, ZkBackend};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zk_support::*;

/// A client whose tasks pass a hold on however long it takes.
async fn passing_on(url: &str) -> (Arc<ZkBackend>, Locks) {
    let config = Config::from_url(url).expect("a good URL");
    let backend = Arc::new(config.connect().await.expect("a connection"));
    let settings = Settings::new().local_time(Duration::MAX);
    let locks = Locks::builder(backend.clone()).settings(settings);
    (backend, locks.build().expect("good settings"))
}

/// A task that waits for a lock in the line of its client.
async fn local_waiter(locks: &Locks, name: &str) -> JoinHandle<dlock_core::Result<Guard>> {
    let (before, mutex) = (locks.stats().waiting, locks.mutex(name).expect("a name"));
    let task = tokio::spawn(async move { mutex.lock().await });
    let counted = async {
        while locks.stats().waiting == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(SOON, counted).await.expect("a task waits");
    // It counts a moment before it stands there.
    tokio::time::sleep(Duration::from_millis(2)).await;
    task
}

async fn taken(task: JoinHandle<dlock_core::Result<Guard>>) -> Guard {
    let taken = timeout(SOON, task).await.expect("soon");
    taken.expect("no panic").expect("the lock")
}

/// The next task has the next token, the node stays, and what others see of it is the first token.
#[tokio::test]
async fn tasks_count_on_from_the_token_of_the_node() {
    let server = server().await;
    let (_, locks) = passing_on(&server.url()).await;
    let admin = Admin::connect(&server.url()).await;
    let guard = lock(&locks, "a").await;
    let queue = queue_of(&admin, "/dlock/a", 1).await;
    let (_, stat) = admin
        .0
        .get_data(&format!("/dlock/a/{}", queue[0]))
        .await
        .expect("the node");
    let first = stat.czxid.cast_unsigned() * 64;
    assert_eq!(guard.token().map(u64::from), Some(first));
    let next = local_waiter(&locks, "a").await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    let next = taken(next).await;
    assert_eq!(locks.stats().passed_on, 1);
    assert_eq!(next.token().map(u64::from), Some(first + 1));
    assert_eq!(queue_of(&admin, "/dlock/a", 1).await, queue);
    let info = locks.inspect("a").await.expect("the store answers");
    assert_eq!(info.holders[0].token.map(u64::from), Some(first));
    assert_eq!(next.release().await.expect("released"), Released::Freed);
    let other = client(&server.url()).await;
    let guard = lock(&other, "a").await;
    assert!(guard.token().map(u64::from) > Some(first + 63));
}

/// Who has asked for its node has a hold of its own: when its guard is gone, so is the node, whoever has the lock next.
#[tokio::test]
async fn node_does_not_outlive_the_guard_that_asked_for_it() {
    let server = server().await;
    let (backend, locks) = passing_on(&server.url()).await;
    let admin = Admin::connect(&server.url()).await;
    let guard = lock(&locks, "a").await;
    let node = backend.lock_node(&guard).await.expect("the node");
    assert!(
        admin
            .0
            .check_stat(&node)
            .await
            .expect("an answer")
            .is_some()
    );
    let next = local_waiter(&locks, "a").await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    let next = taken(next).await;
    assert!(
        admin
            .0
            .check_stat(&node)
            .await
            .expect("an answer")
            .is_none()
    );
    backend
        .fenced(&next)
        .create("/stock", "1")
        .commit()
        .await
        .expect("it has the lock");
    assert_eq!(locks.stats().passed_on, 0);
    // A transaction asks for the node, too.
    let last = local_waiter(&locks, "a").await;
    assert_eq!(next.release().await.expect("released"), Released::Freed);
    let _guard = taken(last).await;
    assert_eq!(locks.stats().passed_on, 0);
}

/// A holder hears of another client who waits, by the store; and of tasks of its own client, without it.
#[tokio::test]
async fn holder_hears_that_others_wait() {
    let server = server().await;
    let mine = client_with(&server.url(), Settings::new().order(Order::Strict)).await;
    let other = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let early = timeout(Duration::from_millis(300), guard.wanted()).await;
    assert!(early.is_err(), "nobody waits");
    let mutex = mine.mutex("a").expect("a name");
    let own = tokio::spawn(async move { mutex.lock().await });
    waiting(&mine, "a", 1).await;
    timeout(SOON, guard.wanted()).await.expect("soon");
    drop(guard);
    drop(taken(own).await);
    let guard = lock(&mine, "a").await;
    let early = timeout(Duration::from_millis(300), guard.wanted()).await;
    assert!(early.is_err(), "nobody waits");
    let mutex = other.mutex("a").expect("a name");
    let theirs = tokio::spawn(async move { mutex.lock().await });
    timeout(SOON, guard.wanted()).await.expect("soon");
    drop(guard);
    drop(taken(theirs).await);
    // Readers who hold beside one do not wait; a writer does.
    let (mine, other) = (
        mine.rw_lock("b").expect("a name"),
        other.rw_lock("b").expect("a name"),
    );
    let guard = mine.read().await.expect("the lock");
    let beside = other.read().await.expect("the lock");
    let early = timeout(Duration::from_millis(300), guard.wanted()).await;
    assert!(early.is_err(), "nobody waits");
    let writer = tokio::spawn(async move { other.write().await });
    timeout(SOON, guard.wanted()).await.expect("soon");
    drop((guard, beside));
    drop(taken(writer).await);
}

/// A lock that lingers goes to another client that asks for it.
#[tokio::test]
async fn lock_that_lingers_is_given_up_when_another_client_asks() {
    let server = server().await;
    let mine = client_with(
        &server.url(),
        Settings::new().linger(Duration::from_secs(600)),
    )
    .await;
    assert_eq!(
        lock(&mine, "a").await.release().await.expect("released"),
        Released::Freed
    );
    let admin = Admin::connect(&server.url()).await;
    assert_eq!(queue_of(&admin, "/dlock/a", 1).await.len(), 1, "it lingers");
    let other = client(&server.url()).await;
    let _guard = lock(&other, "a").await;
}
