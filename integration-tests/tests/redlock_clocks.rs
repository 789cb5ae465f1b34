//! What a quorum is worth when the clocks of its nodes are moved. The clocks are really moved, under running servers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use dlock_core::backend::{Backend, Outcome};
use dlock_core::{Guard, Locks, Released, Settings};
use integration_tests::{Clock, FaultProxy, Redis, RedisServer, Reply};
use redis_support::{SOON, lock};
use redlock_support::*;

/// Longer than any lease here, and shorter than a fence counter is kept.
const JUMP: i64 = 300;

struct Clocks {
    // Before the clocks: no server may start again without its clock.
    nodes: Five,
    clocks: Vec<Clock>,
}

async fn start_clocks(count: usize) -> Clocks {
    let clocks: Vec<Clock> = (0..count)
        .map(|_| Clock::new().expect("libfaketime"))
        .collect();
    let nodes = start_with(count, |node| Redis {
        env: clocks[node].env(),
        ..Redis::default()
    });
    Clocks {
        nodes: nodes.await.expect("servers"),
        clocks,
    }
}

impl Clocks {
    async fn set(&self, node: usize, seconds_ahead: i64) {
        self.clocks[node].set(seconds_ahead).expect("a clock");
        let time = self.nodes.servers[node].command(&["TIME"]).await;
        let shown = time.expect("TIME").list().first().and_then(Reply::text);
        let shown = shown.expect("seconds").parse().expect("a number");
        Clock::check(seconds_ahead, shown).expect("the clock has moved");
    }

    /// Whether a client of its own is told that others hold it.
    async fn is_busy(&self, name: &str) -> bool {
        let other = self.nodes.client(PERSISTENT).await;
        let tried = other.mutex(name).expect("a name").try_lock().await;
        tried.expect("an answer").is_none()
    }
}

async fn renewals(locks: &Locks, more: u64) {
    let wanted = locks.stats().renewals + more;
    integration_tests::until("renewals", SOON, || async {
        match locks.stats().renewals {
            now if now >= wanted => Ok(()),
            now => Err(integration_tests::Error::answer(
                "renewals",
                now.to_string(),
            )),
        }
    })
    .await
    .expect("renewals");
}

#[tokio::test]
async fn clocks_of_a_minority_that_jump_ahead_break_nothing() {
    let five = start_clocks(5).await;
    let settings = Settings::new().lease(seconds(5));
    let locks = client_with(&five.nodes.url(PERSISTENT), settings).await;
    let guard = lock(&locks, "a").await;
    // At all five, and not just at those who decided.
    for server in &five.nodes.servers {
        held_at(server, "a").await;
    }
    for node in [1, 3] {
        five.set(node, JUMP).await;
        // The lease has ended there, and a vote of that node is all that somebody else can get.
        assert!(five.is_busy("a").await);
        assert!(guard.is_held());
    }
    // The renewal gives it back to them, with their clocks as they are ...
    for node in [1, 3] {
        held_at(&five.nodes.servers[node], "a").await;
    }
    // They count again from the round after that ...
    renewals(&locks, 2).await;
    // ... so now two others may jump.
    five.set(0, JUMP).await;
    five.set(4, JUMP).await;
    assert!(five.is_busy("a").await);
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    assert!(!five.is_busy("a").await);
    clean(&five.nodes).await;
}

/// Resolves when somebody holds the lock at this node, by the clock of the node.
async fn held_at(server: &RedisServer, name: &str) {
    let key = format!("redlock:{{{name}}}");
    integration_tests::until("a hold at the node", SOON, || async {
        let left = server.command(&["PTTL", &key]).await?;
        // The key is kept for ten minutes after the hold has ended.
        match redis_support::number(&left) {
            left if left > 600_000 => Ok(()),
            left => Err(integration_tests::Error::answer("PTTL", left.to_string())),
        }
    })
    .await
    .expect("in time");
}

/// One clock is enough where a hold has no node to spare: then every node of its quorum is needed to keep the others out.
#[tokio::test]
async fn one_clock_breaks_a_hold_at_a_bare_quorum_and_the_token_protects() {
    let five = start_clocks(5).await;
    // The holder reaches three of five.
    let mut url = five.nodes.url(PERSISTENT);
    let mut cut = Vec::new();
    for server in &five.nodes.servers[3..] {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        proxy.refuse();
        url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        cut.push(proxy);
    }
    let locks = client_with(&url, Settings::new().renewal(false)).await;
    let old = lock(&locks, "a").await;
    assert!(five.is_busy("a").await, "three of five keep it");
    five.set(1, JUMP).await;
    let other = five.nodes.client(PERSISTENT).await;
    let new = lock(&other, "a").await;
    assert!(old.is_held() && new.is_held(), "two holders, by one clock");
    protected(&five, &old, &new).await;
    // It learns of it when it gives back what it no longer has: a quorum.
    let released = old.release().await.expect("release");
    assert_eq!(released, Released::AlreadyLost);
    assert_eq!(new.release().await.expect("release"), Released::Freed);
}

