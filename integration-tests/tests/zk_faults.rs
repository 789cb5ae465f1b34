//! ZooKeeper locks when servers, connections and sessions fail.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::time::Duration;

use dlock_core::{Clock, ErrorKind, LossReason, Order, Released, Settings, SystemClock};
use integration_tests::{FaultProxy, ZooKeeperEnsemble, ZooKeeperServer, until};
use tokio::time::{sleep, timeout};
use zk_support::*;

async fn server() -> ZooKeeperServer {
    ZooKeeperServer::start_with(with_quick_clean_up())
        .await
        .expect("zookeeper")
}

/// Resolves when a client has renewed its holds once more.
async fn renewed(locks: &dlock_core::Locks) {
    let before = locks.stats().renewals;
    until("a renewal", SOON, || async {
        let now = locks.stats().renewals;
        if now > before {
            return Ok(());
        }
        Err(integration_tests::Error::answer(
            "renewals",
            now.to_string(),
        ))
    })
    .await
    .expect("the session lives");
}

/// Resolves when a lock's node has this many children.
async fn queue_of(admin: &Admin, parent: &str, count: usize) -> Vec<String> {
    until("places in the queue", SOON, || async {
        let queue = admin.queue(parent).await;
        if queue.len() == count {
            return Ok(queue);
        }
        Err(integration_tests::Error::answer(
            "queue",
            format!("{queue:?}"),
        ))
    })
    .await
    .expect("the queue")
}

