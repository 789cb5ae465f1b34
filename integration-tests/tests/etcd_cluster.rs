//! Members of an etcd cluster that die, hang or are too few, while locks are held and waited for.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use dlock_core::{ErrorKind, Released};
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
async fn one_living_member_of_five_endpoints_is_enough() {
    let cluster = EtcdCluster::start().await.expect("a cluster");
    let leader = cluster.leader().await.expect("a leader");
    let mut others = cluster
        .members()
        .iter()
        .filter(|member| member.addr() != leader.addr());
    let living = others.next().expect("a follower");
    let mut dead = Vec::new();
    for _ in 0..3 {
        let proxy = FaultProxy::start(living.addr()).await.expect("a proxy");
        proxy.refuse();
        dead.push(proxy);
    }
    // The third member keeps the majority, and is not told to anybody.
    let ends = [leader.addr(), living.addr()];
    let url = url(
        dead.iter().map(FaultProxy::addr).chain(ends),
        "session=15s&answer_timeout=1s",
    );
    let (holder, other) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;

    leader.kill();
    cluster.leader_after(leader).await.expect("another leader");
    renewed(&holder).await;
    assert!(guard.is_held(), "the living member is enough");
    // One that starts now finds its way too.
    let late = client(&url).await;
    waiting(&late, "a", 1).await;
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
    let next = soon(waits).await.expect("no panic").expect("the lock");
    let released = next.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
    assert_eq!(holder.stats().losses.total(), 0);
}

/// A leader without followers keeps what it was asked for, and may carry it out when they come back.
#[tokio::test]
async fn cluster_without_a_majority_is_an_error_that_takes_no_effect_later() {
    let cluster = EtcdCluster::start().await.expect("a cluster");
    let leader = cluster.leader().await.expect("a leader");
    let url = url(cluster.addrs(), "session=60s&answer_timeout=1s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let followers: Vec<&EtcdServer> = cluster
        .members()
        .iter()
        .filter(|member| member.addr() != leader.addr())
        .collect();
    for follower in &followers {
        follower.kill();
    }

    let free = other.mutex("b").expect("a name");
    let error = soon(free.try_lock()).await.expect_err("no majority");
    assert!(
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
        "{error}"
    );
    assert!(error.is_retryable(), "{error}");
    let error = soon(other.inspect("a")).await.expect_err("no majority");
    assert!(
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
        "{error}"
    );
    assert!(guard.is_held(), "an outage shorter than the lease");

    followers[0].restart().await.expect("it comes again");
    cluster.leader().await.expect("a leader");
    // The try must not have the lock, whatever became of its request.
    let again = lock(&holder, "b").await;
    let released = again.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
    let mut raw = raw(&[leader.addr()]).await;
    assert!(entries(&mut raw, "a").await.is_empty());
    assert!(entries(&mut raw, "b").await.is_empty());
    let guard = soon(free.try_lock()).await.expect("the store answers");
    let released = guard.expect("it is free").release().await;
    assert_eq!(released.expect("the store answers"), Released::Freed);
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
