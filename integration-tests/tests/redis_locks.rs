//! Locks in one Redis server, as a user sees them.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::Duration;

use dlock_core::fence::Mark;
use dlock_core::{ErrorKind, FencingToken, Mode, Order, Released, Settings};
use integration_tests::{Direction, FaultProxy, RedisServer};
use redis_support::*;

#[tokio::test]
async fn waiters_of_many_clients_are_served_in_order() {
    let server = RedisServer::start().await.expect("redis");
    let first = client(&server.url()).await;
    let holder = lock(&first, "a").await;
    let (tell, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 1..=12_usize {
        let locks = client(&server.url()).await;
        let tell = tell.clone();
        tokio::spawn(async move {
            let guard = lock(&locks, "a").await;
            tell.send(n).expect("the test listens");
            let _ = guard.release().await;
        });
        waiting(&first, "a", n).await;
    }
    let _ = holder.release().await;
    for n in 1..=12 {
        assert_eq!(order.recv().await, Some(n));
    }
}

#[tokio::test]
async fn strict_order_holds_between_the_tasks_of_two_clients() {
    let server = RedisServer::start().await.expect("redis");
    let settings = || Settings::new().order(Order::Strict);
    let clients = [
        client_with(&server.url(), settings()).await,
        client_with(&server.url(), settings()).await,
    ];
    let holder = lock(&clients[0], "a").await;
    let (tell, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 1..=10_usize {
        let (locks, tell) = (clients[n % 2].clone(), tell.clone());
        tokio::spawn(async move {
            let guard = lock(&locks, "a").await;
            tell.send(n).expect("the test listens");
            let _ = guard.release().await;
        });
        waiting(&clients[0], "a", n).await;
    }
    let _ = holder.release().await;
    for n in 1..=10 {
        assert_eq!(order.recv().await, Some(n));
    }
}

#[tokio::test]
async fn hostile_names_are_names_like_others() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client(&server.url()).await;
    let names = [
        " ",
        "  x  ",
        "{",
        "}",
        "{}",
        "a{b}c",
        "a}b",
        "x:q",
        "x:w",
        "x",
        "%7B",
        "%",
        "*",
        "[a-z]?",
        "\\",
        "'\"; return 1 --",
        "🔒🔑",
        "stock:42:h",
        "a:{b}",
        "KEYS[1]",
        &"é".repeat(127),
    ];
    let long = "n".repeat(255);
    let names: Vec<&str> = names.into_iter().chain([long.as_str()]).collect();
    let mut guards = Vec::new();
    for name in &names {
        let mutex = locks.mutex(name).expect("a name");
        let guard = mutex.try_lock().await.expect("the store answers");
        guards.push(
            guard.unwrap_or_else(|| panic!("{name:?} is held: it shares a key with another")),
        );
    }
    let listed: Vec<String> = locks
        .list("")
        .await
        .expect("list")
        .iter()
        .map(|info| info.name.to_string())
        .collect();
    let mut expected: Vec<String> = names.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(listed, expected);
    for (prefix, count) in [("x", 3), ("{", 2), ("*", 1), ("\\", 1), ("[", 1), ("%", 2)] {
        assert_eq!(
            locks.list(prefix).await.expect("list").len(),
            count,
            "{prefix:?}"
        );
    }
    for guard in guards {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    assert!(locks.list("").await.expect("list").is_empty());
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn inspect_tells_owner_label_time_and_queue() {
    let server = RedisServer::start().await.expect("redis");
    let settings = Settings::new().label("nightly job, second try");
    let mine = client_with(&server.url(), settings).await;
    // The waiter marks the holder's entry, and must leave its lease as it is whatever it remembers counters for.
    let theirs = client(&format!("{}?fence_ttl=1h", server.url())).await;
    let guard = lock(&mine, "a").await;
    let waiter = tokio::spawn({
        let theirs = theirs.clone();
        async move { theirs.rw_lock("a").expect("a name").read().await }
    });
    waiting(&theirs, "a", 1).await;
    let info = theirs.inspect("a").await.expect("inspect");
    let holder = &info.holders[0];
    assert_eq!(holder.owner, guard.owner_id());
    assert_eq!(holder.label, "nightly job, second try");
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.token, guard.token());
    let age = holder.since.expect("since").elapsed().unwrap_or_default();
    assert!(age < SOON, "{age:?}");
    let left = holder.expires_in.expect("a lease");
    assert!(
        left > Duration::from_secs(10) && left <= Duration::from_secs(30),
        "{left:?}"
    );
    assert_eq!(info.waiters[0].mode, Mode::Shared);

    assert!(theirs.break_lock("a").await.expect("break"));
    let reader = waiter.await.expect("a task").expect("the lock");
    assert!(reader.token() > guard.token());
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert_eq!(reader.release().await.expect("release"), Released::Freed);
    assert!(!theirs.break_lock("a").await.expect("break"));
}

#[tokio::test]
async fn a_writer_downgrades_and_the_readers_behind_it_come_in() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let theirs = client(&server.url()).await;
    let writer = mine
        .rw_lock("a")
        .expect("a name")
        .write()
        .await
        .expect("free");
    let reader = tokio::spawn({
        let theirs = theirs.clone();
        async move {
            theirs
                .rw_lock("a")
                .expect("a name")
                .read()
                .await
                .expect("a grant")
        }
    });
    waiting(&mine, "a", 1).await;
    writer.downgrade().await.expect("downgrade");
    let reader = reader.await.expect("a task");
    assert!(
        theirs
            .rw_lock("a")
            .expect("a name")
            .try_write()
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(writer.release().await.expect("release"), Released::Freed);
    assert_eq!(reader.release().await.expect("release"), Released::Freed);
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

#[tokio::test]
async fn plain_locks_keep_the_convention_of_others() {
    let server = RedisServer::start().await.expect("redis");
    let url = format!("{}?style=plain", server.url());
    let locks = client(&url).await;
    let guard = lock(&locks, "job:1").await;
    let value = server.command(&["GET", "job:1"]).await.expect("GET").text();
    assert_eq!(value.as_deref(), Some(guard.owner_id().as_str()));
    assert!(guard.token().is_none());
    let theirs = server
        .command(&["SET", "job:1", "somebody", "NX", "PX", "1000"])
        .await
        .expect("SET");
    assert!(theirs.text().is_none(), "a stranger got it too");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);

    server
        .command(&["SET", "job:1", "somebody", "NX", "PX", "60000"])
        .await
        .expect("SET");
    let mutex = locks.mutex("job:1").expect("a name");
    assert!(mutex.try_lock().await.expect("an answer").is_none());
    let waiter = tokio::spawn(async move { mutex.lock_within(SOON).await });
    server.command(&["DEL", "job:1"]).await.expect("DEL");
    let guard = waiter
        .await
        .expect("a task")
        .expect("an answer")
        .expect("free");
    server
        .command(&["SET", "job:1", "a thief"])
        .await
        .expect("SET");
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    let left = server.command(&["GET", "job:1"]).await.expect("GET").text();
    assert_eq!(left.as_deref(), Some("a thief"));
}

#[tokio::test]
async fn barging_lets_the_holder_take_it_again_and_still_wakes_the_waiter() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&format!("{}?style=barging", server.url())).await;
    let url = format!(
        "{}?style=barging&answer_timeout=30s",
        through(&server, &proxy)
    );
    let theirs = client(&url).await;
    let guard = lock(&mine, "a").await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 1).await;
    // It is woken, and cannot come yet.
    proxy.pause(Direction::Both);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let again = mine.mutex("a").expect("a name").try_lock().await;
    let again = again.expect("an answer").expect("nobody took it yet");
    waiting(&mine, "a", 1).await;
    proxy.resume();
    assert_eq!(again.release().await.expect("release"), Released::Freed);
    let guard = waiter.await.expect("a task");
    let _ = guard.release().await;
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// By clients of their own, which may write a token with leading zeros or without.
#[tokio::test]
async fn fenced_writes_compare_numbers_and_not_text() {
    let server = RedisServer::start().await.expect("redis");
    for (key, first, second, written) in [
        ("a", "1794944742983782", "00000000000000000007", 0),
        ("b", "00001794944742983782", "1794944742983783", 1),
        ("c", "9", "10", 1),
        ("d", "10", "9", 0),
        ("e", "18446744073709551614", "18446744073709551615", 1),
        ("f", "18446744073709551615", "18446744073709551614", 0),
        ("g", "0", "00", 1),
    ] {
        let seen = format!("dlock-fence:{{{key}}}");
        let set = |token| {
            [
                "EVAL",
                dlock_redis::FENCED_SET,
                "2",
                key,
                &seen,
                token,
                "x",
                "60000",
            ]
        };
        let one = server.command(&set(first)).await.expect("EVAL");
        assert_eq!(number(&one), 1, "{key}");
        let two = server.command(&set(second)).await.expect("EVAL");
        assert_eq!(number(&two), written, "{key}");
    }
    let bad = [
        "EVAL",
        dlock_redis::FENCED_SET,
        "2",
        "h",
        "dlock-fence:{h}",
        "1e3",
        "x",
        "60000",
    ];
    assert!(server.command(&bad).await.is_err());
}

