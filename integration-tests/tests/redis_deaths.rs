//! Waiters and grantees that die, with a signal nobody can catch or in silence, and what they leave that could take effect later.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::{Duration, Instant};

use dlock_core::{HeldNow, Released, Settings};
use integration_tests::{Direction, FaultProxy, Holder, RedisServer};
use redis_support::*;

const HOLD_LOCK: &str = env!("CARGO_BIN_EXE_hold-lock");

#[tokio::test]
async fn waiters_killed_in_the_queue_stall_nobody() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let mut doomed = Vec::new();
    for place in 1..=3 {
        let process = Holder::start(HOLD_LOCK, &server.url(), "a", "exclusive", None).await;
        doomed.push(process.expect("a process"));
        waiting(&mine, "a", place).await;
    }
    let theirs = client(&server.url()).await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 4).await;
    for process in &mut doomed {
        process.kill().await.expect("kill");
    }
    let start = Instant::now();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let granted = waiter.await.expect("a task");
    // Their connections are gone, so they are skipped at once; a waiter lease would be 3 s each.
    assert!(start.elapsed() < seconds(2), "{:?}", start.elapsed());
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_grantee_killed_before_it_confirms_costs_no_more_than_its_lease() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let lease = Some(seconds(2));
    let process = Holder::start(HOLD_LOCK, &server.url(), "a", "exclusive", lease).await;
    let mut grantee = process.expect("a process");
    waiting(&mine, "a", 1).await;
    let theirs = client(&server.url()).await;
    let waiter = tokio::spawn({
        let theirs = theirs.clone();
        async move { lock(&theirs, "a").await }
    });
    waiting(&mine, "a", 2).await;
    // It is alive as far as the server can see, is given the lock, and never learns of it.
    grantee.freeze().expect("freeze");
    let start = Instant::now();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    waiting(&mine, "a", 1).await;
    grantee.kill().await.expect("kill");
    let granted = waiter.await.expect("a task");
    assert!(start.elapsed() < seconds(2 + 2), "{:?}", start.elapsed());
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_grantee_that_vanished_silently_costs_no_more_than_its_lease() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&server.url()).await;
    let gone = client_with(&through(&server, &proxy), Settings::new().lease(seconds(2))).await;
    let guard = lock(&mine, "a").await;
    let lost = tokio::spawn(async move { gone.mutex("a").expect("a name").lock().await });
    waiting(&mine, "a", 1).await;
    // Half open: the server believes that it listens.
    proxy.black_hole(Direction::Both);
    let theirs = client(&server.url()).await;
    let waiter = tokio::spawn({
        let theirs = theirs.clone();
        async move { lock(&theirs, "a").await }
    });
    waiting(&theirs, "a", 2).await;
    let start = Instant::now();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let granted = waiter.await.expect("a task");
    assert!(start.elapsed() < seconds(2 + 2), "{:?}", start.elapsed());
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
    lost.abort();
}

#[tokio::test]
async fn a_grantee_silent_for_long_costs_no_more_than_a_waiter_lease() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&server.url()).await;
    let gone = client(&through(&server, &proxy)).await; // a lease of 30 s
    let guard = lock(&mine, "a").await;
    let lost = tokio::spawn(async move { gone.mutex("a").expect("a name").lock().await });
    waiting(&mine, "a", 1).await;
    proxy.black_hole(Direction::Both);
    let theirs = client(&server.url()).await;
    let waiter = tokio::spawn({
        let theirs = theirs.clone();
        async move { lock(&theirs, "a").await }
    });
    waiting(&theirs, "a", 2).await;
    // Its last sign of life gets old: by now it must confirm a grant, or is dropped.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let start = Instant::now();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let granted = waiter.await.expect("a task");
    assert!(start.elapsed() < seconds(3 + 2), "{:?}", start.elapsed());
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
    lost.abort();
}

/// However long an answer may take: signs of life have a time-out of their own, and reach the server by a new connection in time.
#[tokio::test]
async fn a_waiter_keeps_its_place_when_its_connection_is_half_open() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&server.url()).await;
    let url = format!(
        "{}?waiter_lease=4s&answer_timeout=10s",
        through(&server, &proxy)
    );
    let settings = Settings::new().trip_timeout(seconds(10));
    let (first, second) = (
        client_with(&url, settings).await,
        client(&server.url()).await,
    );
    let guard = lock(&mine, "a").await;
    let first = tokio::spawn(async move { first.mutex("a").expect("a name").lock().await });
    waiting(&mine, "a", 1).await;
    let second = tokio::spawn(async move { lock(&second, "a").await });
    waiting(&mine, "a", 2).await;
    proxy.half_open();
    // The last sign of life on the old connection is older than a waiter lease by then.
    tokio::time::sleep(seconds(5)).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let first = tokio::time::timeout(SOON, first).await.expect("in time");
    let first = first.expect("a task").expect("the lock");
    assert!(!second.is_finished(), "the second one overtook the first");
    assert_eq!(first.release().await.expect("release"), Released::Freed);
    let second = second.await.expect("a task");
    assert_eq!(second.release().await.expect("release"), Released::Freed);
}

