//! What it brings that a lock stays with its client, on every store, each figure beside the same with every turn asked of the store:
//! `cargo run --release -p integration-tests --all-features --example bench_turns [STORE...]`.
//!
//! Rounds alternate, and a figure is the median of five with its spread. Stores: memory, file, redis, redlock, etcd, zk, mysql, postgres.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark prints, and ends where its expectation breaks"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlocks::{Capability, Locks, Settings};
use integration_tests::RedisServer;

#[path = "processes/mod.rs"]
#[allow(dead_code, reason = "this one compares in a way of its own")]
mod processes;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(1);
const TASKS: usize = 50;
const TASKS_OF_A_PROCESS: usize = 16;

#[tokio::main]
async fn main() {
    if processes::is_worker().await {
        return;
    }
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let is_chosen = |store: &str| chosen.is_empty() || chosen.iter().any(|name| name == store);
    let folder = tempfile();
    let quorum = match is_chosen("redlock") {
        true => futures::future::try_join_all((0..3).map(|_| RedisServer::start())).await,
        false => Ok(Vec::new()),
    };
    let quorum = quorum.expect("three servers");
    let hosts: Vec<_> = quorum.iter().map(|node| node.addr().to_string()).collect();
    for store in [
        "memory", "file", "redis", "redlock", "etcd", "zk", "mysql", "postgres",
    ] {
        if !is_chosen(store) {
            continue;
        }
        let url = match store {
            "memory" => "memory:".to_owned(),
            "file" => format!("file:{folder}"),
            "redis" => integration_tests::redis().await.unwrap().url().to_owned(),
            "redlock" => format!("redlock://{}", hosts.join(",")),
            "etcd" => integration_tests::etcd().await.unwrap().url().to_owned(),
            "zk" => {
                let server = integration_tests::zookeeper().await.unwrap();
                server.url().to_owned()
            }
            "mysql" => integration_tests::mysql().await.unwrap().url().to_owned(),
            _ => integration_tests::postgres()
                .await
                .unwrap()
                .url()
                .to_owned(),
        };
        println!("\n{store}");
        of_store(&url, store != "memory").await;
    }
    std::fs::remove_dir_all(&folder).ok();
}

fn tempfile() -> String {
    let name = format!("dlock-bench-{}", std::process::id());
    std::env::temp_dir().join(name).display().to_string()
}

async fn client(url: &str, settings: Settings) -> Locks {
    let backend = dlocks::open(url).await.expect("a connection");
    let locks = Locks::builder(backend).settings(settings).build();
    locks.expect("settings")
}

/// Every turn is a trip.
fn asked() -> Settings {
    Settings::new().local_turns(1)
}

async fn of_store(url: &str, has_processes: bool) {
    let plain = client(url, Settings::new()).await;
    let capabilities = plain.capabilities().clone();
    if !capabilities.has(Capability::PassOn) {
        println!("  a grant brings one token: nothing is passed on");
    } else {
        crowd(url).await;
        lone(url).await;
        if has_processes {
            waiter(url).await;
            between_processes(url).await;
        }
    }
    if capabilities.has(Capability::Shared) {
        readers(url).await;
    }
}

/// Two ways by turns: what each round of them brings.
async fn alternate<A: Future<Output = f64>, B: Future<Output = f64>>(
    what: &str,
    unit: &str,
    mut ours: impl FnMut() -> A,
    mut baseline: impl FnMut() -> B,
) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        left.push(ours().await);
        right.push(baseline().await);
    }
    let mut ratios: Vec<f64> = left.iter().zip(&right).map(|(a, b)| a / b).collect();
    let [ours, baseline, ratio] = [&mut left, &mut right, &mut ratios].map(|values| {
        values.sort_by(f64::total_cmp);
        (
            values[0],
            values[values.len() / 2],
            values[values.len() - 1],
        )
    });
    println!(
        "  {what:<46}{:>12.1} {unit} ({:.1} to {:.1})   asked {:.1}   ratio {:.2} ({:.2} to {:.2})",
        ours.1, ours.0, ours.2, baseline.1, ratio.1, ratio.0, ratio.2
    );
}