/// A resource tells the two holders apart: it has seen the higher token.
async fn protected(five: &Clocks, old: &Guard, new: &Guard) {
    assert!(new.token() > old.token());
    let resource = redis_support::backend(&five.nodes.servers[0].url()).await;
    let (first, second) = (old.token().expect("fencing"), new.token().expect("fencing"));
    let write = |value, token| resource.fenced_set("stock", value, token);
    assert!(write("first", first).await.expect("a write"));
    assert!(write("second", second).await.expect("a write"));
    let stale = write("stale", first).await.expect("an answer");
    assert!(!stale, "the stale write got through");
}

/// The hole that no lock with a lease can close, and what closes it.
#[tokio::test]
async fn clocks_of_a_quorum_that_jump_ahead_make_a_second_holder_and_the_token_protects() {
    let five = start_clocks(5).await;
    let settings = Settings::new().renewal(false);
    let locks = client_with(&five.nodes.url(PERSISTENT), settings).await;
    let old = lock(&locks, "a").await;
    for server in &five.nodes.servers {
        held_at(server, "a").await;
    }
    for node in 0..3 {
        assert!(
            five.is_busy("a").await,
            "fewer than a quorum of clocks broke it"
        );
        five.set(node, JUMP).await;
    }
    let other = five.nodes.client(PERSISTENT).await;
    let new = lock(&other, "a").await;
    assert!(old.is_held() && new.is_held(), "two holders, by the clocks");
    protected(&five, &old, &new).await;
    // The first learns of it at the latest when it gives back what it no longer has.
    let released = old.release().await.expect("release");
    assert_eq!(released, Released::AlreadyLost);
    assert!(new.is_held());
    assert!(five.is_busy("a").await);
    assert_eq!(new.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn tokens_rise_whatever_the_clocks_show() {
    let three = start_clocks(3).await;
    let locks = three.nodes.client(PERSISTENT).await;
    let mut last = cycle(&locks, "a").await;
    // Far ahead a counter has been forgotten, since it is kept for a time only: the others remember it.
    let year = 365 * 86_400;
    for offsets in [
        [JUMP, 0, -JUMP],
        [-JUMP, JUMP, 0],
        [-year, -year, -year],
        [0, 0, 0],
        [year, 0, 0],
        [0, year, -year],
        [-JUMP, -JUMP, JUMP],
        // All have forgotten it: then the client's clock keeps the order.
        [year, year, year],
        [0, 0, 0],
    ] {
        for (node, offset) in offsets.into_iter().enumerate() {
            three.set(node, offset).await;
        }
        // Leases that a clock has made longer are over when their holder gives them back, and not before a clock says so.
        for _ in 0..3 {
            let token = cycle(&locks, "a").await;
            assert!(token > last, "{token} after {last} with {offsets:?}");
            last = token;
        }
    }
}

#[tokio::test]
async fn clocks_set_back_keep_a_dead_holders_lock_and_only_a_quorum_of_them_matters() {
    // No lease ends here by the time that the test takes, only by the clocks that it sets.
    let lease: i64 = 600;
    let over = lease + 1;
    let three = start_clocks(3).await;
    let dying = || async {
        let redlock = backend(&three.nodes.url(PERSISTENT)).await;
        let request = request("a").with_lease(seconds(lease.unsigned_abs()));
        let held = redlock.try_acquire(&request).await.expect("an answer");
        // Nobody renews it, and nobody gives it back.
        assert!(matches!(held, Outcome::Held(_)), "{held:?}");
    };
    let all = |offsets: [i64; 3]| {
        let three = &three;
        async move {
            for (node, offset) in offsets.into_iter().enumerate() {
                three.set(node, offset).await;
            }
        }
    };
    // The lease is over, but for the one clock that was set back.
    dying().await;
    all([-JUMP, over, over]).await;
    let other = three.nodes.client(PERSISTENT).await;
    let next = lock(&other, "a").await;
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    all([0, 0, 0]).await;
    // Two are a quorum: safe, but it lasts until their clocks say so.
    dying().await;
    all([-JUMP, -JUMP, over]).await;
    assert!(
        three.is_busy("a").await,
        "by the clocks of a quorum it is held"
    );
    three.set(0, over).await;
    cycle(&other, "a").await;
}

/// A node that restarted is told by its uptime, which is the server's clock less the moment of its start: the known hole of a
/// restart without data together with a clock that is set forward.
#[tokio::test]
async fn a_clock_that_jumps_makes_a_node_that_just_started_look_old() {
    let three = start_clocks(3).await;
    let young = three.nodes.client("").await;
    let tried = young.mutex("a").expect("a name").try_lock().await;
    let error = tried.expect_err("too young");
    assert!(error.to_string().contains("counts again in"), "{error}");
    for node in 0..2 {
        three.set(node, JUMP).await;
    }
    cycle(&three.nodes.client("").await, "a").await;
    // The other way round it is careful: they look younger than they are.
    for node in 0..2 {
        three.set(node, -JUMP).await;
    }
    let careful = three.nodes.client("").await;
    let tried = careful.mutex("b").expect("a name").try_lock().await;
    let error = tried.expect_err("too young");
    assert!(error.to_string().contains("counts again in"), "{error}");
}
