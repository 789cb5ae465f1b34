//! A Redis Cluster whose slots move, and connections to it that break or fall silent.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Locks, Released, Settings};
use dlock_redis::client::redis;
use dlock_redis::client::redis::cluster_routing::Slot;
use integration_tests::{FaultProxy, RedisCluster, RedisServer, until};
use redis_support::*;

fn url(hosts: impl IntoIterator<Item = std::net::SocketAddr>) -> String {
    let hosts: Vec<_> = hosts.into_iter().map(|host| host.to_string()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

fn patient() -> Settings {
    Settings::new().retry_unreachable_for(seconds(60))
}

/// A lock's key, its slot, its master and another one.
struct Moving<'a> {
    cluster: &'a RedisCluster,
    key: String,
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl<'a> Moving<'a> {
    async fn of(cluster: &'a RedisCluster, name: &str) -> Self {
        let key = format!("dlock:{{{name}}}");
        let from = cluster.master_of(&key).await.expect("a master");
        let to = cluster.nodes().iter().find(|n| n.port() != from.port());
        Self {
            slot: cluster.slot_of(&key).await.expect("a slot"),
            cluster,
            key,
            from,
            to: to.expect("another"),
        }
    }

    async fn begin(&self) {
        let begun = self
            .cluster
            .begin_move(&self.slot, self.from, self.to)
            .await;
        begun.expect("the slot begins to move");
    }

    async fn key(&self, end: &str) {
        let key = format!("{}{end}", self.key);
        let moved = self.cluster.move_key(&key, self.from, self.to).await;
        moved.expect("the key moves");
    }

    async fn end(&self) {
        let ended = self.cluster.end_move(&self.slot, self.from, self.to).await;
        ended.expect("the slot has moved");
    }

    /// Resolves when a node has sent somebody away because the slot moves.
    async fn somebody_was_sent_away(&self) {
        until("a request that met the move", SOON, || async {
            for node in [self.from, self.to] {
                let errors = node.command(&["INFO", "errorstats"]).await?;
                let errors = errors.text().unwrap_or_default();
                if ["TRYAGAIN", "ASK", "ERR"]
                    .iter()
                    .any(|e| errors.contains(&format!("errorstat_{e}:")))
                {
                    return Ok(());
                }
            }
            Err(integration_tests::Error::answer(
                "INFO errorstats",
                "nobody",
            ))
        })
        .await
        .expect("somebody asks");
    }
}

#[tokio::test]
async fn a_writer_does_not_get_in_beside_a_reader_while_their_slot_moves() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let (mine, theirs) = (
        client_with(&url(cluster.addrs()), patient()).await,
        client(&url(cluster.addrs())).await,
    );
    // Each of its keys may be the first to go.
    for (name, first) in [("a", ""), ("b", ":h"), ("c", ":i")] {
        let lock = mine.rw_lock(name).expect("a name");
        let reader = lock.read().await.expect("the lock");
        let moving = Moving::of(&cluster, name).await;
        moving.begin().await;
        moving.key(first).await;
        let writer = theirs.rw_lock(name).expect("a name");
        let got = writer.try_write().await;
        assert!(
            !matches!(got, Ok(Some(_))),
            "{name}: a writer beside a reader"
        );
        let mutex = theirs.mutex(name).expect("a name");
        let got = mutex.try_lock().await;
        assert!(
            !matches!(got, Ok(Some(_))),
            "{name}: a holder beside a reader"
        );
        moving.end().await;
        assert!(reader.is_held());
        let got = writer.try_write().await.expect("an answer");
        assert!(got.is_none(), "{name}: a writer beside a reader");
        assert_eq!(reader.release().await.expect("release"), Released::Freed);
        let got = writer.write_within(SOON).await.expect("an answer");
        let got = got.expect("free now").release().await;
        assert_eq!(got.expect("release"), Released::Freed);
    }
}

#[tokio::test]
async fn a_lock_is_used_for_the_first_time_while_its_slot_moves() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let locks = client_with(&url(cluster.addrs()), patient()).await;
    let moving = Moving::of(&cluster, "new").await;
    moving.begin().await;
    let first = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("new").expect("a name").lock().await }
    });
    moving.somebody_was_sent_away().await;
    // Nothing is in the operator's way at either node.
    moving.end().await;
    let guard = tokio::time::timeout(SOON, first).await.expect("in time");
    let guard = guard.expect("a task").expect("the lock");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_waiter_gets_its_turn_after_the_slot_has_moved_and_nobody_asked_meanwhile() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let (mine, theirs) = (
        client_with(&url(cluster.addrs()), patient()).await,
        client_with(&url(cluster.addrs()), patient()).await,
    );
    let guard = lock(&mine, "a").await;
    let waiter = tokio::spawn(async move { theirs.mutex("a").expect("a name").lock().await });
    waiting(&mine, "a", 1).await;
    let moving = Moving::of(&cluster, "a").await;
    moving.begin().await;
    for key in [":q", "", ":w"] {
        moving.key(key).await;
    }
    moving.end().await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = tokio::time::timeout(seconds(30), waiter).await;
    let next = next.expect("in time").expect("a task").expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
}

