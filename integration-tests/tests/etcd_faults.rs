//! Faults of an etcd server and of a cluster, while locks are held and waited for.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::time::Duration;

use dlock_core::{LossReason, Released};
use etcd_support::*;
use integration_tests::{Direction, EtcdCluster, EtcdServer, FaultProxy};

#[tokio::test]
async fn leader_killed_while_held_and_while_waited_for() {
    let cluster = EtcdCluster::start().await.expect("a cluster");
    let url = url(cluster.addrs(), "session=15s&answer_timeout=1s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;

    let leader = cluster.leader().await.expect("a leader");
    leader.kill();
    cluster.leader_after(leader).await.expect("another leader");

    renewed(&holder).await;
    assert!(guard.is_held(), "an election is no loss");
    assert!(!waits.is_finished(), "the lock is held");
    let token = guard.token();
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert!(next.token() > token);
    assert_eq!(other.stats().failed, 0, "the place in the queue was kept");
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
    assert_eq!(holder.stats().losses.total(), 0);
}

#[tokio::test]
async fn one_living_endpoint_of_many_is_enough() {
    let server = EtcdServer::start().await.expect("a server");
    let mut dead = Vec::new();
    for _ in 0..3 {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        proxy.refuse();
        dead.push(proxy);
    }
    let silent = FaultProxy::start(server.addr()).await.expect("a proxy");
    let living = FaultProxy::start(server.addr()).await.expect("a proxy");
    silent.black_hole(Direction::Both);
    let addrs = dead.iter().chain([&silent, &living]).map(FaultProxy::addr);
    let url = url(addrs, "session=15s&answer_timeout=500ms");

    let clients = [client(&url).await, client(&url).await, client(&url).await];
    let guard = lock(&clients[0], "a").await;
    let waits = waiter(&clients[1], "a");
    waiting(&clients[2], "a", 1).await;
    // The only way dies and another opens: nobody is told beforehand.
    dead[1].accept();
    living.refuse();
    living.reset_all().await;
    renewed(&clients[0]).await;
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
    assert_eq!(living.connections(), 0);
}

#[tokio::test]
async fn member_frozen_while_held_and_while_waited_for() {
    let cluster = EtcdCluster::start().await.expect("a cluster");
    let mut proxies = Vec::new();
    for member in cluster.members() {
        proxies.push(FaultProxy::start(member.addr()).await.expect("a proxy"));
    }
    let through = url(
        proxies.iter().map(FaultProxy::addr),
        "session=15s&answer_timeout=1s",
    );
    let waits_here = client(&through).await;
    // The member that the waiter uses.
    let used = proxies.iter().position(|proxy| proxy.connections() > 0);
    let frozen = &cluster.members()[used.expect("it is connected")];
    let holder = client(&url(cluster.addrs(), "session=15s&answer_timeout=1s")).await;
    let guard = lock(&holder, "a").await;
    let waits = waiter(&waits_here, "a");
    waiting(&holder, "a", 1).await;

    frozen.freeze();
    cluster.leader_after(frozen).await.expect("a leader");
    renewed(&holder).await;
    assert!(guard.is_held());
    let token = guard.token();
    let released = guard.release().await.expect("the store answers");
    assert!(
        matches!(released, Released::Freed | Released::Unknown),
        "{released:?}"
    );
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert!(next.token() > token);
    frozen.thaw();
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
    assert_eq!(waits_here.stats().losses.total(), 0);
}

#[tokio::test]
async fn server_restarted_while_held_and_while_waited_for() {
    let server = EtcdServer::start().await.expect("a server");
    let url = url([server.addr()], "session=15s&answer_timeout=1s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;

    server.kill();
    server.restart().await.expect("it comes again");
    renewed(&holder).await;
    assert!(guard.is_held(), "etcd keeps holds on disk");
    assert!(!waits.is_finished());
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        next.release().await.expect("the store answers"),
        Released::Freed
    );
}

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
        let token = next.token().map(|token| token.get().cast_signed());
        assert_eq!(token, Some(entry.create_revision()), "it holds by an entry");
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
        let token = next.token().map(|token| token.get().cast_signed());
        assert_eq!(token, Some(entry.create_revision()), "it holds by an entry");
        assert_ne!(entry.lease(), lease);
        assert_eq!(soon(guard.lost()).await, LossReason::SessionEnded);
        assert_eq!(
            next.release().await.expect("the store answers"),
            Released::Freed
        );
    }
}

