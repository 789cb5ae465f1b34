//! Members that fall silent, connections that break, and clocks that run out, while locks are held and waited for: nothing is lost that the
//! session's time allows to keep (docs/timeouts.md).
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Outcome, Renewal, Request};
use dlock_core::{Guard, Locks, Mode, Name, Released, Settings, SystemClock};
use etcd_support::*;
use integration_tests::{Direction, EtcdCluster, EtcdServer, FaultProxy};

/// A hold outlives three more thirds of its session, or is lost before.
async fn survives(locks: &Locks, guard: &Guard) {
    tokio::select! {
        biased;
        why = guard.lost() => panic!("the hold was lost: {why}"),
        () = async { renewed(locks).await; renewed(locks).await } => {}
    }
    assert_eq!(locks.stats().losses.total(), 0);
}

async fn two_ways(server: &EtcdServer) -> [FaultProxy; 2] {
    [
        FaultProxy::start(server.addr()).await.expect("a proxy"),
        FaultProxy::start(server.addr()).await.expect("a proxy"),
    ]
}

/// The one of two ways that a client has chosen.
fn used(proxies: &[FaultProxy; 2]) -> &FaultProxy {
    &proxies[usize::from(proxies[1].connections() > 0)]
}

/// A renewal must ask the next member before its own time is over, however long a member may take for other requests.
#[tokio::test]
async fn silent_member_costs_no_hold_of_a_short_session() {
    let server = EtcdServer::start().await.expect("a server");
    let proxies = two_ways(&server).await;
    let locks = client(&url(proxies.iter().map(FaultProxy::addr), "session=3s")).await;
    let guard = lock(&locks, "a").await;
    used(&proxies).black_hole(Direction::Both);
    survives(&locks, &guard).await;
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
}

/// One server, whose connection dies in silence: a new one is made in time.
#[tokio::test]
async fn half_open_connection_costs_no_hold_of_a_short_session() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&url([proxy.addr()], "session=3s")).await;
    let guard = lock(&locks, "a").await;
    proxy.half_open();
    survives(&locks, &guard).await;
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
}

/// The same for one who waits: its place is as old as it was.
#[tokio::test]
async fn silent_member_costs_no_place_of_a_short_session() {
    let server = EtcdServer::start().await.expect("a server");
    let proxies = two_ways(&server).await;
    let holder = client(&url([server.addr()], "session=30s")).await;
    let other = client(&url(proxies.iter().map(FaultProxy::addr), "session=3s")).await;
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;
    let place = entries(&mut raw, "a").await[1].create_revision();
    let kept = async || {
        let label = "grpc_method=\"LeaseKeepAlive\"";
        metric_with(server.addr(), "grpc_server_msg_received_total", label).await
    };
    let before = kept().await;
    used(&proxies).black_hole(Direction::Both);
    until_so("three more signs of life", async || {
        kept().await >= before + 3.0
    })
    .await;
    let now = entries(&mut raw, "a").await;
    assert_eq!(now.len(), 2);
    assert_eq!(now[1].create_revision(), place, "its place was lost");
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

/// Each disturbance has its own patience: one that was overcome is forgotten (C18).
#[tokio::test]
async fn second_disturbance_costs_no_place() {
    const PATIENCE: Duration = Duration::from_millis(700);
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&url([server.addr()], "session=30s")).await;
    let other = Locks::builder(backend(&url([proxy.addr()], "session=30s")).await)
        .settings(Settings::new().trip_timeout(PATIENCE))
        .build()
        .expect("good settings");
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;
    let place = entries(&mut raw, "a").await[1].create_revision();
    let watchers =
        async || metric(server.addr(), "etcd_debugging_mvcc_watcher_total").await as usize;
    for _ in 0..3 {
        until_so("it watches", async || watchers().await == 2).await;
        proxy.refuse();
        proxy.reset_all().await;
        until_so("it is disturbed", async || watchers().await == 0).await;
        proxy.accept();
        until_so("it watches again", async || watchers().await == 2).await;
        // The next disturbance comes when the patience for this one would be over.
        tokio::time::sleep(PATIENCE).await;
    }
    let now = entries(&mut raw, "a").await;
    assert_eq!(now.len(), 2);
    assert_eq!(now[1].create_revision(), place, "its place was lost");
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

/// The same for many waiters of one client, of whom most watch nothing and only see that their session lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_disturbance_costs_no_place_in_a_crowd() {
    const WAITERS: usize = 100;
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&url([server.addr()], "session=60s")).await;
    let crowd = Locks::builder(backend(&url([proxy.addr()], "session=6s")).await)
        .settings(
            Settings::new()
                .order(dlock_core::Order::Strict)
                .trip_timeout(Duration::from_secs(3)),
        )
        .build()
        .expect("good settings");
    let mut raw = raw(&[server.addr()]).await;
    let guard = lock(&holder, "a").await;
    let stand = |_| {
        let mutex = crowd.mutex("a").expect("a name");
        tokio::spawn(async move { drop(mutex.lock().await.expect("the lock")) })
    };
    let waits: Vec<_> = (0..WAITERS).map(stand).collect();
    waiting(&holder, "a", WAITERS).await;
    let mut places = async || -> Vec<i64> {
        let all = entries(&mut raw, "a").await;
        all.iter().map(|entry| entry.create_revision()).collect()
    };
    let before = places().await;
    for _ in 0..3 {
        proxy.refuse();
        proxy.reset_all().await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        proxy.accept();
        // The next disturbance comes when the patience for this one would be over.
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    assert_eq!(places().await, before, "a place was lost");
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );
    for wait in waits {
        soon(wait).await.expect("no panic");
    }
}

