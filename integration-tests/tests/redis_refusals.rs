//! A server that refuses to write: nobody is told of a grant that was not written, and what frees memory works without any.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, HeldNow, Locks, Released, Settings};
use futures::StreamExt;
use integration_tests::{Direction, FaultProxy, RedisServer, until};
use redis_support::*;
use tokio::task::JoinHandle;

/// Why a server refuses writes.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// Its last save has failed, which stops writes by default.
    Misconf,
    /// It has fewer replicas than it must have.
    NoReplicas,
    /// It was made a replica of another.
    ReadOnly,
    /// It has no memory left, and evicts nothing.
    OutOfMemory,
}

impl Refusal {
    async fn begin(self, server: &RedisServer) {
        match self {
            Self::Misconf => {
                // A folder where its file should be: the save fails.
                let blocked = server.site().file("dump.rdb");
                std::fs::create_dir_all(blocked.join("x")).expect("a folder");
                set(server, "save", "3600 1").await;
                server.command(&["BGSAVE"]).await.expect("BGSAVE");
                until("the save fails", SOON, || async {
                    match server.command(&["SET", "probe", "1"]).await {
                        Ok(_) => Err(integration_tests::Error::answer("SET", "was taken")),
                        Err(_) => Ok(()),
                    }
                })
                .await
                .expect("it refuses");
            }
            Self::NoReplicas => set(server, "min-replicas-to-write", "1").await,
            Self::ReadOnly => {
                let nobody = ["REPLICAOF", "127.0.0.1", "1"];
                server.command(&nobody).await.expect("REPLICAOF");
            }
            Self::OutOfMemory => set(server, "maxmemory", "1").await,
        }
    }

    async fn end(self, server: &RedisServer) {
        match self {
            Self::Misconf => set(server, "save", "").await,
            Self::NoReplicas => set(server, "min-replicas-to-write", "0").await,
            Self::ReadOnly => {
                let master = ["REPLICAOF", "NO", "ONE"];
                server.command(&master).await.expect("REPLICAOF");
            }
            Self::OutOfMemory => set(server, "maxmemory", "0").await,
        }
    }
}

async fn set(server: &RedisServer, name: &str, value: &str) {
    let set = ["CONFIG", "SET", name, value];
    server.command(&set).await.expect("CONFIG SET");
}

fn patient() -> Settings {
    Settings::new().retry_unreachable_for(seconds(60))
}

fn waiter(locks: Locks, shared: bool) -> JoinHandle<Guard> {
    tokio::spawn(async move {
        if shared {
            let lock = locks.rw_lock("a").expect("a name");
            lock.read().await.expect("the lock")
        } else {
            let lock = locks.mutex("a").expect("a name");
            lock.lock().await.expect("the lock")
        }
    })
}

/// A holder gives the lock back while others wait, and the server refuses it: nothing is published. When it writes again, those who wait get
/// the lock, one at a time or as readers together.
async fn nobody_is_told(refusal: Refusal, style: &str, shared: bool) {
    let server = RedisServer::start().await.expect("redis");
    let url = format!("{}?style={style}", server.url());
    let mine = client_with(&url, patient()).await;
    let guard = lock(&mine, "a").await;
    let old = guard.token().expect("fencing");
    let mut waiters = Vec::new();
    for place in 1..=2 {
        waiters.push(waiter(client_with(&url, patient()).await, shared));
        waiting(&mine, "a", place).await;
    }
    refusal.begin(&server).await;
    let watcher = redis::Client::open(server.url()).expect("a URL");
    let mut watcher = watcher.get_async_pubsub().await.expect("a connection");
    watcher.psubscribe("*").await.expect("PSUBSCRIBE");
    let mut heard = watcher.on_message();

    let freed = guard.release().await;
    assert!(!matches!(freed, Ok(Released::Freed)), "{freed:?}");
    server
        .command(&["PUBLISH", "marker", ""])
        .await
        .expect("PUBLISH");
    let first = heard.next().await.expect("a message");
    assert_eq!(
        first.get_channel_name(),
        "marker",
        "{refusal:?} {style}: told of {:?}, which the server has not written",
        first.get_payload::<String>()
    );
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));

    refusal.end(&server).await;
    let mut waiters = futures::stream::FuturesUnordered::from_iter(waiters);
    let mut readers = Vec::new();
    while !waiters.is_empty() {
        let next = tokio::time::timeout(seconds(60), waiters.next()).await;
        let next = next.expect("in time").expect("one more").expect("a task");
        assert!(next.token().expect("fencing") > old, "tokens went back");
        if shared {
            readers.push(next);
            continue;
        }
        assert!(waiters.iter().all(|other| !other.is_finished()));
        let holders = mine.inspect("a").await.expect("inspect").holders;
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!(next.release().await.expect("release"), Released::Freed);
    }
    for reader in readers {
        assert_eq!(reader.release().await.expect("release"), Released::Freed);
    }
}

#[tokio::test]
async fn nobody_is_told_of_a_grant_after_a_failed_save() {
    nobody_is_told(Refusal::Misconf, "fair", false).await;
    nobody_is_told(Refusal::Misconf, "fair", true).await;
    nobody_is_told(Refusal::Misconf, "barging", false).await;
}