#[tokio::test]
async fn a_fenced_write_of_an_old_holder_is_refused() {
    let server = RedisServer::start().await.expect("redis");
    let redis = backend(&server.url()).await;
    let locks = dlock_core::Locks::new(redis.clone()).expect("defaults");
    let first = lock(&locks, "a").await;
    let old = first.token().expect("fencing");
    assert!(redis.fenced_set("stock", "5000", old).await.expect("write"));
    let _ = first.release().await;
    let second = lock(&locks, "a").await;
    let new = second.token().expect("fencing");
    assert!(redis.fenced_set("stock", "4999", new).await.expect("write"));
    assert!(
        redis.fenced_set("stock", "4998", new).await.expect("write"),
        "the same holder writes again"
    );
    assert!(
        !redis
            .fenced_set("stock", "5000", old)
            .await
            .expect("an answer"),
        "a stale write got through"
    );
    let stock = server.command(&["GET", "stock"]).await.expect("GET").text();
    assert_eq!(stock.as_deref(), Some("4998"));
}

/// Locks that are moved to another store have lower tokens there: a higher epoch passes, and a refusal says the true reason.
#[tokio::test]
async fn a_fenced_write_knows_the_store_and_the_epoch() {
    let server = RedisServer::start().await.expect("redis");
    let redis = backend(&server.url()).await;
    let mark = |epoch, token, store: &str| {
        let mark = Mark::new(FencingToken::new(token)).expect("a token");
        mark.of_store(store).in_epoch(epoch)
    };
    let write = async |mark: Mark| redis.fenced_write("stock", "x", &mark).await;
    let refused = async |mark: Mark, kind, reason: &str| {
        let error = write(mark).await.expect_err(reason);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    };
    write(mark(0, 1_790_000_000_000_000, "redis"))
        .await
        .expect("the first write");
    refused(
        mark(0, 1_789_000_000_000_000, "redis"),
        ErrorKind::Lost,
        "its hold was lost",
    )
    .await;
    // The locks are moved to etcd, whose tokens are small.
    let conflict = ErrorKind::Conflict;
    refused(mark(0, 209, "etcd"), conflict, "raise the epoch to 1").await;
    write(mark(1, 209, "etcd")).await.expect("a higher epoch");
    write(mark(1, 209, "etcd")).await.expect("once more");
    refused(mark(1, 208, "etcd"), ErrorKind::Lost, "its hold was lost").await;
    let late = mark(0, 1_790_000_000_000_001, "redis");
    refused(late.clone(), conflict, "from before the move").await;
    // Who knows of neither is not told that its hold was lost, and gets nothing through.
    let token = FencingToken::new(u64::MAX);
    let error = redis.fenced_set("stock", "y", FencingToken::new(7)).await;
    assert_eq!(error.expect_err("a conflict").kind(), conflict);
    assert!(redis.fenced_set("stock", "y", token).await.is_err());
    let stock = server.command(&["GET", "stock"]).await.expect("GET").text();
    assert_eq!(stock.as_deref(), Some("x"));
    redis.reset_fence("stock").await.expect("reset");
    write(late).await.expect("nothing is remembered");
    write(mark(-1, 1, "redis")).await.expect_err("below zero");
}

