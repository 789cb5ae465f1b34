//! What an administrator does to an etcd server by hand, while locks are held and waited for.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use dlock_core::{Locks, LossReason, Name, Released};
use etcd_support::*;
use integration_tests::{EtcdServer, FaultProxy};

#[tokio::test]
async fn history_compacted_under_a_watch() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&url([server.addr()], "session=15s")).await;
    let other = client(&url([proxy.addr()], "session=15s&answer_timeout=1s")).await;
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;

    // The watch breaks, and what it would have to start from is compacted away before it can come back.
    proxy.refuse();
    proxy.reset_all().await;
    let mut raw = raw(&[server.addr()]).await;
    let mut revision = 0;
    for n in 0..50 {
        let put = raw
            .put("elsewhere", n.to_string(), None)
            .await
            .expect("a put");
        revision = put.header().expect("a header").revision();
    }
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let put = raw.put("elsewhere", "last", None).await.expect("a put");
    revision = revision.max(put.header().expect("a header").revision());
    raw.compact(revision, None).await.expect("a compaction");
    proxy.accept();
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(other.stats().failed, 0);
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
}

#[tokio::test]
async fn lease_revoked_by_an_administrator_is_told_and_replaced() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=3s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let (first, second) = (lock(&holder, "a").await, lock(&holder, "b").await);
    let waits = waiter(&other, "a");
    waiting(&other, "a", 1).await;

    let mut raw = raw(&[server.addr()]).await;
    let entry = &entries(&mut raw, "a").await[0];
    raw.lease_revoke(entry.lease()).await.expect("revoked");
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert!(next.token() > first.token());
    assert_eq!(soon(first.lost()).await, LossReason::SessionEnded);
    assert_eq!(soon(second.lost()).await, LossReason::SessionEnded);
    assert!(!first.is_held() && !second.is_held());
    assert_eq!(
        first.release().await.expect("no trip"),
        Released::AlreadyLost
    );
    // The client goes on with a lease of its own.
    let again = lock(&holder, "b").await;
    assert!(again.token() > second.token());
    assert!(entries(&mut raw, "b").await[0].lease() != entry.lease());
    renewed(&holder).await;
    assert!(again.is_held() && next.is_held());
    // And so does a waiter whose lease is revoked under it.
    let entry = &entries(&mut raw, "a").await[0];
    let waits = waiter(&holder, "a");
    waiting(&other, "a", 1).await;
    let own = &entries(&mut raw, "a").await[1];
    assert_ne!(own.lease(), entry.lease());
    raw.lease_revoke(own.lease()).await.expect("revoked");
    assert_eq!(soon(again.lost()).await, LossReason::SessionEnded);
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
    let last = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        last.release().await.expect("the store answers"),
        Released::Freed
    );
}

#[tokio::test]
async fn lock_key_deleted_by_an_administrator_is_told() {
    let server = EtcdServer::start().await.expect("a server");
    let locks = client(&url([server.addr()], "session=3s")).await;
    let (gone, stays) = (lock(&locks, "a").await, lock(&locks, "b").await);
    let mut raw = raw(&[server.addr()]).await;
    let key = entries(&mut raw, "a").await[0].key().to_vec();
    raw.delete(key, None).await.expect("deleted");
    assert_eq!(soon(gone.lost()).await, LossReason::Gone);
    assert_eq!(
        gone.release().await.expect("no trip"),
        Released::AlreadyLost
    );
    renewed(&locks).await;
    assert!(stays.is_held(), "the other hold is good");

    // The same for one who waits: it queues again.
    let other = client(&url([server.addr()], "session=3s")).await;
    let waits = waiter(&other, "b");
    waiting(&locks, "b", 1).await;
    let entry = entries(&mut raw, "b").await[1].clone();
    raw.delete(entry.key(), None).await.expect("deleted");
    until_so("it queues again", async || {
        entries(&mut raw, "b")
            .await
            .get(1)
            .is_some_and(|kv| kv.create_revision() > entry.create_revision())
    })
    .await;
    assert_eq!(
        stays.release().await.expect("the store answers"),
        Released::Freed
    );
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
}

/// A waiter that is told of the end of the one before it holds without a further look: but not if its own entry went first.
#[tokio::test]
async fn waiter_whose_entry_was_deleted_does_not_hold_by_it() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=30s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let mut raw = raw(&[server.addr()]).await;
    for _ in 0..10 {
        let guard = lock(&holder, "a").await;
        let waits = waiter(&other, "a");
        waiting(&holder, "a", 1).await;
        until_so("it watches both", async || {
            metric(server.addr(), "etcd_debugging_mvcc_watcher_total").await as usize == 2
        })
        .await;
        let own = entries(&mut raw, "a").await[1].key().to_vec();
        raw.delete(own, None).await.expect("deleted");
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
        let next = soon(waits).await.expect("no panic").expect("the lock");
        let entry = &entries(&mut raw, "a").await[0];
        assert_eq!(next.token(), Some(token_of(entry)), "it holds by an entry");
        assert_eq!(
            next.release().await.expect("the store answers"),
            Released::Freed
        );
    }
}