#[tokio::test]
async fn nobody_is_told_of_a_grant_without_enough_replicas() {
    nobody_is_told(Refusal::NoReplicas, "fair", false).await;
    nobody_is_told(Refusal::NoReplicas, "fair", true).await;
    nobody_is_told(Refusal::NoReplicas, "barging", true).await;
}

#[tokio::test]
async fn nobody_is_told_of_a_grant_by_a_master_that_was_demoted() {
    nobody_is_told(Refusal::ReadOnly, "fair", false).await;
    nobody_is_told(Refusal::ReadOnly, "fair", true).await;
}

/// Without memory a release works. What the server refuses is the grant to somebody new, and it tells nobody of that.
#[tokio::test]
async fn without_memory_the_lock_is_handed_on_and_no_new_one_is_given() {
    for style in ["fair", "barging"] {
        let server = RedisServer::start().await.expect("redis");
        let url = format!("{}?style={style}", server.url());
        let mine = client(&url).await;
        let guard = lock(&mine, "a").await;
        let next = waiter(client_with(&url, patient()).await, false);
        waiting(&mine, "a", 1).await;
        Refusal::OutOfMemory.begin(&server).await;
        let error = mine.mutex("b").expect("a name").try_lock().await;
        let error = error.expect_err("no memory");
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert_eq!(error.held_now(), HeldNow::No, "{error}");
        assert!(error.to_string().contains("no memory"), "{error}");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        if style == "barging" {
            // Whoever comes first takes it, and that is something new.
            Refusal::OutOfMemory.end(&server).await;
        }
        let next = tokio::time::timeout(seconds(30), next);
        let next = next.await.expect("in time").expect("a task");
        assert_eq!(next.release().await.expect("release"), Released::Freed);
        Refusal::OutOfMemory.end(&server).await;
    }
}

/// What keeps, ends or breaks a hold needs no memory, in every mode.
#[tokio::test]
async fn without_memory_holds_are_kept_given_back_and_broken() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client_with(&server.url(), Settings::new().lease(seconds(2))).await;
    let alone = lock(&locks, "alone").await;
    let broken = lock(&locks, "broken").await;
    // Each kind has a client of its own, so that no other is renewed in the same trip: after the first write of a script the server
    // refuses no other, whatever that needs.
    let own = async || client_with(&server.url(), Settings::new().lease(seconds(2))).await;
    let shared = own().await.rw_lock("shared").expect("a name");
    let shared = shared.read().await.expect("the lock");
    let writer = locks.rw_lock("writer").expect("a name");
    let writer = writer.write().await.expect("the lock");
    let permit = own().await.semaphore("permit", 2).expect("a name");
    let permit = permit.acquire().await.expect("a permit");
    let plain = client_with(
        &format!("{}?style=plain", server.url()),
        Settings::new().lease(seconds(2)),
    )
    .await;
    let plain = lock(&plain, "plain").await;
    Refusal::OutOfMemory.begin(&server).await;

    let guards = [&alone, &broken, &shared, &writer, &permit, &plain];
    let losses = guards.map(|guard| Box::pin(guard.lost()));
    let lost = tokio::time::timeout(seconds(4), futures::future::select_all(losses)).await;
    let lost = lost.ok().map(|(reason, which, _)| (reason, which));
    assert_eq!(lost, None, "a hold was not renewed");

    assert!(locks.break_lock("broken").await.expect("break"));
    writer.downgrade().await.expect("downgrade");
    for guard in [alone, shared, writer, permit, plain] {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    let _ = broken.release().await;
    // A crowd frees its locks in one trip.
    Refusal::OutOfMemory.end(&server).await;
    let locks = client(&server.url()).await;
    let mut crowd = Vec::new();
    for n in 0..50 {
        crowd.push(lock(&locks, &format!("crowd{n}")).await);
    }
    Refusal::OutOfMemory.begin(&server).await;
    let freed = crowd.into_iter().map(Guard::release);
    for freed in futures::future::join_all(freed).await {
        assert_eq!(freed.expect("release"), Released::Freed);
    }
    assert_eq!(residue(&server).await, ["probe"; 0]);
}

/// A request of an attempt that was given up is remembered also without memory: it must not take effect later.
#[tokio::test]
async fn without_memory_an_attempt_is_undone() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let theirs = client(&server.url()).await;
    let mutex = theirs.mutex("a").expect("a name");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    waiting(&mine, "a", 1).await;
    Refusal::OutOfMemory.begin(&server).await;
    waiter.abort();
    waiting(&mine, "a", 0).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    closes_soon(&theirs).await;
}

/// Nothing is left that would have to be undone until a lease ends.
async fn closes_soon(locks: &Locks) {
    tokio::time::timeout(SOON, locks.close())
        .await
        .expect("in time")
        .expect("close");
}

#[tokio::test]
async fn without_memory_an_attempt_at_a_plain_lock_is_undone() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let locks = client(&format!("{}?style=plain", through(&server, &proxy))).await;
    // Its answer does not come, so nobody knows what it has left.
    proxy.pause(Direction::ToClient);
    let mutex = locks.mutex("a").expect("a name");
    let asking = tokio::time::timeout(Duration::from_millis(300), mutex.try_lock());
    assert!(asking.await.is_err(), "no answer came");
    Refusal::OutOfMemory.begin(&server).await;
    proxy.resume();
    closes_soon(&locks).await;
    assert_eq!(
        number(&server.command(&["EXISTS", "a"]).await.expect("EXISTS")),
        0
    );
}