/// However long the operator takes: the key of an exclusive hold is enough to renew it, at whichever node it is.
#[tokio::test]
async fn an_exclusive_hold_is_renewed_while_its_slot_moves() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let settings = Settings::new().lease(seconds(2));
    let locks = client_with(&url(cluster.addrs()), settings).await;
    let guard = lock(&locks, "a").await;
    let moving = Moving::of(&cluster, "a").await;
    moving.begin().await;
    let lost = tokio::time::timeout(seconds(3), guard.lost()).await;
    assert!(lost.is_err(), "lost at the old node: {lost:?}");
    moving.key("").await;
    let lost = tokio::time::timeout(seconds(3), guard.lost()).await;
    assert!(lost.is_err(), "lost at the new node: {lost:?}");
    moving.end().await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

/// What excludes whom, watched by tasks that use one lock: below zero a writer, above it readers.
async fn use_lock(
    locks: Locks,
    name: String,
    inside: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    write: bool,
) -> u64 {
    let lock = locks.rw_lock(&name).expect("a name");
    let mut turns = 0;
    while !stop.load(Ordering::Relaxed) {
        let guard = if write {
            let guard = lock.write().await.expect("the lock");
            let before = inside.swap(-1, Ordering::SeqCst);
            assert_eq!(before, 0, "{name}: a writer beside somebody");
            guard
        } else {
            let guard = lock.read().await.expect("the lock");
            let before = inside.fetch_add(1, Ordering::SeqCst);
            assert!(before >= 0, "{name}: a reader beside a writer");
            guard
        };
        tokio::task::yield_now().await;
        if write {
            inside.store(0, Ordering::SeqCst);
        } else {
            inside.fetch_sub(1, Ordering::SeqCst);
        }
        let _ = guard.release().await.expect("release");
        turns += 1;
    }
    turns
}

#[tokio::test]
async fn readers_writers_and_first_uses_through_a_real_reshard() {
    // The slots that are moved are the lowest of the first node, which are the lowest of all.
    const SLOTS: u16 = 200;
    let cluster = RedisCluster::start().await.expect("a cluster");
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let moved: HashSet<Slot> = (0..SLOTS).filter_map(Slot::new).collect();
    let mut names = (0..)
        .map(|n| format!("n{n}"))
        .filter(move |name| moved.contains(&Slot::for_key(format!("dlock:{{{name}}}"))));
    let used: Vec<String> = names.by_ref().take(5).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for name in &used {
        let inside = Arc::new(AtomicI64::new(0));
        for write in [true, false, false] {
            let locks = client_with(&url(cluster.addrs()), patient()).await;
            tasks.spawn(use_lock(
                locks,
                name.clone(),
                inside.clone(),
                stop.clone(),
                write,
            ));
        }
    }
    let locks = client_with(&url(cluster.addrs()), patient()).await;
    let first_uses = tokio::spawn({
        let stop = stop.clone();
        async move {
            let mut uses = 0;
            // Each name is used once and never again: nobody has heard of it when its slot moves.
            for name in names {
                let guard = locks.mutex(&name).expect("a name").lock().await;
                let _ = guard.expect("the lock").release().await.expect("release");
                uses += 1;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            uses
        }
    });
    cluster
        .reshard(usize::from(SLOTS), from, to)
        .await
        .expect("reshard");
    stop.store(true, Ordering::Relaxed);
    while let Some(turns) = tasks.join_next().await {
        assert!(turns.expect("nobody beside another") > 0);
    }
    let uses: u32 = first_uses.await.expect("first uses");
    assert!(uses > 1, "{uses} locks were used for the first time");
}

/// A proxy in front of each node, whose ports the nodes tell their clients.
async fn behind_proxies(cluster: &RedisCluster) -> Vec<FaultProxy> {
    let mut proxies = Vec::new();
    for node in cluster.nodes() {
        proxies.push(FaultProxy::start(node.addr()).await.expect("a proxy"));
    }
    let ports: Vec<u16> = proxies.iter().map(|proxy| proxy.addr().port()).collect();
    cluster.announce(&ports).await.expect("announced");
    proxies
}

fn proxy_of<'a>(
    cluster: &RedisCluster,
    proxies: &'a [FaultProxy],
    node: &RedisServer,
) -> &'a FaultProxy {
    let place = cluster.nodes().iter().position(|n| n.port() == node.port());
    &proxies[place.expect("a node")]
}

