//! The queue of a ZooKeeper lock: its order, and those who leave it without a word.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::path::Path;
use std::time::Duration;

use dlock_core::{Order, Released, Settings};
use integration_tests::{FaultProxy, Holder, ZooKeeperServer};
use tokio::process::Command;
use tokio::time::timeout;
use zk_support::*;

const HOLD_LOCK: &str = env!("CARGO_BIN_EXE_hold-lock");

#[tokio::test]
async fn waiter_whose_node_was_deleted_queues_again() {
    let server = server().await;
    let url = server.url() + "?session=3s";
    let (holder, waiter) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let mutex = waiter.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    let admin = Admin::connect(&url).await;
    let queue = admin.queue("/dlock/a").await;
    admin
        .0
        .delete(&format!("/dlock/a/{}", queue[1]), None)
        .await
        .expect("delete");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = timeout(SOON, waits)
        .await
        .expect("the waiter")
        .expect("no panic")
        .expect("the lock");
    assert_eq!(admin.queue("/dlock/a").await.len(), 1, "it really holds");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn middle_waiter_that_dies_is_skipped_and_nobody_is_granted_early() {
    let server = server().await;
    let url = server.url() + "?session=20s";
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&url).await;
    let dying = client(&format!("zk://{}?session=1s", proxy.addr())).await;
    let last = client(&url).await;
    let guard = lock(&holder, "a").await;
    let mut waits = Vec::new();
    for (count, locks) in [(1, &dying), (2, &last)] {
        let mutex = locks.mutex("a").expect("a name");
        waits.push(tokio::spawn(async move { mutex.lock().await }));
        waiting(&holder, "a", count).await;
    }
    let admin = Admin::connect(&url).await;
    let queue = admin.queue("/dlock/a").await;
    // Its session ends at the server, as when its process was killed.
    proxy.refuse();
    proxy.reset_all().await;
    let left = queue_of(&admin, "/dlock/a", 2).await;
    assert_eq!(left, [queue[0].clone(), queue[2].clone()]);
    // Its successor has been woken and watches the holder now, beside itself; and it is not granted.
    watched(&server, 2).await;
    assert!(!waits[1].is_finished(), "granted while another holds");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let last = waits.pop().expect("two");
    let next = timeout(SOON, last)
        .await
        .expect("the last")
        .expect("no panic")
        .expect("the lock");
    assert_eq!(next.release().await.expect("release"), Released::Freed);
    waits[0].abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waiters_are_served_in_order_with_one_wake_up_for_each_release() {
    const WAITERS: u64 = 200;
    let server = server().await;
    let url = server.url() + "?session=20s";
    let strict = || Settings::new().order(Order::Strict);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client_with(&url, strict()).await);
    }
    let guard = lock(&clients[0], "a").await;
    let admin = Admin::connect(&url).await;
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..WAITERS {
        let mutex = clients[number as usize % 4].mutex("a").expect("a name");
        let granted = granted.clone();
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            granted.send((guard.token(), guard)).ok();
        });
    }
    let places = queue_of(&admin, "/dlock/a", WAITERS as usize + 1).await;
    // Every waiter watches itself and the one before, and a server counts a node once for each client that watches it.
    let mut owners = Vec::new();
    for place in &places {
        let stat = admin
            .0
            .check_stat(&format!("/dlock/a/{place}"))
            .await
            .expect("stat");
        owners.push(stat.expect("it waits").ephemeral_owner);
    }
    let twice = owners[1..]
        .windows(2)
        .filter(|pair| pair[0] != pair[1])
        .count() as u64;
    watched(&server, WAITERS + 1 + twice).await;
    let before = count(&server, "zk_packets_received").await;
    let mut last = guard.token();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    for place in 1..=WAITERS as usize {
        let next = timeout(SOON, grants.recv())
            .await
            .expect("the next")
            .expect("they live");
        assert!(next.0 > last, "in the order of the queue");
        last = next.0;
        let first = admin.queue("/dlock/a").await.into_iter().next();
        assert_eq!(
            first.as_ref(),
            places.get(place),
            "in the order of the queue"
        );
        assert_eq!(next.1.release().await.expect("release"), Released::Freed);
    }
    // For each: its release and the next one's look. The administrator's two, and heartbeats.
    let packets = count(&server, "zk_packets_received").await - before;
    assert!(
        packets < WAITERS * 6,
        "{packets} requests for {WAITERS} hand-overs"
    );
}

