//! What a lock in ZooKeeper costs against the bare requests of the crate `zookeeper-client`, in one run.
//!
//! `cargo run --release -p integration-tests --example bench_zk [rounds]`, with `DLOCK_TEST_ZK_URL` for a server of your own.
//! Rounds of the two sides alternate, so that a machine's moods hit both.
#![allow(clippy::print_stdout, reason = "it prints its results")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark ends where it breaks"
)]

#[path = "processes/mod.rs"]
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::Locks;
use dlock_zk::Config;
use tokio::sync::mpsc;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

/// Before each hand-off, so that the waiter has its watch, and both sides start from rest.
const PAUSE: Duration = Duration::from_millis(5);

const PLACE: &str = "/raw/lock/_c_00000000-0000-0000-0000-000000000000-lock-";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if processes::is_worker().await {
        return;
    }
    let rounds = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000);
    let server = integration_tests::zookeeper().await.expect("zookeeper");
    let url = server.url();
    let raw = connect(url).await;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/raw", "/raw/lock"] {
        raw.create(path, b"", &persistent).await.ok();
    }
    cycle(&raw, url, rounds).await;
    hand_off(&raw, url, rounds).await;
    let own = "the recipe of zookeeper-client";
    processes::compare(url, own, |time| own_recipe(url, time)).await;
}

/// As many tasks by the recipe of the raw client, with a session for each; all in this process, which is to their advantage.
async fn own_recipe(url: &str, time: Duration) -> f64 {
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..processes::PROCESSES * processes::TASKS {
        let (client, count) = (connect(url).await, count.clone());
        tasks.push(tokio::spawn(async move {
            loop {
                let prefix = LockPrefix::new_curator("/raw/own", "lock-").expect("a name");
                let ancestors = CreateMode::Persistent.with_acls(Acls::anyone_all());
                let options = LockOptions::from(Acls::anyone_all())
                    .with_ancestor_options(ancestors)
                    .expect("good options");
                let held = client.lock(prefix, b"", options).await.expect("the lock");
                count.fetch_add(1, Ordering::Relaxed);
                client.delete(held.lock_path(), None).await.expect("free");
                // It would delete once more.
                std::mem::forget(held);
            }
        }));
    }
    tokio::time::sleep(time).await;
    let all = count.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    for task in &tasks {
        task.abort();
    }
    all
}

async fn connect(url: &str) -> Client {
    let servers = url
        .trim_start_matches("zk://")
        .split('?')
        .next()
        .expect("hosts");
    Client::connect(servers).await.expect("a connection")
}

async fn locks(url: &str) -> Locks {
    let backend = Config::from_url(url)
        .expect("a URL")
        .connect()
        .await
        .expect("a connection");
    Locks::new(backend).expect("defaults")
}

async fn raw_place(client: &Client) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = client
        .create(PLACE, b"bench", &options)
        .await
        .expect("create");
    format!("{PLACE}{sequence}")
}

/// Create + delete, against lock + release; and against the same requests as ours, to tell the protocol's part from the code's.
async fn cycle(raw: &Client, url: &str, rounds: usize) {
    let locks = locks(url).await;
    let mutex = locks.mutex("bench").expect("a name");
    let (mut bare, mut same, mut ours) = (Times::new(), Times::new(), Times::new());
    for round in 0..rounds + rounds / 10 {
        let started = Instant::now();
        let node = raw_place(raw).await;
        raw.delete(&node, None).await.expect("delete");
        let first = started.elapsed();

        let started = Instant::now();
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let created = raw.create(PLACE, b"bench", &options);
        let listed = raw.get_children("/raw/lock");
        let (_, sequence) = created.await.expect("create");
        listed.await.expect("children");
        raw.delete(&format!("{PLACE}{sequence}"), None)
            .await
            .expect("delete");
        let second = started.elapsed();

        let started = Instant::now();
        let guard = mutex.lock().await.expect("the lock");
        let _ = guard.release().await.expect("release");
        if round >= rounds / 10 {
            ours.push(started.elapsed());
            bare.push(first);
            same.push(second);
        }
    }
    let ours = Times::sorted(ours);
    report("uncontended cycle", "create + delete", bare, &ours);
    report(
        "uncontended cycle",
        "create with children + delete",
        same,
        &ours,
    );
}

/// Delete until another client sees its watch, against release until another client holds.
async fn hand_off(raw: &Client, url: &str, rounds: usize) {
    let other = connect(url).await;
    let (a, b) = (locks(url).await, locks(url).await);
    let (told, mut seen) = mpsc::unbounded_channel();
    let (mut bare, mut ours) = (Times::new(), Times::new());
    for round in 0..rounds + rounds / 10 {
        let node = raw_place(raw).await;
        let (_, _, watcher) = other.get_and_watch_data(&node).await.expect("a watch");
        let tell = told.clone();
        tokio::spawn(async move {
            watcher.changed().await;
            tell.send(Instant::now()).ok();
        });
        tokio::time::sleep(PAUSE).await;
        let started = Instant::now();
        raw.delete(&node, None).await.expect("delete");
        let watched = seen.recv().await.expect("the event") - started;

        let guard = a
            .mutex("bench")
            .expect("a name")
            .lock()
            .await
            .expect("the lock");
        let waiter = b.mutex("bench").expect("a name");
        let tell = told.clone();
        let waits = tokio::spawn(async move {
            let guard = waiter.lock().await.expect("the lock");
            tell.send(Instant::now()).ok();
            guard
        });
        while a
            .inspect("bench")
            .await
            .expect("inspect")
            .waiters
            .is_empty()
        {}
        tokio::time::sleep(PAUSE).await;
        let started = Instant::now();
        let _ = guard.release().await.expect("release");
        let held = seen.recv().await.expect("the grant") - started;
        let _ = waits
            .await
            .expect("no panic")
            .release()
            .await
            .expect("release");
        if round >= rounds / 10 {
            bare.push(watched);
            ours.push(held);
        }
    }
    report(
        "hand-off",
        "delete + watch event",
        bare,
        &Times::sorted(ours),
    );
}

struct Times(Vec<Duration>);

impl Times {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn sorted(mut self) -> Self {
        self.0.sort();
        self
    }

    fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    fn at(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

fn report(what: &str, against: &str, bare: Times, ours: &Times) {
    let bare = bare.sorted();
    let ratio = ours.at(50).as_secs_f64() / bare.at(50).as_secs_f64();
    println!("{what}: {:?} p50, {:?} p99", ours.at(50), ours.at(99));
    println!("{against}: {:?} p50, {:?} p99", bare.at(50), bare.at(99));
    println!("ratio of the medians: {ratio:.2}\n");
}