/// A member without its leader learns of nothing: a watch there would be silent for ever.
#[tokio::test]
async fn watch_at_a_member_without_a_leader_is_ended() {
    let cluster = EtcdCluster::start().await.expect("a cluster");
    let (alone, others) = cluster.members().split_first().expect("members");
    let holder = client(&url(cluster.addrs(), "session=60s")).await;
    let other = client(&url([alone.addr()], "session=60s")).await;
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;
    let watchers =
        async || metric(alone.addr(), "etcd_debugging_mvcc_watcher_total").await as usize;
    until_so("it watches", async || watchers().await == 2).await;
    for member in others {
        member.freeze();
    }
    until_so("the member ends the watch", async || watchers().await == 0).await;
    for member in others {
        member.thaw();
    }
    cluster.leader().await.expect("a leader");
    drop(guard);
    let next = soon(waits).await.expect("no panic").expect("the lock");
    drop(next);
}

/// By the client's clock the session is over, and others may have been told so; that the store still has the lease changes nothing.
#[tokio::test]
async fn session_that_has_lapsed_stays_over() {
    let server = EtcdServer::start().await.expect("a server");
    let session = Duration::from_secs(1);
    let backend = backend(&url([server.addr()], "session=1s")).await;
    let mut raw = raw(&[server.addr()]).await;
    let request = || {
        let name = Name::new("a").expect("a name");
        Request::new(name, Mode::Exclusive, Arc::new(SystemClock)).with_lease(session)
    };
    let Ok(Outcome::Held(lease)) = backend.try_acquire(&request()).await else {
        panic!("it is free");
    };
    let id = entries(&mut raw, "a").await[0].lease();
    // Somebody else keeps the lease alive in the store.
    let (mut keeper, mut kept) = raw.lease_keep_alive(id).await.expect("a stream");
    let taken = tokio::time::Instant::now();
    while taken.elapsed() < session + Duration::from_millis(200) {
        keeper.keep_alive().await.expect("sent");
        kept.message().await.expect("an answer").expect("a word");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let lease = Arc::new(lease);
    for _ in 0..2 {
        let answers = backend.renew(std::slice::from_ref(&lease)).await;
        assert!(
            matches!(answers[..], [Renewal::Lost(_) | Renewal::Failed(_)]),
            "{answers:?}"
        );
    }
    // What comes next hangs on a lease of its own.
    raw.lease_revoke(id).await.expect("revoked");
    let Ok(Outcome::Held(_)) = backend.try_acquire(&request()).await else {
        panic!("it is free");
    };
    assert_ne!(entries(&mut raw, "a").await[0].lease(), id);
}
