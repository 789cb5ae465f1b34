//! Who is woken by a release, and who is not taken for alive.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dlock_core::{Released, Settings};
use futures::future::join_all;
use futures::{Stream, StreamExt};
use integration_tests::{FaultProxy, Holder, RedisServer};
use redis_support::*;

const HOLD_LOCK: &str = env!("CARGO_BIN_EXE_hold-lock");

/// Everything that is published at a server, from now on.
struct Watcher(Pin<Box<dyn Stream<Item = redis::Msg> + Send>>);

impl Watcher {
    async fn of(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("a URL");
        let mut all = client.get_async_pubsub().await.expect("a connection");
        all.psubscribe("*").await.expect("PSUBSCRIBE");
        Self(Box::pin(all.into_on_message()))
    }

    /// The messages that were published so far.
    async fn so_far(&mut self, server: &RedisServer) -> Vec<String> {
        let marker = ["PUBLISH", "marker", ""];
        server.command(&marker).await.expect("PUBLISH");
        let mut seen = Vec::new();
        loop {
            let message = self.0.next().await.expect("a message");
            if message.get_channel_name() == "marker" {
                return seen;
            }
            seen.push(message.get_payload().expect("text"));
        }
    }
}

/// Barging, with signs of life so far apart (24 to 30 s) that within `SOON` only a message can have woken a waiter.
fn barging(server: &RedisServer) -> String {
    format!("{}?style=barging&waiter_lease=2m", server.url())
}

