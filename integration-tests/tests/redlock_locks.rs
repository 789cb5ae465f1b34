//! What a lock at a quorum does, on real servers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Request};
use dlock_core::{ErrorKind, Locks, Mode, Name, Order, Released, Settings, SystemClock};
use redis_support::{SOON, calls, lock, number};
use redlock_support::*;

#[tokio::test]
async fn a_lease_longer_than_the_longest_is_refused() {
    let three = start(3).await.expect("servers");
    let settings = Settings::new().lease(seconds(31));
    let locks = client_with(&three.url(""), settings).await;
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("longest_lease"), "{error}");
}

/// Counters that differ cost one round more, and the token is above all of them; else acquire and release are one request each.
#[tokio::test]
async fn tokens_agree_in_one_round_and_counters_that_differ_are_raised() {
    let three = start(3).await.expect("servers");
    let locks = three.client(PERSISTENT).await;
    cycle(&locks, "a").await;
    let asked = async || {
        let mut sum = 0;
        for server in &three.servers {
            sum += calls(server, "evalsha").await + calls(server, "eval").await;
        }
        sum
    };
    // A vote does not wait for the slowest node, which may still be about to get what it is asked.
    let requests = async || {
        let mut sum = asked().await;
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let before = std::mem::replace(&mut sum, asked().await);
            if sum == before {
                return sum;
            }
        }
    };
    let before = requests().await;
    for _ in 0..50 {
        let guard = lock(&locks, "a").await;
        // A release that overtakes its question, at a node whose answer was not waited for, is asked again behind it.
        everywhere(&three).await;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        clean(&three).await;
    }
    // One for each node, acquire and release.
    assert_eq!(requests().await - before, 50 * 2 * 3);
    // A client with a clock far ahead was here, and reached one node only.
    let ahead = "4000000000000000";
    three.servers[1]
        .command(&["SET", "redlock:{a}", ahead, "PX", "600000"])
        .await
        .expect("SET");
    // The first quorum may be the other two: then nothing need be raised, and the next holder still gets a higher token.
    let mut last = 0;
    for _ in 0..20 {
        let token = cycle(&locks, "a").await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    three.servers[0].kill();
    let token = cycle(&locks, "a").await;
    assert!(token > 4_000_000_000_000_000, "{token}");
    assert!(token > last);
}

/// Contenders that ask at the same moment split the votes, again and again, and all are served.
#[tokio::test]
async fn fifty_contenders_are_all_served() {
    let five = start(5).await.expect("servers");
    let mut workers = tokio::task::JoinSet::new();
    let inside = Arc::new(std::sync::atomic::AtomicU64::new(0));
    for _ in 0..50 {
        // A client each, as from another machine.
        let locks = five.client(PERSISTENT).await;
        let inside = inside.clone();
        workers.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..4 {
                let guard = locks
                    .mutex("a")
                    .expect("a name")
                    .lock_within(seconds(60))
                    .await;
                let guard = guard.expect("an answer").expect("the lock within a minute");
                assert_eq!(
                    inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst),
                    0,
                    "two inside"
                );
                tokens.push(guard.token().expect("fencing").get());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(guard.release().await.expect("release"), Released::Freed);
            }
            locks.close().await.expect("close");
            tokens
        });
    }
    let mut all = Vec::new();
    while let Some(tokens) = workers.join_next().await {
        let tokens = tokens.expect("a worker");
        assert!(tokens.is_sorted());
        all.extend(tokens);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 200, "a token was given twice");
    clean(&five).await;
}

#[tokio::test]
async fn split_votes_are_resolved_at_once() {
    let four = start(4).await.expect("servers");
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(four.client(PERSISTENT).await);
    }
    let start = Instant::now();
    for round in 0..20 {
        let name = format!("split:{round}");
        let tries = clients.iter().map(|locks| {
            let mutex = locks.mutex(name.as_str()).expect("a name");
            async move { mutex.try_lock().await.expect("an answer") }
        });
        let guards = futures::future::join_all(tries).await;
        let held: Vec<_> = guards.into_iter().flatten().collect();
        assert_eq!(held.len(), 1, "of those who tried at once, one has it");
    }
    assert!(start.elapsed() < seconds(20), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_semaphore_is_refused_with_the_reason() {
    let three = start(3).await.expect("servers");
    let redlock = backend(&three.url(PERSISTENT)).await;
    let name = Name::new("a").expect("a name");
    let permit = Request::new(name, Mode::Permit { limit: 2 }, Arc::new(SystemClock));
    let error = redlock.try_acquire(&permit).await.expect_err("no permits");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("more than the limit"), "{error}");
    let locks = Locks::new(redlock).expect("defaults");
    let error = locks.semaphore("a", 2).expect_err("no permits");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn inspect_list_and_break_see_the_quorum() {
    let five = start(5).await.expect("servers");
    let locks = five.client(PERSISTENT).await;
    let guard = lock(&locks, "shop:1").await;
    let reader = locks
        .rw_lock("shop:2")
        .expect("a name")
        .read()
        .await
        .expect("to read");
    five.servers[4].kill();
    five.servers[3].kill();
    let info = locks.inspect("shop:1").await.expect("inspect");
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].token, guard.token());
    assert!(info.holders[0].expires_in > Some(seconds(20)));
    let names: Vec<String> = locks
        .list("shop:")
        .await
        .expect("list")
        .iter()
        .map(|i| i.name.to_string())
        .collect();
    assert_eq!(names, ["shop:1", "shop:2"]);
    let other = five.client(PERSISTENT).await;
    assert!(other.break_lock("shop:1").await.expect("break"));
    assert!(!other.break_lock("shop:1").await.expect("break"));
    let next = lock(&other, "shop:1").await;
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    assert_eq!(reader.release().await.expect("release"), Released::Freed);
}