#[tokio::test]
async fn process_killed_in_the_middle_of_the_queue_is_skipped_and_the_order_holds() {
    let server = server().await;
    let mine = client(&(server.url() + "?session=20s")).await;
    let guard = lock(&mine, "a").await;
    let mut waiters = Vec::new();
    for place in 1..=3 {
        let url = server.url() + "?session=3s";
        let process = Holder::start(HOLD_LOCK, &url, "a", "exclusive", None).await;
        waiters.push(process.expect("a process"));
        waiting(&mine, "a", place).await;
    }
    let admin = Admin::connect(&server.url()).await;
    let queue = queue_of(&admin, "/dlock/a", 4).await;
    waiters[1].kill().await.expect("kill");
    // Its place stays until its session ends.
    let left = queue_of(&admin, "/dlock/a", 3).await;
    assert_eq!(left, [0, 1, 3].map(|place| queue[place].clone()));
    // The last one watches the first one now; each watches itself besides.
    watched(&server, 4).await;
    assert!(guard.is_held());
    let token = guard.token().expect("a token").get();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);

    let first = timeout(SOON, waiters[0].held()).await.expect("soon");
    let first = first.expect("the first waiter");
    assert!(first > token);
    // Whoever was granted too early has said so: the first thing that the last one says comes after the first one has released.
    let early = timeout(Duration::from_millis(200), waiters[2].event()).await;
    assert!(early.is_err(), "granted while another holds: {early:?}");
    assert_eq!(waiters[0].release().await.expect("release"), "Freed");
    let last = timeout(SOON, waiters[2].held()).await.expect("soon");
    assert!(last.expect("the last waiter") > first);
    assert_eq!(waiters[2].release().await.expect("release"), "Freed");
}

/// Whoever dies, stops or is cut off within a try leaves a node that says that it will leave at once, and stays.
#[tokio::test]
async fn try_read_behind_a_try_that_never_ends_says_busy_and_does_not_ask_without_end() {
    let server = server().await;
    let url = server.url() + "?session=20s";
    let (holder, tries) = (client(&url).await, client(&url).await);
    let admin = Admin::connect(&url).await;
    let read = holder.rw_lock("a").expect("a name");
    let read = read.read().await.expect("the lock");
    // As it is named in the middle of a try to write.
    let node = "/dlock/a/_c_0a3d2c46-7a3e-4f1c-8d6f-6d6a8f3f6f11-try-lock-0000000007";
    admin.create(node, "dlock:p:").await;
    let before = count(&server, "zk_packets_received").await;
    let lock = tries.rw_lock("a").expect("a name");
    let tried = timeout(SOON, lock.try_read()).await.expect("soon");
    let tried = tried.expect("the store answers");
    assert!(tried.is_none(), "it passed by somebody who may hold");
    let packets = count(&server, "zk_packets_received").await - before;
    assert!(packets < 100, "{packets} requests of one try");
    assert_eq!(queue_of(&admin, "/dlock/a", 2).await.len(), 2, "no trace");
    admin.0.delete(node, None).await.expect("delete");
    let shared = lock.try_read().await.expect("the store answers");
    assert!(shared.is_some(), "only readers hold");
    drop((shared, read));
}

/// Sets the counter from which a node numbers its children, while the server does not run.
async fn jump_sequence(server: &ZooKeeperServer, path: &str, number: i32) {
    server.terminate().await.expect("it ends");
    let support = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zk_support");
    let done = Command::new("java")
        .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp"])
        .arg("/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar")
        .arg(support.join("JumpSequence.java"))
        .arg(server.site().file("data"))
        .args([path, &number.to_string()])
        .status()
        .await
        .expect("java is missing: install default-jdk-headless");
    assert!(done.success(), "JumpSequence");
    server.restart().await.expect("it starts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_and_exclusion_outlast_the_counter_of_the_nodes() {
    const WAITERS: usize = 5;
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let locks = client(&server.url()).await;
    for _ in 0..2 {
        let guard = lock(&locks, "a").await;
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
    locks.close().await.expect("close");
    jump_sequence(&server, "/dlock/a", i32::MAX - 1).await;

    let url = server.url();
    let (mine, admin) = (client(&url).await, Admin::connect(&url).await);
    let guard = lock(&mine, "a").await;
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..WAITERS {
        let mutex = client(&url).await.mutex("a").expect("a name");
        let granted = granted.clone();
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            granted.send((number, guard)).ok();
        });
        queue_of(&admin, "/dlock/a", number + 2).await;
    }
    let names = admin.queue("/dlock/a").await;
    let last = |name: &&String| name.ends_with(&format!("-{}", i32::MAX));
    assert!(names.iter().filter(last).count() > 1, "{names:?}");

    let mut holder = guard;
    for expected in 0..WAITERS {
        let early = timeout(Duration::from_millis(100), grants.recv()).await;
        assert!(early.is_err(), "granted while another holds: {early:?}");
        let token = holder.token();
        assert_eq!(holder.release().await.expect("release"), Released::Freed);
        let next = timeout(SOON, grants.recv()).await.expect("soon");
        let (number, guard) = next.expect("one of them");
        assert_eq!(number, expected, "in the order of the queue");
        assert!(guard.token() > token);
        holder = guard;
    }
    assert_eq!(holder.release().await.expect("release"), Released::Freed);
    // And with nobody else in the queue, again and again.
    for _ in 0..4 {
        let guard = lock(&mine, "a").await;
        let tried = client(&url)
            .await
            .mutex("a")
            .expect("a name")
            .try_lock()
            .await;
        assert!(tried.expect("the store answers").is_none(), "two hold");
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}
