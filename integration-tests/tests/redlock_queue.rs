//! Waiters of a quorum: their order, what a hand-over costs, and what happens when the nodes do not agree who is next.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::sync::{Arc, Mutex};

use dlock_core::backend::AttemptId;
use dlock_core::{Locks, Mode, Name, Released, Settings};
use dlock_redis::node::{Leftover, Node, Taken, Wish};
use integration_tests::RedisServer;
use redis_support::{SOON, lock};
use redlock_support::{Five, PERSISTENT, client, client_with, seconds, start};

/// Resolves when so many wait.
async fn waiting(locks: &Locks, name: &str, count: usize) {
    integration_tests::until("they wait", SOON, || async {
        let info = locks.inspect(name).await;
        match info.map(|info| info.waiters.len()) {
            Ok(now) if now == count => Ok(()),
            now => Err(integration_tests::Error::answer(
                "inspect",
                format!("{now:?}"),
            )),
        }
    })
    .await
    .expect("waiters");
}

#[tokio::test]
async fn waiters_of_many_clients_are_served_as_they_came() {
    let five = start(5).await.expect("servers");
    let url = five.url(PERSISTENT);
    let holder = client(&url).await;
    let guard = lock(&holder, "a").await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..6 {
        let (locks, order) = (client(&url).await, order.clone());
        waiters.push(tokio::spawn(async move {
            let guard = lock(&locks, "a").await;
            order.lock().expect("no panic").push(number);
            guard.release().await.expect("release")
        }));
        waiting(&holder, "a", number + 1).await;
    }
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    for waiter in waiters {
        assert_eq!(waiter.await.expect("a waiter"), Released::Freed);
    }
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4, 5]);
}

async fn served(five: &Five) -> u64 {
    let mut sum = 0;
    for server in &five.servers {
        let stats = server.command(&["INFO", "commandstats"]).await;
        let stats = stats.expect("INFO").text().unwrap_or_default();
        let calls = stats.lines().filter_map(|line| {
            let calls = line.strip_prefix("cmdstat_evalsha:calls=")?;
            calls.split(',').next()?.parse::<u64>().ok()
        });
        sum += calls.sum::<u64>();
    }
    sum
}

/// Ten: each waiter asks every node once, and each release goes to every node. The rest is signs of life, and what a stalled machine costs.
#[tokio::test]
async fn hand_over_takes_few_requests() {
    const HOLDS: u64 = 40;
    let five = start(5).await.expect("servers");
    let url = five.url(PERSISTENT);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(&url).await);
    }
    let mut least = f64::INFINITY;
    for _ in 0..8 {
        let before = served(&five).await;
        let workers = clients.iter().map(|locks| async {
            for _ in 0..HOLDS {
                let guard = lock(locks, "a").await;
                assert_eq!(guard.release().await.expect("release"), Released::Freed);
            }
        });
        futures::future::join_all(workers).await;
        let requests = (served(&five).await - before) as f64 / (4 * HOLDS) as f64;
        least = least.min(requests);
        if least <= 12.0 {
            return;
        }
    }
    panic!("{least} requests for each hold");
}

fn node(server: &RedisServer) -> Node {
    let config = dlock_redis::Config::from_url(&server.url()).expect("a URL");
    Node::new(config.prefix("redlock")).expect("a node")
}