#[tokio::test]
async fn a_barging_release_wakes_all_readers_who_fit() {
    let server = RedisServer::start().await.expect("redis");
    let url = barging(&server);
    let mine = client(&url).await;
    let writer = mine.rw_lock("a").expect("a name");
    let writer = writer.write().await.expect("the lock");
    let mut readers = Vec::new();
    for place in 1..=8 {
        let theirs = client(&url).await;
        readers.push(tokio::spawn(async move {
            let lock = theirs.rw_lock("a").expect("a name");
            lock.read().await.expect("the lock")
        }));
        waiting(&mine, "a", place).await;
    }
    let mut watcher = Watcher::of(&server).await;
    assert_eq!(writer.release().await.expect("release"), Released::Freed);
    let woken = watcher.so_far(&server).await;
    assert!(woken.len() >= 8, "{} of 8 readers were woken", woken.len());
    // All are in at once, before any of them has left.
    let all = tokio::time::timeout(SOON, join_all(readers)).await;
    for reader in all.expect("all of them by a message") {
        let end = reader.expect("a task").release().await;
        assert_eq!(end.expect("release"), Released::Freed);
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_barging_release_of_permits_wakes_as_many_as_fit() {
    let server = RedisServer::start().await.expect("redis");
    let url = barging(&server);
    let mine = client(&url).await;
    let permits = mine.semaphore("a", 3).expect("a name");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(permits.acquire().await.expect("a permit"));
    }
    let mut waiters = Vec::new();
    for place in 1..=5 {
        let theirs = client(&url).await;
        waiters.push(tokio::spawn(async move {
            let permits = theirs.semaphore("a", 3).expect("a name");
            let permit = permits.acquire().await.expect("a permit");
            permit.release().await.expect("release")
        }));
        waiting(&mine, "a", place).await;
    }
    let mut watcher = Watcher::of(&server).await;
    // All holders are gone at once: three can be woken, and the other two are not.
    assert!(mine.break_lock("a").await.expect("break"));
    let woken = watcher.so_far(&server).await;
    assert!(woken.len() >= 3, "{} of 3 were woken", woken.len());
    // The others follow when those have given theirs back.
    let all = tokio::time::timeout(SOON, join_all(waiters)).await;
    for waiter in all.expect("all of them by a message") {
        assert_eq!(waiter.expect("a task"), Released::Freed);
    }
    drop(held);
}

/// As many permits as there are waiters: all of them hold at the same time.
#[tokio::test]
async fn a_barging_release_wakes_all_permits_who_fit() {
    let server = RedisServer::start().await.expect("redis");
    let url = barging(&server);
    let mine = client(&url).await;
    let writer = lock(&mine, "a").await;
    let mut waiters = Vec::new();
    for place in 1..=8 {
        let theirs = client(&url).await;
        waiters.push(tokio::spawn(async move {
            let permits = theirs.semaphore("a", 8).expect("a name");
            permits.acquire().await.expect("a permit")
        }));
        waiting(&mine, "a", place).await;
    }
    assert_eq!(writer.release().await.expect("release"), Released::Freed);
    let all = tokio::time::timeout(SOON, join_all(waiters)).await;
    for permit in all.expect("all of them by a message") {
        let end = permit.expect("a task").release().await;
        assert_eq!(end.expect("release"), Released::Freed);
    }
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// The answer of `PUBLISH` counts somebody who listens to everything; he is not the waiter.
#[tokio::test]
async fn a_dead_waiter_is_passed_over_also_when_somebody_listens_to_everything() {
    let server = RedisServer::start().await.expect("redis");
    let _watcher = Watcher::of(&server).await;
    let mine = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let process = Holder::start(HOLD_LOCK, &server.url(), "a", "exclusive", None).await;
    let mut doomed = process.expect("a process");
    waiting(&mine, "a", 1).await;
    let theirs = client(&server.url()).await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 2).await;
    doomed.kill().await.expect("kill");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    // The dead one would have it for 30 s.
    let granted = waiter.await.expect("a task");
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_dead_writer_behind_readers_does_not_keep_new_readers_out() {
    let server = RedisServer::start().await.expect("redis");
    let url = format!("{}?waiter_lease=60s", server.url());
    let mine = client(&url).await;
    let lock = mine.rw_lock("a").expect("a name");
    let first = lock.read().await.expect("the lock");
    let process = Holder::start(HOLD_LOCK, &url, "a", "exclusive", None).await;
    let mut writer = process.expect("a process");
    waiting(&mine, "a", 1).await;
    let theirs = client(&url).await;
    let other = theirs.rw_lock("a").expect("a name");
    let early = other.try_read().await.expect("an answer");
    assert!(early.is_none(), "the writer lives, and comes first");
    writer.kill().await.expect("kill");
    integration_tests::until("its connection is gone", SOON, || async {
        let channels = server.command(&["PUBSUB", "CHANNELS"]).await?;
        match channels.list().len() {
            2 => Ok(()),
            other => Err(integration_tests::Error::answer(
                "inboxes",
                other.to_string(),
            )),
        }
    })
    .await
    .expect("gone");
    let second = other.try_read().await.expect("an answer");
    let second = second.expect("nobody alive waits in front of it");
    for reader in [first, second] {
        assert_eq!(reader.release().await.expect("release"), Released::Freed);
    }
}

/// A lease that is shorter than two answers may take.
#[tokio::test]
async fn a_short_lease_survives_a_half_open_connection() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let settings = Settings::new().lease(seconds(5));
    let locks = client_with(&through(&server, &proxy), settings).await;
    let guards = [lock(&locks, "a").await, lock(&locks, "b").await];
    proxy.half_open();
    let start = Instant::now();
    while start.elapsed() < seconds(7) {
        let held = guards.iter().all(dlock_core::Guard::is_held);
        assert!(held, "lost after {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for guard in guards {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}

/// The server does nothing else during a call, so a release does not hand the lock to ten thousand readers at once; nor does it sweep as
/// many dead ones. Yet all of them get their turn.
#[tokio::test]
async fn a_release_with_a_great_crowd_of_readers_does_a_bounded_part_of_the_work() {
    const CROWD: usize = 10_000;
    for alive in [true, false] {
        let server = RedisServer::start().await.expect("redis");
        let mine = client(&server.url()).await;
        let guard = lock(&mine, "a").await;
        let inbox = redis::Client::open(server.url()).expect("a URL");
        let mut inbox = inbox.get_async_pubsub().await.expect("a connection");
        inbox
            .subscribe("dlock:inbox:crowd")
            .await
            .expect("SUBSCRIBE");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("a clock").as_millis();
        let till = if alive { now + 60_000 } else { now - 1 };
        let fill = format!(
            "for n = 1, {CROWD} do local a = string.format('%032x', n) redis.call('ZADD', KEYS[1], n, a) \
             redis.call('HSET', KEYS[2], a, '{till}S 60000 dlock:inbox:crowd me') end \
             local v = redis.call('GET', KEYS[3]) \
             redis.call('SET', KEYS[3], string.sub(v, 1, 16) .. '+' .. string.sub(v, 18), 'KEEPTTL')"
        );
        let fill = [
            "EVAL",
            &fill,
            "3",
            "dlock:{a}:q",
            "dlock:{a}:w",
            "dlock:{a}",
        ];
        server.command(&fill).await.expect("fill");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        let left = server
            .command(&["ZCARD", "dlock:{a}:q"])
            .await
            .expect("ZCARD");
        assert!(number(&left) > 5_000, "all in one call: {left:?} are left");
        // Somebody real at the end of the queue.
        let theirs = client(&server.url()).await;
        let last = tokio::spawn(async move {
            let lock = theirs.rw_lock("a").expect("a name");
            lock.read().await.expect("the lock")
        });
        let last = tokio::time::timeout(seconds(30), last).await;
        let last = last.expect("in time").expect("a task");
        assert_eq!(last.release().await.expect("release"), Released::Freed);
        drop(inbox);
    }
}