/// Resolves when a server has this many watches.
async fn watched(server: &ZooKeeperServer, expected: u64) {
    until("watches", SOON, || async {
        match count(server, "zk_watch_count").await {
            n if n == expected => Ok(()),
            n => Err(integration_tests::Error::answer(
                "watches",
                format!("{n} of {expected}"),
            )),
        }
    })
    .await
    .expect("the waiters watch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_killed_while_held_and_waited_for_costs_neither_the_hold_nor_the_place() {
    let ensemble = ZooKeeperEnsemble::start().await.expect("an ensemble");
    let url = ensemble.url() + "?session=20s";
    let (holder, waiter) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let mutex = waiter.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    let places = Admin::connect(&url).await.queue("/dlock/a").await;

    let leader = ensemble.leader().await.expect("a leader");
    leader.kill();
    ensemble.leader_after(leader).await.expect("a new leader");
    renewed(&holder).await;
    assert!(guard.is_held());
    assert!(!waits.is_finished(), "granted while another holds");
    let survivors: Vec<String> = ensemble
        .members()
        .iter()
        .filter(|member| member.is_running())
        .map(|member| member.addr().to_string())
        .collect();
    let admin = Admin::connect(&format!("zk://{}", survivors.join(","))).await;
    assert_eq!(
        admin.queue("/dlock/a").await,
        places,
        "the places are the same"
    );

    let token = guard.token();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = timeout(SOON, waits)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert!(next.token() > token);
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    assert_eq!(
        holder.stats().losses.total() + waiter.stats().losses.total(),
        0
    );
}

#[tokio::test]
async fn server_frozen_for_less_than_the_session_costs_nothing() {
    let server = server().await;
    let url = server.url() + "?session=10s";
    let locks = client(&url).await;
    let guard = lock(&locks, "a").await;
    server.freeze();
    // Longer than the client believes in a silent connection.
    sleep(Duration::from_millis(4500)).await;
    assert!(guard.is_held());
    server.thaw();
    renewed(&locks).await;
    assert!(guard.is_held());
    assert_eq!(locks.stats().losses.total(), 0);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn server_frozen_for_longer_than_the_session_ends_the_hold_in_time() {
    let server = server().await;
    let url = server.url() + "?session=2s";
    let locks = client(&url).await;
    let guard = lock(&locks, "a").await;
    server.freeze();
    let until = guard.valid_until().expect("a deadline");
    let reason = timeout(SOON, guard.lost()).await.expect("told");
    assert_eq!(reason, LossReason::Expired);
    assert!(!guard.is_held());
    let late = SystemClock.now().since(until);
    assert!(
        late < Duration::from_millis(500),
        "told {late:?} after the end"
    );
    // Past the moment at which the client gives the session up.
    sleep(Duration::from_secs(2)).await;
    server.thaw();
    let other = client(&url).await;
    let next = lock(&other, "a").await;
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    let again = lock(&locks, "a").await;
    assert_eq!(again.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn session_that_the_server_forgot_is_replaced_and_its_holds_are_lost() {
    let server = server().await;
    let url = server.url() + "?session=20s";
    let locks = client(&url).await;
    let guard = lock(&locks, "a").await;
    // It comes back at once, with nothing of what it knew: the session has ended long before its time. A server takes no client
    // that has seen more transactions than it has, so there must be some.
    server.kill();
    std::fs::remove_dir_all(server.site().file("data/version-2")).expect("its data");
    server.restart().await.expect("it starts");
    let admin = Admin::connect(&url).await;
    for number in 0..50 {
        admin.create(&format!("/{number}"), "").await;
    }
    let reason = timeout(SOON, guard.lost()).await.expect("told");
    assert_eq!(reason, LossReason::SessionEnded);
    assert!(!guard.is_held());
    let again = lock(&locks, "a").await;
    assert!(again.is_held());
    renewed(&locks).await;
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert_eq!(again.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn session_that_expired_behind_a_broken_line_is_replaced_on_reconnect() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = format!("zk://{}?session=2s", proxy.addr());
    let locks = client(&url).await;
    let other = client(&server.url()).await;
    let guard = lock(&locks, "a").await;
    proxy.refuse();
    proxy.reset_all().await;
    // The next one holds when the server has ended the session; by then the first one knows.
    let next = lock(&other, "a").await;
    assert!(!guard.is_held(), "two believe to hold");
    proxy.accept();
    let mutex = locks.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&other, "a", 1).await;
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    let again = timeout(SOON, waits)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert!(again.is_held());
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert_eq!(again.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn connection_that_breaks_and_comes_back_keeps_the_lock() {
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&format!("zk://{}?session=10s", proxy.addr())).await;
    let guard = lock(&locks, "a").await;
    for _ in 0..3 {
        proxy.reset_all().await;
        renewed(&locks).await;
        assert!(guard.is_held());
    }
    assert_eq!(locks.stats().losses.total(), 0);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn node_deleted_by_an_administrator_is_told_with_the_next_renewal() {
    let server = server().await;
    let url = server.url() + "?session=3s";
    let locks = client(&url).await;
    let (lost, kept) = (lock(&locks, "lost").await, lock(&locks, "kept").await);
    let admin = Admin::connect(&url).await;
    admin.delete_holder("/dlock/lost").await;
    let reason = timeout(SOON, lost.lost()).await.expect("told");
    assert_eq!(reason, LossReason::Gone);
    assert!(kept.is_held());
    assert_eq!(
        lost.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert_eq!(kept.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn waiter_whose_node_was_deleted_queues_again() {
    let server = server().await;
    let url = server.url() + "?session=3s";
    let (holder, waiter) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let mutex = waiter.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    let admin = Admin::connect(&url).await;
    let queue = admin.queue("/dlock/a").await;
    admin
        .0
        .delete(&format!("/dlock/a/{}", queue[1]), None)
        .await
        .expect("delete");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = timeout(SOON, waits)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert_eq!(admin.queue("/dlock/a").await.len(), 1, "it really holds");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn middle_waiter_that_dies_is_skipped_and_nobody_is_granted_early() {
    let server = server().await;
    let url = server.url() + "?session=20s";
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&url).await;
    let dying = client(&format!("zk://{}?session=1s", proxy.addr())).await;
    let last = client(&url).await;
    let guard = lock(&holder, "a").await;
    let mut waits = Vec::new();
    for (count, locks) in [(1, &dying), (2, &last)] {
        let mutex = locks.mutex("a").expect("a name");
        waits.push(tokio::spawn(async move { mutex.lock().await }));
        waiting(&holder, "a", count).await;
    }
    let admin = Admin::connect(&url).await;
    let queue = admin.queue("/dlock/a").await;
    // Its session ends at the server, as when its process was killed.
    proxy.refuse();
    proxy.reset_all().await;
    let left = queue_of(&admin, "/dlock/a", 2).await;
    assert_eq!(left, [queue[0].clone(), queue[2].clone()]);
    // Its successor has been woken and watches the holder now, beside itself; and it is not granted.
    watched(&server, 2).await;
    assert!(!waits[1].is_finished(), "granted while another holds");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let last = waits.pop().expect("two");
    let next = timeout(SOON, last)
        .await
        .expect("the last")
        .expect("no panic")
        .expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    waits[0].abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waiters_are_served_in_order_with_one_wake_up_for_each_release() {
    const WAITERS: u64 = 200;
    let server = server().await;
    let url = server.url() + "?session=20s";
    let strict = || Settings::new().order(Order::Strict);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client_with(&url, strict()).await);
    }
    let guard = lock(&clients[0], "a").await;
    let admin = Admin::connect(&url).await;
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..WAITERS {
        let mutex = clients[number as usize % 4].mutex("a").expect("a name");
        let granted = granted.clone();
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            granted.send((guard.token(), guard)).ok();
        });
    }
    let places = queue_of(&admin, "/dlock/a", WAITERS as usize + 1).await;
    // Every waiter watches itself and the one before, and a server counts a node once for each client that watches it.
    let mut owners = Vec::new();
    for place in &places {
        let stat = admin
            .0
            .check_stat(&format!("/dlock/a/{place}"))
            .await
            .expect("stat");
        owners.push(stat.expect("it waits").ephemeral_owner);
    }
    let twice = owners[1..]
        .windows(2)
        .filter(|pair| pair[0] != pair[1])
        .count() as u64;
    watched(&server, WAITERS + 1 + twice).await;
    let before = count(&server, "zk_packets_received").await;
    let mut last = guard.token();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    for place in 1..=WAITERS as usize {
        let next = timeout(SOON, grants.recv())
            .await
            .expect("the next")
            .expect("they live");
        assert!(next.0 > last, "in the order of the queue");
        last = next.0;
        let first = admin.queue("/dlock/a").await.into_iter().next();
        assert_eq!(
            first.as_ref(),
            places.get(place),
            "in the order of the queue"
        );
        assert_eq!(next.1.release().await.expect("release"), Released::Freed);
    }
    // For each: its release and the next one's look. The administrator's two, and heartbeats.
    let packets = count(&server, "zk_packets_received").await - before;
    assert!(
        packets < WAITERS * 6,
        "{packets} requests for {WAITERS} hand-overs"
    );
}

#[tokio::test]
async fn create_that_a_frozen_server_reads_after_its_session_was_given_up_leaves_nothing() {
    let server = server().await;
    let url = server.url() + "?session=1s&connect_timeout=20s";
    let settings = Settings::new().trip_timeout(Duration::from_millis(300));
    let locks = client_with(&url, settings).await;
    let admin = Admin::connect(&url).await;
    assert_eq!(
        lock(&locks, "a").await.release().await.expect("release"),
        Released::Freed
    );
    server.freeze();
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("frozen");
    assert!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable),
        "{error}"
    );
    // The client gives the session up after 1.4 of its times; the request lies in the server's socket.
    sleep(Duration::from_secs(2)).await;
    server.thaw();
    until("the attempt is undone", SOON, || async {
        match locks.stats().in_doubt {
            0 => Ok(()),
            n => Err(integration_tests::Error::answer("in doubt", n.to_string())),
        }
    })
    .await
    .expect("undone");
    assert_eq!(
        admin.queue("/dlock/a").await,
        Vec::<String>::new(),
        "left in the queue"
    );
    assert_eq!(
        lock(&locks, "a").await.release().await.expect("release"),
        Released::Freed
    );
}

#[test]
fn session_outlives_the_runtime_that_opened_it() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let servers = runtime();
    let server = servers.block_on(server());
    let first = runtime();
    let (locks, guard) = first.block_on(async {
        let locks = client(&format!("{}?session=20s", server.url())).await;
        let guard = lock(&locks, "a").await;
        (locks, guard)
    });
    drop(first);
    runtime().block_on(async {
        let other = lock(&locks, "b").await;
        renewed(&locks).await;
        assert!(guard.is_held());
        assert_eq!(other.release().await.expect("release"), Released::Freed);
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        assert_eq!(locks.stats().losses.total(), 0);
        locks.close().await.expect("close");
    });
}
