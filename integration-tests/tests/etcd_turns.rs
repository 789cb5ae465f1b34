//! A hold that the tasks of one client pass on, as etcd and its comparisons see it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Locks, Released, Settings};
use dlock_etcd::{EtcdBackend, Fence};
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use etcd_support::*;
use integration_tests::EtcdServer;

/// A client whose tasks pass a hold on however long it takes.
async fn passing_on(url: &str) -> (Arc<EtcdBackend>, Locks) {
    let backend = backend(url).await;
    let settings = Settings::new().local_time(Duration::MAX);
    let locks = Locks::builder(backend.clone()).settings(settings);
    (backend, locks.build().expect("good settings"))
}

async fn commits(raw: &mut Client, fence: &Fence) -> bool {
    let held = Compare::create_revision(fence.key.clone(), CompareOp::Equal, fence.create_revision);
    let put = TxnOp::put("stock", "1", None);
    let txn = Txn::new().when([held]).and_then([put]);
    raw.txn(txn).await.expect("a transaction").succeeded()
}

/// The next task has the next token, the store's entry stays, and what others see of it is the first token.
#[tokio::test]
async fn tasks_count_on_from_the_token_of_the_entry() {
    let server = EtcdServer::start().await.expect("a server");
    let (backend, locks) = passing_on(&url([server.addr()], "session=5s")).await;
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&locks, "a").await;
    let entry = entries(&mut raw, "a").await.remove(0);
    let first = token_of(&entry);
    assert_eq!(guard.token(), Some(first));
    let next = local_waiter(&locks, "a").await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    let next = soon(next).await.expect("no panic").expect("the lock");
    assert_eq!(locks.stats().passed_on, 1);
    assert_eq!(next.token().map(u64::from), Some(first.get() + 1));
    let same = entries(&mut raw, "a").await.remove(0);
    assert_eq!(same.create_revision(), entry.create_revision());
    let info = locks.inspect("a").await.expect("the store answers");
    assert_eq!(info.holders[0].token, Some(first));
    // Its comparison is with the revision, whichever turn it is.
    let fence = backend.fence(&next).expect("a hold of this backend");
    assert_eq!(fence.create_revision, entry.create_revision());
    assert!(commits(&mut raw, &fence).await);
    assert_eq!(next.release().await.expect("released"), Released::Freed);
    // Another client's token lies above all of them.
    let other = client(&url([server.addr()], "session=5s")).await;
    let guard = lock(&other, "a").await;
    assert!(guard.token().map(u64::from) > Some(first.get() + 63));
}

/// Who has asked for the comparison has a hold of its own: when its guard is gone, nobody can commit with it, whoever has the lock next.
#[tokio::test]
async fn comparison_does_not_outlive_its_guard() {
    let server = EtcdServer::start().await.expect("a server");
    let (backend, locks) = passing_on(&url([server.addr()], "session=5s")).await;
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&locks, "a").await;
    let fence = backend.fence(&guard).expect("a hold of this backend");
    assert!(commits(&mut raw, &fence).await);
    let next = local_waiter(&locks, "a").await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    let next = soon(next).await.expect("no panic").expect("the lock");
    assert!(
        !commits(&mut raw, &fence).await,
        "the first one's hold is over"
    );
    let own = backend.fence(&next).expect("a hold of this backend");
    assert!(commits(&mut raw, &own).await);
    assert_eq!(locks.stats().passed_on, 0);
}

/// The same where a client keeps locks for a while that nobody waits for.
#[tokio::test]
async fn comparison_does_not_linger() {
    let server = EtcdServer::start().await.expect("a server");
    let backend = backend(&url([server.addr()], "session=5s")).await;
    let settings = Settings::new().linger(Duration::from_secs(60));
    let locks = Locks::builder(backend.clone()).settings(settings);
    let locks = locks.build().expect("good settings");
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&locks, "a").await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    assert_eq!(entries(&mut raw, "a").await.len(), 1, "it lingers");
    let guard = lock(&locks, "a").await;
    let fence = backend.fence(&guard).expect("a hold of this backend");
    assert!(commits(&mut raw, &fence).await);
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    assert!(!commits(&mut raw, &fence).await, "the hold is over");
}

/// A holder hears of another client who waits, by the store; and of tasks of its own client, without it.
#[tokio::test]
async fn holder_hears_that_others_wait() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=30s");
    let (mine, other) = (strict_client(&url).await, client(&url).await);
    let guard = lock(&mine, "a").await;
    let early = tokio::time::timeout(Duration::from_millis(300), guard.wanted()).await;
    assert!(early.is_err(), "nobody waits");
    let own = waiter(&mine, "a");
    waiting(&mine, "a", 1).await;
    soon(guard.wanted()).await;
    drop(guard);
    drop(soon(own).await.expect("no panic").expect("the lock"));
    let guard = lock(&mine, "a").await;
    let early = tokio::time::timeout(Duration::from_millis(300), guard.wanted()).await;
    assert!(early.is_err(), "nobody waits");
    let theirs = waiter(&other, "a");
    soon(guard.wanted()).await;
    drop(guard);
    drop(soon(theirs).await.expect("no panic").expect("the lock"));
    // Readers who hold beside one do not wait; a writer does.
    let (mine, other) = (
        mine.rw_lock("b").expect("a name"),
        other.rw_lock("b").expect("a name"),
    );
    let guard = mine.read().await.expect("the lock");
    let beside = other.read().await.expect("the lock");
    let early = tokio::time::timeout(Duration::from_millis(300), guard.wanted()).await;
    assert!(early.is_err(), "nobody waits");
    let writer = tokio::spawn(async move { other.write().await });
    soon(guard.wanted()).await;
    drop((guard, beside));
    drop(soon(writer).await.expect("no panic").expect("the lock"));
}

/// A lock that lingers goes to another client that asks for it.
#[tokio::test]
async fn lock_that_lingers_is_given_up_when_another_client_asks() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=60s");
    let settings = Settings::new().linger(Duration::from_secs(600));
    let mine = Locks::builder(backend(&url).await).settings(settings);
    let mine = mine.build().expect("good settings");
    assert_eq!(
        lock(&mine, "a").await.release().await.expect("released"),
        Released::Freed
    );
    let mut raw = raw(&[server.addr()]).await;
    assert_eq!(entries(&mut raw, "a").await.len(), 1, "it lingers");
    let other = client(&url).await;
    let _guard = lock(&other, "a").await;
}