/// C11, C21: the tokens of a hold are set aside by the counter, not by the clock alone. Here the counter is ahead of the clock.
#[tokio::test]
async fn tokens_that_are_set_aside_are_given_to_nobody_else() {
    let server = RedisServer::start().await.expect("a server");
    let counter = ["SET", "dlock:{a}", "5000000000000000", "PX", "600000"];
    server.command(&counter).await.expect("a counter");
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let token = |guard: &dlock_core::Guard| guard.token().expect("a token").get();
    let first = lock(&ours, "a").await;
    assert_eq!(token(&first), 5_000_000_000_000_001);
    // Given to a waiter by the release, and then taken when free.
    let waits = tokio::spawn(async move { (lock(&theirs, "a").await, theirs) });
    waiting(&ours, "a", 1).await;
    assert_eq!(first.release().await.expect("release"), Released::Freed);
    let (second, theirs) = waits.await.expect("a task");
    assert_eq!(token(&second), 5_000_000_000_000_065);
    assert_eq!(second.release().await.expect("release"), Released::Freed);
    let third = lock(&ours, "a").await;
    assert_eq!(token(&third), 5_000_000_000_000_129);
    assert_eq!(third.release().await.expect("release"), Released::Freed);
    // A reader has one, above all of theirs.
    let reader = theirs.rw_lock("a").expect("a name").read().await;
    assert_eq!(token(&reader.expect("free")), 5_000_000_000_000_193);
}