/// Both entries end in one step, and their events come in any order.
#[tokio::test]
async fn waiter_does_not_hold_when_its_own_lease_took_the_holder_away() {
    let server = EtcdServer::start().await.expect("a server");
    let locks = strict_client(&url([server.addr()], "session=5s")).await;
    let mut raw = raw(&[server.addr()]).await;
    for _ in 0..5 {
        let guard = lock(&locks, "a").await;
        let waits = waiter(&locks, "a");
        waiting(&locks, "a", 1).await;
        let lease = entries(&mut raw, "a").await[0].lease();
        raw.lease_revoke(lease).await.expect("revoked");
        let next = soon(waits).await.expect("no panic").expect("the lock");
        let entry = &entries(&mut raw, "a").await[0];
        assert_eq!(next.token(), Some(token_of(entry)), "it holds by an entry");
        assert_ne!(entry.lease(), lease);
        assert_eq!(soon(guard.lost()).await, LossReason::SessionEnded);
        assert_eq!(
            next.release().await.expect("the store answers"),
            Released::Freed
        );
    }
}

/// Who breaks a lock reads who holds it, and then removes that very entry. If its holder has left meanwhile, its client may have the same key again
/// and wait with it: that one does not hold, and keeps its place.
#[tokio::test]
async fn break_removes_who_holds_and_not_who_has_its_key_by_now() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let long = "session=60s&answer_timeout=20s";
    let direct = url([server.addr()], long);
    let (first, second) = (client(&direct).await, client(&direct).await);
    let admin = client(&url([proxy.addr()], long)).await;
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&first, "a").await;
    let key = entries(&mut raw, "a").await[0].key().to_vec();
    let next = waiter(&second, "a");
    waiting(&first, "a", 1).await;
    let ranges = async || {
        let label = "grpc_method=\"Range\"";
        metric_with(server.addr(), "grpc_server_handled_total", label).await
    };
    // The administrator's answer is on its way, and nobody is where it says any more.
    let before = ranges().await;
    proxy.pause(integration_tests::Direction::ToClient);
    let breaks = tokio::spawn({
        let admin = admin.clone();
        async move { admin.break_lock("a").await }
    });
    until_so("it was read", async || ranges().await > before).await;
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let holds = soon(next).await.expect("no panic").expect("the lock");
    let waits = waiter(&first, "a");
    until_so("it waits with the same key", async || {
        let queue = entries(&mut raw, "a").await;
        queue.len() == 2 && queue[1].key() == key
    })
    .await;
    proxy.resume();
    assert!(soon(breaks).await.expect("no panic").expect("broken"));
    let last = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(first.stats().failed, 0, "its place was taken away");
    assert_eq!(soon(holds.lost()).await, LossReason::Gone);
    assert_eq!(
        last.release().await.expect("the store answers"),
        Released::Freed
    );
}

/// In whatever mode, and without a look at each.
#[tokio::test]
async fn length_of_a_queue_is_counted_by_etcd() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=5s");
    let (backend, locks) = (backend(&url).await, strict_client(&url).await);
    let length = async |name: &str| {
        let name = Name::new(name).expect("a good name");
        backend
            .queue_length(&name)
            .await
            .expect("the store answers")
    };
    assert_eq!(length("a").await, 0);
    let guard = lock(&locks, "a").await;
    assert_eq!(length("a").await, 1);
    let waits: Vec<_> = (0..20).map(|_| waiter(&locks, "a")).collect();
    waiting(&locks, "a", 20).await;
    assert_eq!(length("a").await, 21);
    // One who comes behind them knows how many are before it, and counts nobody who comes later.
    let position = async || {
        let name = Name::new("a").expect("a good name");
        let asked = backend.queue_position(&name).await;
        asked.expect("the store answers")
    };
    assert_eq!(position().await, None, "nobody of that client waits");
    let last = Locks::builder(backend.clone()).build().expect("defaults");
    let last = waiter(&last, "a");
    waiting(&locks, "a", 21).await;
    let later = waiter(&locks, "a");
    waiting(&locks, "a", 22).await;
    assert_eq!(position().await, Some(21));
    last.abort();
    later.abort();
    waiting(&locks, "a", 20).await;
    assert_eq!(position().await, None);
    // Not those of a lock whose name goes on.
    let _other = lock(&locks, "a/b").await;
    let _other = lock(&locks, "ab").await;
    assert_eq!(length("a").await, 21);
    drop(guard);
    for wait in waits {
        wait.abort();
    }
    let semaphore = locks.semaphore("permits", 2).expect("a good name");
    let _first = semaphore.acquire().await.expect("a permit");
    let _second = semaphore.acquire().await.expect("a permit");
    assert_eq!(length("permits").await, 2);
}