/// How often a second the tasks of one client take and free one lock.
async fn rate(locks: &Locks, reads: bool) -> f64 {
    let name = "bench-turns";
    let (over, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let start = Instant::now();
    let tasks = (0..TASKS).map(|_| {
        let (locks, over, count) = (locks.clone(), over.clone(), count.clone());
        tokio::spawn(async move {
            let (mutex, lock) = (locks.mutex(name).unwrap(), locks.rw_lock(name).unwrap());
            while !over.load(Ordering::Relaxed) {
                let guard = match reads {
                    true => lock.read().await.unwrap(),
                    false => mutex.lock().await.unwrap(),
                };
                count.fetch_add(1, Ordering::Relaxed);
                let _ = guard.release().await.unwrap();
                // Memory answers at once, and so does a hold that is passed on: let the clock have its turn.
                tokio::task::consume_budget().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(ROUND).await;
    let rate = count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    rate
}

async fn crowd(url: &str) {
    let (ours, theirs) = (
        client(url, Settings::new()).await,
        client(url, asked()).await,
    );
    let what = format!("{TASKS} tasks of one client, hand-offs");
    alternate(&what, "/s", || rate(&ours, false), || rate(&theirs, false)).await;
    let stats = ours.stats();
    let all = stats.acquired + stats.passed_on;
    println!(
        "  {:<46}{:>12.3} of the store per hand-off",
        "grants",
        stats.acquired as f64 / all as f64
    );
}

async fn readers(url: &str) {
    let (ours, theirs) = (
        client(url, Settings::new().readers_join(true)).await,
        client(url, Settings::new()).await,
    );
    let what = format!("{TASKS} readers of one client, who join");
    alternate(&what, "/s", || rate(&ours, true), || rate(&theirs, true)).await;
}

/// The median of lock and release with nobody else there, in microseconds.
async fn cycle(locks: &Locks, name: &str) -> f64 {
    let mutex = locks.mutex(name).unwrap();
    let mut times = Vec::new();
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        let start = Instant::now();
        let guard = mutex.lock().await.unwrap();
        let _ = guard.release().await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

async fn lone(url: &str) {
    let lingers = Settings::new().linger(Duration::from_secs(5));
    let (ours, theirs) = (client(url, lingers).await, client(url, asked()).await);
    let what = "a lone client that lingers, cycle p50";
    // Each has a lock of its own: the one that lingers would keep the other waiting.
    alternate(
        what,
        "µs",
        || cycle(&ours, "bench-lingers"),
        || cycle(&theirs, "bench-asks"),
    )
    .await;
    ours.close().await.unwrap();
}

/// How long one of another client waits while a crowd passes the lock round, in microseconds.
async fn wait_beside(crowd: &Locks, other: &Locks, all: &mut Vec<f64>) -> f64 {
    let over = Arc::new(AtomicBool::new(false));
    let tasks = (0..TASKS).map(|_| {
        let (locks, over) = (crowd.clone(), over.clone());
        tokio::spawn(async move {
            let mutex = locks.mutex("bench-beside").unwrap();
            while !over.load(Ordering::Relaxed) {
                let guard = mutex.lock().await.unwrap();
                let _ = guard.release().await.unwrap();
                tokio::task::consume_budget().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mutex = other.mutex("bench-beside").unwrap();
    let mut times = Vec::new();
    let end = Instant::now() + ROUND;
    while Instant::now() < end || times.is_empty() {
        let start = Instant::now();
        let guard = mutex.lock().await.unwrap();
        times.push(start.elapsed());
        let _ = guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    times.sort();
    all.extend(times.iter().map(|time| time.as_secs_f64() * 1e6));
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// The wait of which so many of a thousand are no longer.
fn of_thousand(waits: &mut [f64], part: usize) -> f64 {
    waits.sort_by(f64::total_cmp);
    waits[(waits.len() * part / 1000).min(waits.len() - 1)]
}

async fn waiter(url: &str) {
    let (ours, theirs, other) = (
        client(url, Settings::new()).await,
        client(url, asked()).await,
        client(url, Settings::new()).await,
    );
    let (all_ours, all_theirs) = (
        std::cell::RefCell::new(Vec::new()),
        std::cell::RefCell::new(Vec::new()),
    );
    let round = async |crowd: &Locks, all: &std::cell::RefCell<Vec<f64>>| {
        let mut waits = Vec::new();
        let median = wait_beside(crowd, &other, &mut waits).await;
        all.borrow_mut().extend(waits);
        median
    };
    alternate(
        "wait of another client beside them, p50",
        "µs",
        || round(&ours, &all_ours),
        || round(&theirs, &all_theirs),
    )
    .await;
    let (mut ours, mut theirs) = (all_ours.into_inner(), all_theirs.into_inner());
    for (what, part) in [("p99", 990), ("longest", 1000)] {
        let (ours, theirs) = (of_thousand(&mut ours, part), of_thousand(&mut theirs, part));
        println!(
            "  {:<46}{ours:>12.1} µs   asked {theirs:.1}   ratio {:.2}",
            format!("  {what} of all rounds"),
            ours / theirs
        );
    }
}

async fn between_processes(url: &str) {
    let least = std::cell::Cell::new(f64::INFINITY);
    let round = async |way: &str, counts: bool| {
        let (rate, share) = processes::round(url, way, TASKS_OF_A_PROCESS, ROUND).await;
        if counts {
            least.set(least.get().min(share));
        }
        rate
    };
    let what = format!("3 processes x {TASKS_OF_A_PROCESS} tasks, one lock");
    alternate(
        &what,
        "/s",
        || round("passed-on", true),
        || round("asked", false),
    )
    .await;
    println!(
        "  {:<46}{:>12.0} % of its part",
        "the least share of a process",
        least.get() * 100.0
    );
}