/// A list takes as many trips as there are keys, and locks go on meanwhile.
#[tokio::test]
async fn a_list_among_many_foreign_keys_is_complete_and_in_nobodys_way() {
    const FILL: &str = "for i = 1, 400000 do redis.call('SET', 'foreign:' .. i, '') end return 1";
    let three = start(3).await.expect("servers");
    for server in &three.servers {
        // In parts: a command of the test has a second.
        for part in 0..8 {
            let fill = FILL
                .replace("= 1,", &format!("= {},", part * 50_000 + 1))
                .replace("400000", &((part + 1) * 50_000).to_string());
            server.command(&["EVAL", &fill, "0"]).await.expect("keys");
        }
    }
    let locks = three.client("?persistent=true&node_timeout=300ms").await;
    let _guard = lock(&locks, "shop:1").await;
    let list = async {
        let found = locks.list("shop:").await.expect("list");
        assert_eq!(found.len(), 1);
    };
    let mut list = std::pin::pin!(list);
    let mut cycles = 0;
    loop {
        tokio::select! {
            () = &mut list => break,
            () = tokio::time::sleep(ms(150)) => {
                let outage = Settings::new().retry_unreachable_for(seconds(60));
                cycle(&locks.with(outage).expect("good settings"), "other").await;
                cycles += 1;
            }
        }
    }
    println!("{cycles} cycles during the list");
    // A node that does not answer is not waited for.
    three.servers[2].freeze();
    assert_eq!(locks.list("shop:").await.expect("list").len(), 1);
    three.servers[2].thaw();
}

/// Many locks of one client are renewed in one trip to each node.
#[tokio::test]
async fn many_holds_are_renewed_in_one_round() {
    let three = start(3).await.expect("servers");
    let settings = Settings::new().lease(seconds(3)).order(Order::Strict);
    let locks = client_with(&three.url(PERSISTENT), settings).await;
    let mut guards = Vec::new();
    for n in 0..50 {
        guards.push(lock(&locks, &format!("many:{n}")).await);
    }
    let before = calls(&three.servers[0], "evalsha").await;
    let renewed = locks.stats().renewals;
    integration_tests::until("two rounds of renewals", SOON, || async {
        let now = locks.stats().renewals;
        if now >= renewed + 100 {
            Ok(())
        } else {
            Err(integration_tests::Error::answer(
                "renewals",
                now.to_string(),
            ))
        }
    })
    .await
    .expect("renewals");
    let trips = calls(&three.servers[0], "evalsha").await - before;
    assert!(
        trips < 50,
        "{trips} trips for {} renewals",
        locks.stats().renewals
    );
    assert!(guards.iter().all(dlock_core::Guard::is_held));
    assert_eq!(
        number(
            &three.servers[0]
                .command(&["EXISTS", "redlock:{many:0}"])
                .await
                .expect("EXISTS")
        ),
        1
    );
}

/// Tasks of a client pause for other clients, and so must know of them.
#[tokio::test]
async fn those_who_wait_are_known_to_other_clients_and_only_to_them() {
    let five = start(5).await.expect("servers");
    let (one, two) = (
        backend(&five.url(PERSISTENT)).await,
        backend(&five.url(PERSISTENT)).await,
    );
    let name = Name::new("a").expect("a name");
    let holder = Locks::new(one.clone()).expect("defaults");
    let waiter = Locks::new(two.clone()).expect("defaults");
    let guard = lock(&holder, "a").await;
    known(&one, &name, false).await;
    let waiting = tokio::spawn(async move { lock(&waiter, "a").await });
    known(&one, &name, true).await;
    // It is the only one.
    known(&two, &name, false).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = waiting.await.expect("a task");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    known(&one, &name, false).await;
    clean(&five).await;
    // Where nobody can be asked, nobody is known to wait: a holder gives way to somebody who is there.
    for server in &five.servers {
        server.kill();
    }
    assert!(!one.others_wait(&name).await);
}

/// On a loaded machine an answer may be late, and then somebody may wait.
async fn known(backend: &dlock_redlock::RedlockBackend, name: &Name, waits: bool) {
    integration_tests::until("what is known of waiters", SOON, || async {
        match backend.others_wait(name).await {
            now if now == waits => Ok(()),
            now => Err(integration_tests::Error::answer(
                "others_wait",
                now.to_string(),
            )),
        }
    })
    .await
    .expect("it is known");
}

/// C18, by client: whoever has many tasks at a lock does not keep it from somebody who has one.
#[tokio::test]
async fn a_busy_client_makes_room_for_another() {
    let three = start(3).await.expect("servers");
    let busy = three.client(PERSISTENT).await;
    let turns = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (busy, turns) = (busy.clone(), turns.clone());
        tasks.spawn(async move {
            loop {
                cycle(&busy, "a").await;
                turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }
    let other = three.client(PERSISTENT).await;
    for _ in 0..5 {
        cycle(&other, "a").await;
    }
    let turns = turns.load(std::sync::atomic::Ordering::Relaxed);
    assert!(turns > 0, "it was not busy");
    tasks.shutdown().await;
}