#[tokio::test]
async fn in_a_cluster_nothing_is_sent_twice_in_secret() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let proxies = behind_proxies(&cluster).await;
    let url = url(proxies.iter().map(FaultProxy::addr));
    // A command of the user's own is not sent again when its answer is lost.
    let client = config(&url).client().await.expect("a connection");
    let master = cluster.master_of("counter").await.expect("a master");
    let proxy = proxy_of(&cluster, &proxies, master);
    proxy.drop_reply_to("counter", Duration::ZERO);
    let lost = client.query::<i64>(redis::cmd("INCR").arg("counter")).await;
    assert!(lost.is_err(), "{lost:?}");
    let count: i64 = client
        .query(redis::cmd("GET").arg("counter"))
        .await
        .expect("GET");
    assert_eq!(count, 1, "it was done twice");

    // A release whose answer is lost does not say that the hold had been lost before.
    let locks = client_with(&url, patient()).await;
    let master = cluster.master_of("dlock:{a}").await.expect("a master");
    let proxy = proxy_of(&cluster, &proxies, master);
    for _ in 0..5 {
        let guard = lock(&locks, "a").await;
        proxy.drop_reply_to("dlock:{a}", Duration::ZERO);
        let released = guard.release().await;
        assert!(
            !matches!(released, Ok(Released::AlreadyLost)),
            "{released:?}"
        );
    }
    assert!(!locks.inspect("a").await.expect("inspect").is_locked());
}

/// How often a node was asked to run a script that it did not know.
async fn unknown_scripts(node: &RedisServer) -> String {
    let errors = node.command(&["INFO", "errorstats"]).await.expect("INFO");
    let errors = errors.text().unwrap_or_default();
    let line = errors.lines().find(|line| line.contains("NOSCRIPT"));
    line.unwrap_or_default().to_owned()
}

/// A renewal has a part of the lease, and two slow answers may take longer. So every node knows its script before the first one, not only the
/// node that was asked when we connected.
#[tokio::test]
async fn the_first_renewal_at_any_node_is_one_request() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let locks = client_with(&url(cluster.addrs()), patient()).await;
    for node in cluster.nodes() {
        let mut name = String::new();
        for n in 0.. {
            name = format!("renewed{n}");
            let key = format!("dlock:{{{name}}}");
            if cluster.master_of(&key).await.expect("a master").port() == node.port() {
                break;
            }
        }
        let guard = lock(&locks, &name).await;
        let before = unknown_scripts(node).await;
        guard.renew_now().await.expect("renewed");
        assert_eq!(unknown_scripts(node).await, before, "{name}");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}

/// A lock whose node is another one than that of the lock "a".
async fn elsewhere(cluster: &RedisCluster) -> String {
    let here = cluster.master_of("dlock:{a}").await.expect("a master");
    for n in 0.. {
        let name = format!("other{n}");
        let key = format!("dlock:{{{name}}}");
        if cluster.master_of(&key).await.expect("a master").port() != here.port() {
            return name;
        }
    }
    unreachable!("there are three nodes")
}

/// The answers of the other nodes say nothing about the one that is silent.
#[tokio::test]
async fn one_half_open_node_is_found_while_the_others_answer() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let proxies = behind_proxies(&cluster).await;
    let url = url(proxies.iter().map(FaultProxy::addr));
    let url = format!("{url}?answer_timeout=500ms&connect_timeout=2s");
    let locks = client_with(&url, patient()).await;
    let other = elsewhere(&cluster).await;
    let _ = lock(&locks, "a").await.release().await;
    let silent = cluster.master_of("dlock:{a}").await.expect("a master");
    proxy_of(&cluster, &proxies, silent).half_open();
    let stop = Arc::new(AtomicBool::new(false));
    let busy = tokio::spawn({
        let (locks, stop) = (locks.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                let _ = lock(&locks, &other).await.release().await;
            }
        }
    });
    // As at one server: two answers that did not come, and then a new connection. The rest is for a machine that has other things to do;
    // whoever counts the answers of the others finds it never.
    let bound = 2 * Duration::from_millis(500) + seconds(2);
    let start = Instant::now();
    let guard = locks.mutex("a").expect("a name").lock().await;
    let guard = guard.expect("the lock");
    let found = start.elapsed();
    assert!(found < bound + seconds(5), "found after {found:?}");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    stop.store(true, Ordering::Relaxed);
    busy.await.expect("the others answered");
}

/// A lease that is shorter than two answers may take, at the one node whose connection is open at our side only.
#[tokio::test]
async fn a_short_lease_survives_one_half_open_node() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let proxies = behind_proxies(&cluster).await;
    let settings = Settings::new()
        .lease(seconds(5))
        .retry_unreachable_for(seconds(60));
    let locks = client_with(&url(proxies.iter().map(FaultProxy::addr)), settings).await;
    let silent = cluster.master_of("dlock:{a}").await.expect("a master");
    let guard = lock(&locks, "a").await;
    // Something at another node, which answers all the time.
    let other = elsewhere(&cluster).await;
    proxy_of(&cluster, &proxies, silent).half_open();
    let start = Instant::now();
    while start.elapsed() < seconds(7) {
        assert!(guard.is_held(), "lost after {:?}", start.elapsed());
        let busy = lock(&locks, &other).await;
        let _ = busy.release().await.expect("release");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}
