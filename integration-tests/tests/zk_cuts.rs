//! ZooKeeper locks over cuts that are well within the session: no hold, no place and no session is lost.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::time::Duration;

use dlock_core::{Order, Released, Settings};
use integration_tests::{Direction, FaultProxy, until};
use tokio::time::{sleep, timeout};
use zk_support::*;

#[tokio::test]
async fn cut_of_a_quarter_of_the_session_keeps_the_place_in_the_queue() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&server.url()).await;
    let waiter = client(&format!("zk://{}?session=30s", proxy.addr())).await;
    let guard = lock(&holder, "a").await;
    let mutex = waiter.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    let admin = Admin::connect(&server.url()).await;
    let places = queue_of(&admin, "/dlock/a", 2).await;
    proxy.refuse();
    proxy.reset_all().await;
    sleep(Duration::from_millis(7500)).await;
    proxy.accept();
    proxy.connections_are(1).await;
    assert!(!waits.is_finished(), "it gave up");
    assert_eq!(admin.queue("/dlock/a").await, places, "the place is kept");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = timeout(SOON, waits).await.expect("the waiter");
    let next = next.expect("no panic").expect("the lock");
    assert_eq!(admin.queue("/dlock/a").await, places[1..], "by that place");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn cut_of_nearly_half_of_the_session_costs_no_hold() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&format!("zk://{}?session=30s", proxy.addr())).await;
    let guard = lock(&locks, "a").await;
    renewed(&locks).await;
    proxy.refuse();
    proxy.reset_all().await;
    sleep(Duration::from_secs(13)).await;
    proxy.accept();
    assert!(guard.is_held());
    renewed(&locks).await;
    assert!(guard.is_held());
    assert_eq!(locks.stats().losses.total(), 0);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn silent_server_costs_no_hold_of_a_short_session() {
    let server = server().await;
    let ways = [
        FaultProxy::start(server.addr()).await.expect("a proxy"),
        FaultProxy::start(server.addr()).await.expect("a proxy"),
    ];
    let hosts = format!("{},{}", ways[0].addr(), ways[1].addr());
    let locks = client(&format!("zk://{hosts}?session=3s")).await;
    let guard = lock(&locks, "a").await;
    for round in 0..6 {
        renewed(&locks).await;
        let used = usize::from(ways[0].connections() == 0);
        // It takes new connections, and says nothing there either.
        ways[used].black_hole(Direction::Both);
        ways[1 - used].connections_are(1).await;
        renewed(&locks).await;
        assert!(guard.is_held(), "{round}");
        ways[used].heal().await;
    }
    assert_eq!(locks.stats().losses.total(), 0);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

/// How many waiters, and how long the names of their locks: together more than a mebibyte of watched paths, which a client has to name again
/// after a reset, in several requests.
const WAITERS: usize = 5000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_with_thousands_of_watches_costs_neither_the_session_nor_a_place() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&(server.url() + "?session=60s")).await;
    let settings = Settings::new().order(Order::Strict);
    let waiter = client_with(&format!("zk://{}?session=60s", proxy.addr()), settings).await;
    let name = |number: usize| format!("{number:04}-{}", "x".repeat(200));
    let names: Vec<String> = (0..WAITERS).map(name).collect();
    let mut guards = Vec::new();
    for some in names.chunks(100) {
        let asked = some.iter().map(|name| lock(&holder, name));
        guards.extend(futures::future::join_all(asked).await);
    }
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..WAITERS {
        let mutex = waiter.mutex(name(number)).expect("a name");
        let granted = granted.clone();
        tokio::spawn(async move {
            let guard = mutex.lock().await;
            granted.send((number, guard)).ok();
        });
    }
    let watches = 2 * WAITERS as u64;
    watched(&server, watches).await;
    proxy.reset_all().await;
    proxy.connections_are(1).await;
    watched(&server, watches).await;
    let ephemerals = count(&server, "zk_ephemerals_count").await;
    assert_eq!(ephemerals, watches, "all places and holds are there");
    let released = guards.into_iter().map(dlock_core::Guard::release);
    for released in futures::future::join_all(released).await {
        assert_eq!(released.expect("release"), Released::Freed);
    }
    let mut served = std::collections::BTreeSet::new();
    while served.len() < WAITERS {
        let next = timeout(SOON, grants.recv()).await.expect("soon");
        let (number, guard) = next.expect("one");
        assert!(served.insert(number), "{number} twice");
        drop(guard.expect("the lock"));
    }
    assert_eq!(waiter.stats().losses.total(), 0);
    assert_eq!(
        waiter.stats().acquired,
        WAITERS as u64,
        "none of them twice"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_after_thousands_of_locks_that_nobody_else_wants_costs_no_hold() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&format!("zk://{}?session=30s", proxy.addr())).await;
    let guard = lock(&locks, "held").await;
    // Twice each: then they are remembered, with a watch.
    for number in 0..1000 {
        for _ in 0..2 {
            let guard = lock(&locks, &format!("{number:04}-{}", "x".repeat(200))).await;
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
    }
    proxy.reset_all().await;
    renewed(&locks).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    assert_eq!(locks.stats().losses.total(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_waiters_cost_little() {
    const WAITERS: usize = 2000;
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&(server.url() + "?session=8s")).await;
    let settings = Settings::new().order(Order::Strict);
    let waiters = client_with(&format!("zk://{}?session=8s", proxy.addr()), settings).await;
    let guard = lock(&holder, "a").await;
    let mut waits = Vec::new();
    for _ in 0..WAITERS {
        let mutex = waiters.mutex("a").expect("a name");
        waits.push(tokio::spawn(async move { mutex.lock().await }));
    }
    // Each watches itself, and the one before.
    watched(&server, WAITERS as u64 + 1).await;
    let (bytes, packets) = (proxy.bytes(), count(&server, "zk_packets_received").await);
    // Two sessions, in which it is proven again and again that they live. The slow looks, every 45 to 75 s, are not in it.
    sleep(Duration::from_secs(17)).await;
    let now = proxy.bytes();
    let bytes = now.to_client + now.to_server - bytes.to_client - bytes.to_server;
    let packets = count(&server, "zk_packets_received").await - packets;
    let most = WAITERS as u64;
    assert!(packets < most / 2, "{packets} requests");
    // The last answers to those who came may still be on their way. To read the queue, even one in ten of them, takes more.
    assert!(bytes < 200 * most, "{bytes} bytes");
    assert!(guard.is_held());
    assert_eq!(holder.stats().losses.total(), 0);
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    until("all are undone", 3 * SOON, || async {
        match waiters.stats().in_doubt {
            0 => Ok(()),
            n => Err(integration_tests::Error::answer("in doubt", n.to_string())),
        }
    })
    .await
    .expect("undone");
}