/// Somebody holds the lock at every node. Two wait; but two nodes have forgotten the first of them, and give the lock to the second when they
/// become free, and a third gives it to the first. Nobody has three of five. The second gives way, and the first gets it.
#[tokio::test]
async fn waiters_that_split_the_nodes_give_way_to_the_first() {
    let five = start(5).await.expect("servers");
    let url = five.url(PERSISTENT);
    let name = Name::new("a").expect("a name");
    let nodes: Vec<Node> = five.servers.iter().map(node).collect();
    let stranger = AttemptId::new();
    for node in &nodes {
        let wish = Wish {
            name: &name,
            mode: Mode::Exclusive,
            attempt: stranger,
            lease: seconds(60),
            label: "",
        };
        let (taken, _) = node.take(wish, 1000).await.expect("an answer");
        assert!(matches!(taken, Taken::Held { .. }));
    }
    let probe = client(&url).await;
    let (first, second) = (client(&url).await, client(&url).await);
    let first = tokio::spawn(async move { lock(&first, "a").await });
    waiting(&probe, "a", 1).await;
    let owner = probe.inspect("a").await.expect("inspect").waiters[0]
        .owner
        .clone();
    let second = tokio::spawn(async move { lock(&second, "a").await });
    waiting(&probe, "a", 2).await;
    for server in &five.servers[..2] {
        let keys = server.command(&["KEYS", "*:q"]).await.expect("KEYS");
        let key = keys.list()[0].text().expect("a key");
        let removed = server.command(&["ZREM", &key, &owner]).await;
        removed.expect("ZREM");
    }
    for node in &nodes[..3] {
        let freed = node.free(&name, stranger, Leftover::Hold, 2000).await;
        assert!(freed.expect("an answer").0);
    }
    let guard = tokio::time::timeout(SOON, first).await;
    let guard = guard.expect("the first has it").expect("no panic");
    assert!(!second.is_finished());
    for node in &nodes[3..] {
        let freed = node.free(&name, stranger, Leftover::Hold, 3000).await;
        assert!(freed.expect("an answer").0);
    }
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let guard = tokio::time::timeout(SOON, second).await;
    let guard = guard.expect("then the second").expect("no panic");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

/// A node forgets everything under a hold, and is given to somebody who waits: the holder has it again by its renewals.
#[tokio::test]
async fn holder_comes_before_those_who_wait_at_a_node_that_forgot() {
    let five = start(5).await.expect("servers");
    let url = five.url(PERSISTENT);
    let settings = Settings::new().lease(seconds(3));
    let holder = client_with(&url, settings).await;
    let guard = lock(&holder, "a").await;
    let owner = holder.inspect("a").await.expect("inspect").holders[0]
        .owner
        .clone();
    let other = client(&url).await;
    let waits = tokio::spawn(async move { lock(&other, "a").await });
    waiting(&holder, "a", 1).await;
    let forgot = &five.servers[2];
    forgot.command(&["FLUSHALL"]).await.expect("FLUSHALL");
    let (name, at) = (Name::new("a").expect("a name"), node(forgot));
    integration_tests::until("the node has the holder", SOON, || async {
        let info = at.inspect(&name).await.expect("inspect");
        match info.holders.first() {
            Some(holder) if holder.owner == owner => Ok(()),
            other => Err(integration_tests::Error::answer(
                "inspect",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("it was given back");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = tokio::time::timeout(SOON, waits).await;
    let next = next.expect("the next").expect("no panic");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
}

/// A request to give way that was sent twice, or comes late, gives up no more than what it was sent for: by then its attempt may have been given
/// the node again, and count on it.
#[tokio::test]
async fn late_request_to_give_way_gives_up_no_later_grant() {
    let server = RedisServer::start().await.expect("redis");
    let config = dlock_redis::Config::from_url(&server.url()).expect("a URL");
    let node = Node::new(config).expect("a node");
    node.connect().await.expect("connected");
    let name = Name::new("a").expect("a name");
    for mode in [Mode::Exclusive, Mode::Shared] {
        let other = match mode {
            Mode::Exclusive => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let wish = |attempt, mode| Wish {
            name: &name,
            mode,
            attempt,
            lease: seconds(30),
            label: "",
        };
        let (mine, theirs) = (AttemptId::new(), AttemptId::new());
        let _inboxes = (node.enter(mine), node.enter(theirs));
        let first = match node.stand(wish(mine, mode), 1_000, 20).await {
            Ok((Taken::Held { counter }, _)) => counter,
            answer => panic!("{answer:?}"),
        };
        // Nobody stands before it, so it has the lock again.
        let second = match node.give_way(wish(mine, mode), 1_000, 20, first).await {
            Ok((Taken::Held { counter }, _)) => counter,
            answer => panic!("{answer:?}"),
        };
        assert!(second > first);
        let waits = node.stand(wish(theirs, other), 1_000, 10).await;
        assert!(matches!(waits, Ok((Taken::Others { .. }, _))), "{waits:?}");
        // The same request once more, on another connection: somebody stands before it by now.
        let late = node.give_way(wish(mine, mode), 1_000, 20, first).await;
        let held = Taken::Held { counter: second };
        assert_eq!(late.map(|(taken, _)| taken).ok(), Some(held));
        // One that is meant gives the lock to who stands before it.
        let meant = node.give_way(wish(mine, mode), 1_000, 20, second).await;
        assert!(matches!(meant, Ok((Taken::Others { .. }, _))), "{meant:?}");
        for attempt in [theirs, mine] {
            let freed = node.free(&name, attempt, Leftover::Place, 0).await;
            freed.expect("an answer");
        }
    }
}

/// A node, a name, and what somebody wishes there.
struct Single {
    server: RedisServer,
    node: Node,
    name: Name,
}

impl Single {
    async fn start() -> Self {
        let server = RedisServer::start().await.expect("redis");
        let node = node(&server);
        node.connect().await.expect("connected");
        let name = Name::new("a").expect("a name");
        Self { server, node, name }
    }

    fn wish(&self, attempt: AttemptId) -> Wish<'_> {
        Wish {
            name: &self.name,
            mode: Mode::Exclusive,
            attempt,
            lease: seconds(30),
            label: "",
        }
    }

    async fn take(&self, attempt: AttemptId, proposed: u64) -> u64 {
        match self.node.take(self.wish(attempt), proposed).await {
            Ok((Taken::Held { counter }, _)) => counter,
            answer => panic!("{answer:?}"),
        }
    }

    /// Stands in the queue; the counter that the node named.
    async fn stand(&self, attempt: AttemptId, ticket: u64) -> u64 {
        match self.node.stand(self.wish(attempt), 1_000, ticket).await {
            Ok((Taken::Others { counter, .. }, _)) => counter,
            answer => panic!("{answer:?}"),
        }
    }

    async fn free(&self, attempt: AttemptId) {
        let freed = self.node.free(&self.name, attempt, Leftover::Hold, 1_000);
        assert!(freed.await.expect("an answer").0);
    }

    async fn holder(&self) -> String {
        let info = self.node.inspect(&self.name).await.expect("inspect");
        info.holders[0].owner.clone()
    }
}

/// A holder that a node has lost may stand in its queue already, by the ticket of its attempt: it comes before all others nevertheless, since none
/// of them could have the lock.
#[tokio::test]
async fn lower_ticket_moves_a_waiter_to_the_front() {
    let at = Single::start().await;
    let [holds, first, second] = [(); 3].map(|()| AttemptId::new());
    let _inboxes = (at.node.enter(first), at.node.enter(second));
    at.take(holds, 1_000).await;
    at.stand(first, 10).await;
    at.stand(second, 20).await;
    at.stand(second, 0).await;
    // A higher one moves nobody back: a sign of life that comes late.
    at.stand(second, 20).await;
    at.free(holds).await;
    assert_eq!(at.holder().await, second.to_string());
}

/// A node tells a grant, forgets everything, and says that others hold the lock, with a lower counter: the grant of before is none.
#[tokio::test]
async fn grant_that_was_told_before_a_question_is_none_after_it() {
    let at = Single::start().await;
    let [before, mine, after] = [(); 3].map(|()| AttemptId::new());
    let place = at.node.enter(mine);
    at.take(before, 5_000).await;
    let then = at.stand(mine, 10).await;
    at.free(before).await;
    tokio::time::timeout(SOON, place.called())
        .await
        .expect("told");
    assert!(place.granted().is_some_and(|counter| counter > then));
    at.server.command(&["FLUSHALL"]).await.expect("FLUSHALL");
    at.take(after, 100).await;
    let now = at.stand(mine, 10).await;
    assert!(now < then);
    assert_eq!(place.granted(), None);
}

/// An attempt that was undone is refused when it asks to give way, and nothing of it is left: neither a place nor a change of the hold.
#[tokio::test]
async fn refused_request_to_give_way_leaves_nothing() {
    let at = Single::start().await;
    let (mine, next) = (AttemptId::new(), AttemptId::new());
    let _inboxes = (at.node.enter(mine), at.node.enter(next));
    let number = at.take(mine, 1_000).await;
    at.stand(next, 20).await;
    // As if it had been undone by another connection, and given the lock by a queue that had not heard of it.
    let key = |end: &str| format!("redlock:{{a}}:{end}");
    let other = AttemptId::new();
    let undone = at.node.free(&at.name, other, Leftover::Stray, 1_000).await;
    undone.expect("an answer");
    let (till, dead) = ("9999999999999", mine.to_string());
    let marked = at.server.command(&["ZADD", &key("t"), till, &dead]).await;
    marked.expect("ZADD");
    let refused = at.node.give_way(at.wish(mine), 1_000, 10, number).await;
    assert!(refused.is_err(), "{refused:?}");
    let queue = at.server.command(&["ZRANGE", &key("q"), "0", "-1"]).await;
    let queue = queue.expect("ZRANGE");
    let queue: Vec<_> = queue.list().iter().filter_map(|one| one.text()).collect();
    assert_eq!(queue, [next.to_string()]);
}
