//! What an etcd lock costs, as ratios against raw requests through the same client library in the same run.
//!
//! `cargo run --release -p integration-tests --example bench_etcd`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark prints, and ends where its expectation breaks"
)]

#[path = "../processes/mod.rs"]
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Locks, Mutex, Order, Settings};
use dlock_etcd::Config;
use etcd_client::{
    Client, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp, WatchFilterType, WatchOptions,
};
use integration_tests::EtcdServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

const CYCLES: usize = 600;
/// Enough for a cost that grows with each cycle to show.
const MANY_CYCLES: usize = 4000;
const HAND_OFFS: usize = 300;
const CROWD: usize = 50;
const ROUNDS: usize = 20;

#[tokio::main]
async fn main() {
    if processes::is_worker().await {
        return;
    }
    let server = EtcdServer::start().await.expect("etcd");
    println!(
        "{:<52}{:>10}{:>10}{:>8}  wanted",
        "", "dlock", "raw", "ratio"
    );
    cycle(&server).await;
    requests(&server).await;
    hand_off(&server).await;
    crowd(&server).await;
    let url = format!("{}?session=60s", server.url());
    let own = "etcd's own Lock + Unlock, a lease for each task";
    processes::compare(&url, own, |time| own_recipe(&server, time)).await;
}

/// As many tasks by etcd's own requests; all in this process, which is to their advantage.
async fn own_recipe(server: &EtcdServer, time: Duration) -> f64 {
    // A name of its own for each round: a request that is under way when its task ends would be in the way of the next.
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let name = format!("own-processes-{}", ROUND.fetch_add(1, Ordering::Relaxed));
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..processes::PROCESSES {
        let raw = raw(server).await;
        for _ in 0..processes::TASKS {
            let (mut raw, count, name) = (raw.clone(), count.clone(), name.clone());
            tasks.push(tokio::spawn(async move {
                let lease = raw.lease_grant(60, None).await.unwrap().id();
                loop {
                    let options = LockOptions::new().with_lease(lease);
                    let held = raw.lock(name.as_str(), Some(options)).await.unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                    raw.unlock(held.key()).await.unwrap();
                }
            }));
        }
    }
    tokio::time::sleep(time).await;
    let all = count.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    for task in &tasks {
        task.abort();
    }
    all
}