#[tokio::test]
async fn lost_answer_to_a_keep_alive_is_not_a_loss() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&url([proxy.addr()], "session=4s&answer_timeout=1s")).await;
    let guard = lock(&locks, "a").await;
    let mut raw = raw(&[server.addr()]).await;
    let lease = entries(&mut raw, "a").await[0].lease();
    for _ in 0..2 {
        proxy.drop_reply_to(varint(lease), Duration::from_millis(20));
        soon(proxy.reply_dropped()).await;
        renewed(&locks).await;
        assert!(guard.is_held());
    }
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
}

/// A number as it stands in a request.
fn varint(number: i64) -> Vec<u8> {
    let mut left = number.cast_unsigned();
    let mut bytes = Vec::new();
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

#[tokio::test]
async fn request_that_arrives_after_its_release_leaves_nothing() {
    let server = EtcdServer::start().await.expect("a server");
    let slow = FaultProxy::start(server.addr()).await.expect("a proxy");
    let quick = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = url(
        [slow.addr(), quick.addr()],
        "session=30s&answer_timeout=300ms",
    );
    let mut raw = raw(&[server.addr()]).await;
    let mut marks = 0;
    for turn in 0..6 {
        let name = format!("late{turn}");
        // Either way may be the one that this client uses first.
        let locks = client(&url).await;
        let (used, other) = if slow.connections() > 0 {
            (&slow, &quick)
        } else {
            (&quick, &slow)
        };
        used.pause(Direction::ToServer);
        // The request is stuck, is sent again the other way, and is granted there.
        let guard = lock(&locks, &name).await;
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
        marks += raw
            .get(
                "dlock/!/",
                Some(etcd_client::GetOptions::new().with_prefix()),
            )
            .await
            .expect("marks")
            .count();
        // Now it arrives.
        used.resume();
        let check = client(&url).await;
        let guard = lock(&check, &name).await;
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
        assert!(
            entries(&mut raw, &name).await.is_empty(),
            "a late request took effect"
        );
        locks.close().await.expect("closed");
        check.close().await.expect("closed");
        used.reset_all().await;
        other.reset_all().await;
    }
    assert!(marks > 0, "no request was in doubt: the test tests nothing");
    let left = raw
        .get("dlock/", Some(etcd_client::GetOptions::new().with_prefix()))
        .await
        .expect("keys");
    assert_eq!(left.count(), 0, "marks go with the lease");
}

#[tokio::test]
async fn try_that_was_busy_takes_no_effect_later() {
    let server = EtcdServer::start().await.expect("a server");
    let one = FaultProxy::start(server.addr()).await.expect("a proxy");
    let two = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&url([server.addr()], "session=30s")).await;
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&holder, "a").await;
    let locks = client(&url(
        [one.addr(), two.addr()],
        "session=30s&answer_timeout=300ms",
    ))
    .await;
    let used = if one.connections() > 0 { &one } else { &two };
    used.pause(Direction::ToServer);
    // The request is stuck, is sent again the other way, and is told there that the lock is held.
    let mutex = locks.mutex("a").expect("a name");
    let tried = mutex.try_lock().await.expect("the store answers");
    assert!(tried.is_none());
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    // The client goes on with the same key, and then the request arrives.
    let guard = lock(&locks, "a").await;
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    used.resume();
    for _ in 0..20 {
        let guard = lock(&holder, "a").await;
        assert_eq!(
            guard.release().await.expect("the store answers"),
            Released::Freed
        );
    }
    assert!(
        entries(&mut raw, "a").await.is_empty(),
        "a late request took effect"
    );
}
