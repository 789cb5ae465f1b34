//! Restarts, and requests and answers that are lost or late.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::time::Duration;

use dlock_core::{Guard, Locks, Released};
use etcd_support::*;
use integration_tests::{Direction, EtcdServer, FaultProxy};

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

/// The request is carried out, its answer is lost, and it is sent again: the entry is there, and is its own.
#[tokio::test]
async fn lost_answer_to_an_acquire_finds_its_own_entry() {
    async fn take(locks: &Locks, how: &str) -> Guard {
        let (mutex, lock) = (locks.mutex(how), locks.rw_lock(how));
        let semaphore = locks.semaphore(how, 2).expect("a name");
        let (mutex, lock) = (mutex.expect("a name"), lock.expect("a name"));
        let taken = match how {
            "lock" => mutex.lock().await.map(Some),
            "try_lock" => mutex.try_lock().await,
            "read" => lock.read().await.map(Some),
            "try_read" => lock.try_read().await,
            "acquire" => semaphore.acquire().await.map(Some),
            _ => semaphore.try_acquire().await,
        };
        taken.expect("the store answers").expect("it is free")
    }
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&url([proxy.addr()], "session=30s")).await;
    let mut raw = raw(&[server.addr()]).await;
    for how in [
        "lock",
        "try_lock",
        "read",
        "try_read",
        "acquire",
        "try_acquire",
    ] {
        proxy.drop_reply_to(format!("dlock/{how}/"), Duration::from_millis(50));
        let guard = soon(take(&locks, how)).await;
        soon(proxy.reply_dropped()).await;
        let found = entries(&mut raw, how).await;
        assert_eq!(found.len(), 1, "{how}");
        let token = guard.token().map(|token| token.get().cast_signed());
        assert_eq!(token, Some(found[0].create_revision()), "{how}");
        let released = guard.release().await.expect("the store answers");
        assert_eq!(released, Released::Freed, "{how}");
        assert!(entries(&mut raw, how).await.is_empty(), "{how}");
    }
    assert_eq!(locks.stats().failed, 0);
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

/// A release that one server did not answer is done by another. The first request arrives when the client holds the lock again.
#[tokio::test]
async fn late_delete_of_a_release_meets_no_later_hold() {
    let server = EtcdServer::start().await.expect("a server");
    let proxies = [
        FaultProxy::start(server.addr()).await.expect("a proxy"),
        FaultProxy::start(server.addr()).await.expect("a proxy"),
    ];
    let addresses = [proxies[0].addr(), proxies[1].addr()];
    let locks = client(&url(addresses, "session=60s&answer_timeout=500ms")).await;
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&locks, "a").await;
    // Only the server that the client has chosen has heard of it.
    let slow = usize::from(proxies[1].bytes().to_server > proxies[0].bytes().to_server);
    proxies[slow].pause(Direction::ToServer);
    let before = proxies[slow].bytes().to_server;
    assert_eq!(
        guard.release().await.expect("the other one answers"),
        Released::Freed
    );
    let guard = lock(&locks, "a").await;
    proxies[slow].resume();
    until_so("the late request arrives", async || {
        proxies[slow].bytes().to_server > before
    })
    .await;
    // Long enough for what was sent to be done.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let found = entries(&mut raw, "a").await;
    assert_eq!(found.len(), 1, "the hold is in the store");
    let token = guard.token().map(|token| token.get().cast_signed());
    assert_eq!(token, Some(found[0].create_revision()));
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
}
