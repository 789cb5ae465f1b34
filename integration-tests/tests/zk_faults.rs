//! ZooKeeper locks when servers, connections and sessions fail.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::time::Duration;

use dlock_core::{Clock, ErrorKind, LossReason, Released, Settings, SystemClock};
use integration_tests::{FaultProxy, ZooKeeperEnsemble, until};
use tokio::time::{sleep, timeout};
use zk_support::*;

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
async fn restarted_server_keeps_holds_and_places() {
    let server = server().await;
    let url = server.url() + "?session=20s";
    let (locks, other) = (client(&url).await, client(&url).await);
    let guard = lock(&locks, "a").await;
    let mutex = other.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&locks, "a", 1).await;
    server.kill();
    server.restart().await.expect("it starts");
    renewed(&locks).await;
    assert!(guard.is_held());
    waiting(&locks, "a", 1).await;
    assert!(!waits.is_finished(), "two hold");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = timeout(SOON, waits).await.expect("the waiter");
    let next = next.expect("no panic").expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_cut_off_together_with_its_client_ends_the_hold_before_the_next_one_begins() {
    // Long ticks: a follower tells its leader only every half tick who is alive. The leader rounds up to a whole tick, by a clock that
    // nobody sees, so the worst case cannot be made on purpose; what counts is that nobody ever gets the lock too early.
    let mut settings = with_quick_clean_up();
    settings.tick = 1000;
    let ensemble = ZooKeeperEnsemble::start_with(settings, 3)
        .await
        .expect("an ensemble");
    let leader = ensemble.leader().await.expect("a leader");
    let mut members = ensemble.members().iter();
    let follower = members
        .find(|member| member.port() != leader.port())
        .expect("a follower");
    let other = client(&leader.url()).await;
    let locks = client(&(follower.url() + "?session=4s")).await;
    let guard = lock(&locks, "a").await;
    let mutex = other.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&other, "a", 1).await;
    // What the follower has heard of its client since its last word to the leader, it keeps to itself.
    renewed(&locks).await;
    follower.freeze();
    let next = timeout(SOON, waits)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert!(!guard.is_held(), "two believe to hold");
    assert_eq!(guard.lost().await, LossReason::Expired);
    follower.thaw();
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
}