fn report(what: &str, ours: f64, raw: f64, wanted: &str) {
    let ratio = ours / raw;
    println!(
        "{what:<52}{:>10}{:>10}{ratio:>8.2}  {wanted}",
        format!("{ours:.0} µs"),
        format!("{raw:.0} µs")
    );
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

async fn locks(server: &EtcdServer) -> Locks {
    let config = Config::from_url(&format!("{}?session=60s", server.url())).unwrap();
    let settings = Settings::new().order(Order::Strict);
    let backend = Arc::new(config.connect().await.unwrap());
    Locks::builder(backend).settings(settings).build().unwrap()
}

async fn raw(server: &EtcdServer) -> Client {
    Client::connect([server.addr().to_string()], None)
        .await
        .unwrap()
}

/// The least a lock can be: put a key under a lease if it is not there, and delete it.
async fn raw_pair(raw: &mut Client, lease: i64, key: &str) {
    let put = TxnOp::put(
        key,
        "0123456789abcdef0123456789abcdef\nexclusive\nbench",
        Some(PutOptions::new().with_lease(lease)),
    );
    let free = Compare::create_revision(key, CompareOp::Equal, 0);
    let taken = raw
        .txn(Txn::new().when([free]).and_then([put]))
        .await
        .unwrap();
    assert!(taken.succeeded());
    raw.txn(Txn::new().and_then([TxnOp::delete(key, None)]))
        .await
        .unwrap();
}

/// A lock of ours, and a raw client beside it.
struct Pair {
    mutex: Mutex,
    raw: Client,
    lease: i64,
}

/// Medians of one cycle each.
struct Cycle {
    lock: f64,
    try_lock: f64,
    raw: f64,
    own_rpc: f64,
}

impl Pair {
    async fn lock(&self) {
        let guard = self.mutex.lock().await.unwrap();
        let _ = guard.release().await.unwrap();
    }

    /// Turn about, so that a change of the machine's mood meets all alike.
    async fn measure(&mut self, cycles: usize) -> Cycle {
        let (mut ours, mut theirs, mut own_rpc, mut tries) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for turn in 0..cycles {
            let start = Instant::now();
            self.lock().await;
            ours.push(micros(start));

            let start = Instant::now();
            raw_pair(&mut self.raw, self.lease, "dlock/raw/w/694d8a1f8e3f0a52-0").await;
            theirs.push(micros(start));

            let start = Instant::now();
            let guard = self.mutex.try_lock().await.unwrap().unwrap();
            let _ = guard.release().await.unwrap();
            tries.push(micros(start));

            let start = Instant::now();
            let options = LockOptions::new().with_lease(self.lease);
            let held = self.raw.lock("own", Some(options)).await.unwrap();
            self.raw.unlock(held.key()).await.unwrap();
            own_rpc.push(micros(start));
            if turn == cycles / 10 {
                for times in [&mut ours, &mut theirs, &mut tries, &mut own_rpc] {
                    times.clear();
                }
            }
        }
        Cycle {
            lock: median(&mut ours),
            try_lock: median(&mut tries),
            raw: median(&mut theirs),
            own_rpc: median(&mut own_rpc),
        }
    }
}

async fn cycle(server: &EtcdServer) {
    let locks = locks(server).await;
    let mut raw = raw(server).await;
    let lease = raw.lease_grant(600, None).await.unwrap().id();
    let mutex = locks.mutex("bench").unwrap();
    let mut pair = Pair { mutex, raw, lease };
    let first = pair.measure(CYCLES).await;
    report(
        "lock + release / Txn put + Txn delete",
        first.lock,
        first.raw,
        "at most 1.05",
    );
    report(
        "try_lock + release / Txn put + Txn delete",
        first.try_lock,
        first.raw,
        "at most 1.1",
    );
    report(
        "lock + release / etcd's own Lock + Unlock",
        first.lock,
        first.own_rpc,
        "below 1",
    );
    for _ in 0..MANY_CYCLES {
        pair.lock().await;
    }
    let late = pair.measure(CYCLES / 2).await;
    report(
        &format!("the first of these, after {MANY_CYCLES} more cycles"),
        late.lock,
        late.raw,
        "at most 1.1",
    );
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

async fn started(server: &EtcdServer) -> f64 {
    let mut stream = tokio::net::TcpStream::connect(server.addr()).await.unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let counts = text
        .lines()
        .filter(|line| line.starts_with("grpc_server_started_total{"));
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn requests(server: &EtcdServer) {
    let locks = locks(server).await;
    let mutex = locks.mutex("count").unwrap();
    let before = started(server).await;
    for _ in 0..100 {
        let guard = mutex.lock().await.unwrap();
        let _ = guard.release().await.unwrap();
    }
    let cycle = (started(server).await - before) / 100.0;
    println!(
        "{:<52}{cycle:>10.2}{:>10}{:>8}  2",
        "requests per cycle, free", "", ""
    );
}

/// From the release's start to the moment at which the waiter has the lock.
async fn hand_off(server: &EtcdServer) {
    let (one, two) = (locks(server).await, locks(server).await);
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut raw = raw(server).await;
    let (mut ours, mut theirs, mut own_rpc) = (Vec::new(), Vec::new(), Vec::new());
    let lease = raw.lease_grant(60, None).await.unwrap().id();
    for _ in 0..HAND_OFFS {
        let mutex = two.mutex("hand").unwrap();
        let guard = one.mutex("hand").unwrap().lock().await.unwrap();
        let tell = tell.clone();
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            tell.send(Instant::now()).unwrap();
            let _ = guard.release().await.unwrap();
        });
        while one.inspect("hand").await.unwrap().waiters.is_empty() {}
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        let start = Instant::now();
        let _ = guard.release().await.unwrap();
        ours.push((told.recv().await.unwrap() - start).as_secs_f64() * 1e6);

        // A delete, and its event on a watch that is in place.
        raw.put("raw-hand", "x", Some(PutOptions::new().with_lease(lease)))
            .await
            .unwrap();
        let options = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
        let mut watch = raw.watch("raw-hand", Some(options)).await.unwrap();
        assert!(watch.message().await.unwrap().unwrap().created());
        let seen = tokio::spawn(async move {
            watch.message().await.unwrap().unwrap();
            Instant::now()
        });
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        let start = Instant::now();
        raw.txn(Txn::new().and_then([TxnOp::delete("raw-hand", None)]))
            .await
            .unwrap();
        theirs.push((seen.await.unwrap() - start).as_secs_f64() * 1e6);
    }
    for _ in 0..20 {
        let held = raw
            .lock("own-hand", Some(LockOptions::new().with_lease(lease)))
            .await
            .unwrap();
        let mut other = raw.clone();
        let lease = raw.lease_grant(60, None).await.unwrap().id();
        let waits = tokio::spawn(async move {
            let held = other
                .lock("own-hand", Some(LockOptions::new().with_lease(lease)))
                .await
                .unwrap();
            let now = Instant::now();
            other.unlock(held.key()).await.unwrap();
            now
        });
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let start = Instant::now();
        raw.unlock(held.key()).await.unwrap();
        own_rpc.push((waits.await.unwrap() - start).as_secs_f64() * 1e6);
    }
    let ours = median(&mut ours);
    report(
        "hand-off / delete + watch event",
        ours,
        median(&mut theirs),
        "at most 1.1",
    );
    report(
        "hand-off / etcd's own Lock + Unlock",
        ours,
        median(&mut own_rpc),
        "below 1",
    );
}

/// Fifty tasks of four clients, each with its own place in the store's queue; then the same with etcd's own.
async fn crowd(server: &EtcdServer) {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push((locks(server).await, raw(server).await));
    }
    let start = Instant::now();
    let mut tasks = Vec::new();
    for task in 0..CROWD {
        let mutex = clients[task % 4].0.mutex("crowd").unwrap();
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.unwrap();
                let _ = guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks.drain(..) {
        task.await.unwrap();
    }
    let hand_off = micros(start) / (CROWD * ROUNDS) as f64;
    let start = Instant::now();
    for task in 0..CROWD {
        let mut raw = clients[task % 4].1.clone();
        tasks.push(tokio::spawn(async move {
            let lease = raw.lease_grant(600, None).await.unwrap().id();
            for _ in 0..ROUNDS {
                let options = LockOptions::new().with_lease(lease);
                let held = raw.lock("own-crowd", Some(options)).await.unwrap();
                raw.unlock(held.key()).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let own_rpc = micros(start) / (CROWD * ROUNDS) as f64;
    report(
        &format!("hand-off among {CROWD} / etcd's own Lock + Unlock"),
        hand_off,
        own_rpc,
        "below 1",
    );
    println!(
        "{:<52}{:>10.0}{:>10.0}",
        format!("hand-offs per second among {CROWD}"),
        1e6 / hand_off,
        1e6 / own_rpc
    );
}
