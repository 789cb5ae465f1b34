//! ZooKeeper locks at a server that has lost its majority: it still answers reads, and what it says is no proof of life.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Request};
use dlock_core::{LossReason, Mode, Name, Released, SystemClock};
use integration_tests::{Direction, FaultProxy, ZooKeeperEnsemble, ZooKeeperServer};
use tokio::time::timeout;
use zk_support::*;

/// An ensemble whose members bear with a silent leader or follower for 20 s.
async fn patient(size: usize) -> ZooKeeperEnsemble {
    let mut settings = with_quick_clean_up();
    settings.config.push("syncLimit=100".to_owned());
    ZooKeeperEnsemble::start_with(settings, size)
        .await
        .expect("an ensemble")
}

/// One follower, and everybody else.
async fn one_and_others(ensemble: &ZooKeeperEnsemble) -> (&ZooKeeperServer, Vec<&ZooKeeperServer>) {
    let leader = ensemble.leader().await.expect("a leader").port();
    let (mut followers, mut others): (Vec<_>, Vec<_>) = ensemble
        .members()
        .iter()
        .partition(|member| member.port() != leader);
    let one = followers.pop().expect("a follower");
    others.append(&mut followers);
    (one, others)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_not_granted_on_the_word_of_a_follower_without_its_leader() {
    let ensemble = patient(3).await;
    let (follower, others) = one_and_others(&ensemble).await;
    let proxy = FaultProxy::start(follower.addr()).await.expect("a proxy");
    let (holder, middle) = (
        client(&others[0].url()).await,
        client(&others[0].url()).await,
    );
    let waiter = client(&format!("zk://{}?session=30s", proxy.addr())).await;
    let guard = lock(&holder, "a").await;
    let mut waits = Vec::new();
    for (count, locks) in [(1, &middle), (2, &waiter)] {
        let mutex = locks.mutex("a").expect("a name");
        waits.push(tokio::spawn(async move { mutex.lock().await }));
        waiting(&holder, "a", count).await;
    }
    let admin = Admin::connect(&follower.url()).await;
    let places = queue_of(&admin, "/dlock/a", 3).await;
    watched(follower, 2).await;

    // Both before it go, and it does not hear of it yet.
    proxy.pause(Direction::ToClient);
    let last = waits.pop().expect("two");
    for place in &places[..2] {
        let path = format!("/dlock/a/{place}");
        admin.0.delete(&path, None).await.expect("delete");
    }
    assert_eq!(queue_of(&admin, "/dlock/a", 1).await, places[2..]);
    others.iter().for_each(|member| member.freeze());
    proxy.resume();
    // Its server sees it alone in the queue, and cannot know whether its session still lives.
    let mut last = last;
    let early = timeout(Duration::from_secs(2), &mut last).await;
    assert!(early.is_err(), "granted without a majority: {early:?}");
    others.iter().for_each(|member| member.thaw());
    let next = timeout(SOON, last)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    drop(guard);
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_not_renewed_on_the_word_of_a_follower_without_its_leader() {
    let ensemble = patient(3).await;
    let (follower, others) = one_and_others(&ensemble).await;
    let locks = client(&(follower.url() + "?session=4s")).await;
    let guard = lock(&locks, "a").await;
    renewed(&locks).await;
    others.iter().for_each(|member| member.freeze());
    // It bears with them for 20 s, and then it answers nothing either.
    let reason = timeout(Duration::from_secs(8), guard.lost()).await;
    let answer = follower.four_letter_word("srvr").await.expect("srvr");
    others.iter().for_each(|member| member.thaw());
    assert_eq!(reason.expect("told"), LossReason::Expired);
    // That it was the majority that was missing, and not the server that we talk to.
    assert!(answer.contains("Mode: follower"), "{answer}");
}

/// A `sync` is answered by the leader alone, also by one whose followers have chosen another meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_is_not_renewed_on_the_word_of_a_leader_without_its_followers() {
    let ensemble = patient(3).await;
    let leader = ensemble.leader().await.expect("a leader");
    let locks = client(&(leader.url() + "?session=4s")).await;
    let guard = lock(&locks, "a").await;
    renewed(&locks).await;
    let followers = ensemble.members().iter();
    let followers: Vec<_> = followers
        .filter(|member| member.port() != leader.port())
        .collect();
    followers.iter().for_each(|member| member.freeze());
    // It bears with them for 20 s.
    let reason = timeout(Duration::from_secs(8), guard.lost()).await;
    let answer = leader.four_letter_word("srvr").await.expect("srvr");
    followers.iter().for_each(|member| member.thaw());
    assert_eq!(reason.expect("told"), LossReason::Expired);
    assert!(answer.contains("Mode: leader"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_not_granted_on_the_word_of_a_leader_without_its_followers() {
    let ensemble = patient(3).await;
    let leader = ensemble.leader().await.expect("a leader");
    let proxy = FaultProxy::start(leader.addr()).await.expect("a proxy");
    let holder = client(&leader.url()).await;
    let waiter = client(&format!("zk://{}?session=30s", proxy.addr())).await;
    let guard = lock(&holder, "a").await;
    let mutex = waiter.mutex("a").expect("a name");
    let mut waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    watched(leader, 2).await;
    let admin = Admin::connect(&leader.url()).await;
    // The one before it goes. It hears of that only after another connection, so that it has to ask.
    proxy.refuse();
    proxy.reset_all().await;
    admin.delete_holder("/dlock/a").await;
    let followers = ensemble.members().iter();
    let followers: Vec<_> = followers
        .filter(|member| member.port() != leader.port())
        .collect();
    followers.iter().for_each(|member| member.freeze());
    proxy.accept();
    proxy.connections_are(1).await;
    let early = timeout(Duration::from_secs(2), &mut waits).await;
    followers.iter().for_each(|member| member.thaw());
    assert!(early.is_err(), "granted without a majority: {early:?}");
    let next = timeout(SOON, waits)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    drop(guard);
}

/// Waits behind a holder through one member, while all others are frozen: what that one says keeps no wait alive. The backend is asked directly,
/// because who waits through the whole library would stand in line again after an error.
async fn wait_ends_without_a_majority(
    alone: &ZooKeeperServer,
    others: &[&ZooKeeperServer],
) -> String {
    const SESSION: Duration = Duration::from_secs(4);
    // So long a session that nothing is asked for its sake meanwhile: a leader answers no `sync` as long as a change waits for its followers.
    let holder = client(&(alone.url() + "?session=60s")).await;
    let guard = lock(&holder, "a").await;
    let waiter = backend(&(alone.url() + "?session=4s")).await;
    let name = Name::new("a").expect("a name");
    let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
    let mut waits = tokio::spawn(async move { waiter.acquire(&request).await });
    watched(alone, 2).await;
    // With a majority it waits on, for longer than a session.
    let ended = timeout(SESSION * 3 / 2, &mut waits).await;
    assert!(ended.is_err(), "the wait has ended: {ended:?}");
    others.iter().for_each(|member| member.freeze());
    let ended = timeout(SESSION * 3 / 2, &mut waits).await;
    let answer = alone.four_letter_word("srvr").await;
    others.iter().for_each(|member| member.thaw());
    let outcome = ended.expect("kept alive without a majority");
    let outcome = outcome.expect("no panic");
    assert!(outcome.is_err(), "it says {outcome:?}");
    drop(guard);
    // It tells that it was the majority that was missing, and not the server that we talk to.
    answer.expect("srvr")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_is_not_kept_alive_on_the_word_of_a_follower_without_its_leader() {
    let ensemble = patient(3).await;
    let (follower, others) = one_and_others(&ensemble).await;
    let answer = wait_ends_without_a_majority(follower, &others).await;
    assert!(answer.contains("Mode: follower"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_is_not_kept_alive_on_the_word_of_a_leader_without_its_followers() {
    let ensemble = patient(3).await;
    let leader = ensemble.leader().await.expect("a leader");
    let members = ensemble.members().iter();
    let followers: Vec<_> = members
        .filter(|member| member.port() != leader.port())
        .collect();
    let answer = wait_ends_without_a_majority(leader, &followers).await;
    assert!(answer.contains("Mode: leader"), "{answer}");
}