/// The limit of "first come, first served": a waiter that stood still is passed over when its turn comes, and whoever asks it hears of no error.
#[tokio::test]
async fn a_waiter_that_stood_still_for_its_waiter_lease_is_overtaken_and_not_told() {
    let server = RedisServer::start().await.expect("redis");
    let url = format!("{}?waiter_lease=1s", server.url());
    let (mine, theirs) = (client(&url).await, client(&server.url()).await);
    let guard = lock(&mine, "a").await;
    let first = Holder::start(HOLD_LOCK, &url, "a", "exclusive", None).await;
    let mut first = first.expect("a process");
    waiting(&mine, "a", 1).await;
    let second = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 2).await;
    first.freeze().expect("SIGSTOP");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let second = second.await.expect("the second one overtakes it");
    first.thaw().expect("SIGCONT");
    waiting(&mine, "a", 1).await;
    assert_eq!(second.release().await.expect("release"), Released::Freed);
    assert!(first.held().await.expect("no error") > 0);
    assert_eq!(first.release().await.expect("an answer"), "Freed");
}

#[tokio::test]
async fn a_waiter_that_was_cut_off_gives_its_place_up() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let url = format!("{}?waiter_lease=60s", through(&server, &proxy));
    let settings = Settings::new().retry_unreachable_for(Duration::from_millis(200));
    let theirs = client_with(&url, settings).await;
    let waiter = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.mutex("a").expect("a name").lock().await }
    });
    waiting(&mine, "a", 1).await;
    // It cannot ask any more, but its place in the queue is there: it could still be given the lock.
    proxy.refuse();
    proxy.reset_all().await;
    let error = waiter.await.expect("a task").expect_err("cut off");
    assert_ne!(error.held_now(), HeldNow::No, "{error}");
    proxy.accept();
    // Its client listens again, so a grant would be heard.
    drop(lock(&theirs, "b").await);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    drop(lock(&mine, "a").await);
    mine.close().await.expect("close");
    theirs.close().await.expect("close");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// The first request was sent on a connection that broke, and could still come when the caller has been told that others hold the lock.
#[tokio::test]
async fn a_request_that_was_sent_twice_is_refused_after_the_caller_gave_up() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&server.url()).await;
    for style in ["fair", "barging"] {
        let url = format!("{}?style={style}", through(&server, &proxy));
        for limit in [Duration::ZERO, Duration::from_millis(300)] {
            let name = format!("{style}{}", limit.as_millis());
            let guard = lock(&mine, &name).await;
            let theirs = client(&url).await;
            let mutex = theirs.mutex(&name).expect("a name");
            proxy.drop_reply(1);
            let got = mutex.lock_within(limit).await.expect("an answer");
            assert!(got.is_none(), "{name} is held");
            let memory = ["ZCARD", &format!("dlock:{{{name}}}:t")];
            let refused = number(&server.command(&memory).await.expect("ZCARD"));
            assert_eq!(refused, 1, "{name}: it could come late, and take the lock");
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
    }
}

#[tokio::test]
async fn a_plain_waiter_whose_request_was_sent_twice_waits_on() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&format!("{}?style=plain", server.url())).await;
    let theirs = client(&format!("{}?style=plain", through(&server, &proxy))).await;
    let guard = lock(&mine, "a").await;
    proxy.drop_reply(1);
    let waiter = tokio::spawn({
        let theirs = theirs.clone();
        async move { lock(&theirs, "a").await }
    });
    // The first request was undone, so that it cannot come late.
    integration_tests::until("the undo", SOON, || async {
        let keys = server.command(&["KEYS", "dlock-abandoned:*"]).await?;
        match keys.list().len() {
            1 => Ok(()),
            other => Err(integration_tests::Error::answer("KEYS", other.to_string())),
        }
    })
    .await
    .expect("it is remembered");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let granted = waiter.await.expect("a task");
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
}
