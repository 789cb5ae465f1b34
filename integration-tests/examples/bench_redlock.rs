//! What a lock on five nodes costs: as a ratio against five raw pairs of commands in parallel, and side by side with `rslock`.
//!
//! `cargo run --release -p integration-tests --example bench_redlock`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark prints, and ends where its expectation breaks"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::Locks;
use dlock_redlock::Config;
use integration_tests::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, Value};
use rslock::LockManager;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const LEASE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    let servers = (0..5).map(|_| RedisServer::start());
    let servers = futures::future::try_join_all(servers)
        .await
        .expect("five servers");
    println!(
        "{:<44}{:>12}{:>12}{:>12}{:>9}",
        "", "dlock", "raw", "rslock", "ratio"
    );
    cycle(&servers).await;
    requests(&servers).await;
    for (what, shared) in [
        ("50 workers, a client each", false),
        ("50 workers of one client", true),
    ] {
        crowd(&servers, what, shared).await;
    }
    crowd_of_rslock(&servers).await;
    hand_off(&servers).await;
    many_names(&servers).await;
}

/// The middle of several rounds, and how far they are apart.
fn spread(mut rounds: Vec<f64>) -> String {
    rounds.sort_by(f64::total_cmp);
    let (first, last) = (rounds[0], rounds[rounds.len() - 1]);
    format!("{:.1} ({first:.1} to {last:.1})", rounds[rounds.len() / 2])
}

/// One holder and one waiter, each with a client of its own: from the release to the waiter's guard.
async fn hand_off(servers: &[RedisServer]) {
    let (one, two) = (locks(servers).await, locks(servers).await);
    let (one, two) = (
        one.mutex("bench:hand-off").unwrap(),
        two.mutex("bench:hand-off").unwrap(),
    );
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let mut times = Vec::new();
        for _ in 0..100 {
            let guard = one.lock().await.unwrap();
            let waiter = two.clone();
            let waits = tokio::spawn(async move {
                let guard = waiter.lock().await.unwrap();
                (guard, Instant::now())
            });
            tokio::time::sleep(Duration::from_millis(5)).await;
            let start = Instant::now();
            let (_, handed) = tokio::join!(guard.release(), waits);
            let (guard, held) = handed.unwrap();
            times.push((held - start).as_nanos() as u64);
            let _ = guard.release().await.unwrap();
        }
        rounds.push(percentile(&mut times, 0.5) / 1e3);
    }
    println!(
        "hand-off to one waiter, p50 of five rounds: {} ms",
        spread(rounds)
    );
}

/// 64 tasks of one client, each on one of 1,000 names at a time, in rounds that alternate with rslock.
async fn many_names(servers: &[RedisServer]) {
    let (ours, theirs) = (locks(servers).await, Arc::new(rslock(servers)));
    let mut rates: [Vec<f64>; 2] = Default::default();
    for round in 0..10 {
        let start = Instant::now();
        let tasks: Vec<_> = (0..64_usize)
            .map(|task| {
                let (ours, theirs) = (ours.clone(), theirs.clone());
                tokio::spawn(async move {
                    let mut done = 0;
                    while start.elapsed() < Duration::from_secs(1) {
                        // Nobody else has this name now.
                        let name = format!("bench:{}", (done * 64 + task) % 960);
                        if round % 2 == 0 {
                            let guard = ours.mutex(&name).unwrap().lock().await.unwrap();
                            let _ = guard.release().await.unwrap();
                        } else {
                            let lock = theirs.lock(name.as_str(), LEASE).await.unwrap();
                            theirs.unlock(&lock).await;
                        }
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let done: usize = futures::future::join_all(tasks)
            .await
            .into_iter()
            .map(|done| done.unwrap())
            .sum();
        rates[round % 2].push(done as f64 / start.elapsed().as_secs_f64());
    }
    let [ours, theirs] = rates;
    println!(
        "64 tasks on 1,000 names, pairs/s of five rounds: {}, rslock {}",
        spread(ours),
        spread(theirs)
    );
}

async fn locks(servers: &[RedisServer]) -> Locks {
    let urls = servers.iter().map(RedisServer::url);
    let config = Config::from_urls(urls).unwrap().persistent(true);
    Locks::new(config.connect().await.unwrap()).unwrap()
}

fn rslock(servers: &[RedisServer]) -> LockManager {
    LockManager::new(servers.iter().map(RedisServer::url).collect())
}

fn percentile(times: &mut [u64], p: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * p).round() as usize] as f64 / 1e3
}

/// The convention everybody knows, at five servers at once.
struct Raw {
    connections: Vec<(MultiplexedConnection, String)>,
}

impl Raw {
    async fn new(servers: &[RedisServer]) -> Self {
        let mut connections = Vec::new();
        for server in servers {
            let info = server.url().as_str().into_connection_info().unwrap();
            let login = info
                .redis_settings()
                .clone()
                .set_protocol(ProtocolVersion::RESP3);
            let info = info
                .set_tcp_settings(TcpSettings::default().set_nodelay(true))
                .set_redis_settings(login);
            let settings = AsyncConnectionConfig::new().set_response_timeout(None);
            let client = redis::Client::open(info).unwrap();
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&settings)
                .await
                .unwrap();
            let load = redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(COMPARE_AND_DELETE)
                .clone();
            let hash: String = load.query_async(&mut connection).await.unwrap();
            connections.push((connection, hash));
        }
        Self { connections }
    }

    async fn cycle(&mut self, name: &str) {
        let owner = dlock_core::backend::AttemptId::new().to_string();
        let takes = self.connections.iter_mut().map(|(connection, _)| {
            let mut take = redis::cmd("SET");
            take.arg(name).arg(&owner).arg("NX").arg("PX").arg(30_000);
            async move { take.query_async::<Value>(connection).await.unwrap() }
        });
        assert!(
            futures::future::join_all(takes)
                .await
                .iter()
                .all(|taken| *taken == Value::Okay)
        );
        let frees = self.connections.iter_mut().map(|(connection, hash)| {
            let mut free = redis::cmd("EVALSHA");
            free.arg(&*hash).arg(1).arg(name).arg(&owner);
            async move { free.query_async::<i64>(connection).await.unwrap() }
        });
        assert!(
            futures::future::join_all(frees)
                .await
                .iter()
                .all(|freed| *freed == 1)
        );
    }
}

/// One lock, nobody else: acquire and release.
async fn cycle(servers: &[RedisServer]) {
    let mut raw = Raw::new(servers).await;
    let locks = locks(servers).await;
    let theirs = rslock(servers);
    let mutex = locks.mutex("bench:one").unwrap();
    let mut times: [Vec<u64>; 3] = Default::default();
    for round in 0..30 {
        for _ in 0..100 {
            let start = Instant::now();
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
            let ours = start.elapsed();
            let start = Instant::now();
            raw.cycle("raw:one").await;
            let bare = start.elapsed();
            let start = Instant::now();
            let lock = theirs.lock("rslock:one", LEASE).await.unwrap();
            theirs.unlock(&lock).await;
            let other = start.elapsed();
            if round > 0 {
                for (times, time) in times.iter_mut().zip([ours, bare, other]) {
                    times.push(time.as_nanos() as u64);
                }
            }
        }
    }
    for (what, p, wanted) in [
        ("uncontended cycle, p50", 0.5, "<= 1.3"),
        ("uncontended cycle, p99", 0.99, ""),
    ] {
        let [ours, raw, other] = [0, 1, 2].map(|n: usize| percentile(&mut times[n], p));
        println!(
            "{what:<44}{:>12}{:>12}{:>12}{:>9.2}  {wanted}",
            format!("{ours:.0} µs"),
            format!("{raw:.0} µs"),
            format!("{other:.0} µs"),
            ours / raw
        );
    }
}

/// Requests that the servers have served since their statistics were reset, all five together.
async fn served(servers: &[RedisServer]) -> f64 {
    let mut sum = 0.0;
    for server in servers {
        let stats = server
            .command(&["INFO", "commandstats"])
            .await
            .unwrap()
            .text()
            .unwrap_or_default();
        for command in ["evalsha", "eval"] {
            let start = format!("cmdstat_{command}:calls=");
            let calls = stats.lines().find_map(|line| {
                line.strip_prefix(&start)?
                    .split(',')
                    .next()?
                    .parse::<f64>()
                    .ok()
            });
            sum += calls.unwrap_or(0.0);
        }
    }
    sum
}

async fn reset(servers: &[RedisServer]) {
    for server in servers {
        server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    }
}

async fn requests(servers: &[RedisServer]) {
    let locks = locks(servers).await;
    let mutex = locks.mutex("bench:count").unwrap();
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    reset(servers).await;
    for _ in 0..1000 {
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let count = served(servers).await / 1000.0;
    println!(
        "{:<44}{count:>12.2}{:>33}",
        "requests per uncontended cycle, all nodes", "= 10"
    );
}

fn report(
    what: &str,
    start: Instant,
    handed: f64,
    waits: &mut [u64],
    counts: &[usize],
    requests: Option<f64>,
) {
    let time = start.elapsed().as_secs_f64();
    let (p50, p99, max) = (
        percentile(waits, 0.5),
        percentile(waits, 0.99),
        percentile(waits, 1.0),
    );
    println!(
        "{what:<44}{:>6.0} holds/s {:>6.0} hand-offs/s  wait p50 {:.1} ms, p99 {:.0} ms, max {:.0} ms  holds of a worker {}..{}{}",
        waits.len() as f64 / time,
        handed / time,
        p50 / 1e3,
        p99 / 1e3,
        max / 1e3,
        counts.iter().min().unwrap(),
        counts.iter().max().unwrap(),
        requests
            .map(|requests| format!("  {:.0} requests per hold", requests / waits.len() as f64))
            .unwrap_or_default(),
    );
}

/// 50 workers on one lock.
async fn crowd(servers: &[RedisServer], what: &str, shared: bool) {
    let first = locks(servers).await;
    let (last, handed) = (
        Arc::new(AtomicU64::new(u64::MAX)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(if shared {
            first.clone()
        } else {
            locks(servers).await
        });
    }
    reset(servers).await;
    let start = Instant::now();
    let workers: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(worker, locks)| {
            let (last, handed) = (last.clone(), handed.clone());
            tokio::spawn(async move {
                let mutex = locks.mutex("bench:crowd").unwrap();
                let mut waits = Vec::new();
                while start.elapsed() < Duration::from_secs(4) {
                    let asked = Instant::now();
                    let guard = mutex.lock().await.unwrap();
                    waits.push(asked.elapsed().as_nanos() as u64);
                    if last.swap(worker as u64, Ordering::Relaxed) != worker as u64 {
                        handed.fetch_add(1, Ordering::Relaxed);
                    }
                    let _ = guard.release().await.unwrap();
                }
                waits
            })
        })
        .collect();
    let (mut waits, mut counts) = (Vec::new(), Vec::new());
    for worker in workers {
        let own = worker.await.unwrap();
        counts.push(own.len());
        waits.extend(own);
    }
    let requests = served(servers).await;
    report(
        what,
        start,
        handed.load(Ordering::Relaxed) as f64,
        &mut waits,
        &counts,
        Some(requests),
    );
}

/// The same by rslock, with its own pauses and as many tries as it takes.
async fn crowd_of_rslock(servers: &[RedisServer]) {
    let (last, handed) = (
        Arc::new(AtomicU64::new(u64::MAX)),
        Arc::new(AtomicU64::new(0)),
    );
    let start = Instant::now();
    let workers: Vec<_> = (0..50_u64)
        .map(|worker| {
            let manager = rslock(servers);
            let (last, handed) = (last.clone(), handed.clone());
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while start.elapsed() < Duration::from_secs(4) {
                    let asked = Instant::now();
                    let lock = loop {
                        if let Ok(lock) = manager.lock("rslock:crowd", LEASE).await {
                            break Some(lock);
                        }
                        if start.elapsed() > Duration::from_secs(6) {
                            break None;
                        }
                    };
                    let Some(lock) = lock else { break };
                    waits.push(asked.elapsed().as_nanos() as u64);
                    if last.swap(worker, Ordering::Relaxed) != worker {
                        handed.fetch_add(1, Ordering::Relaxed);
                    }
                    manager.unlock(&lock).await;
                }
                waits
            })
        })
        .collect();
    let (mut waits, mut counts) = (Vec::new(), Vec::new());
    for worker in workers {
        let own = worker.await.unwrap();
        counts.push(own.len());
        waits.extend(own);
    }
    if waits.is_empty() {
        waits.push(0);
    }
    report(
        "50 workers of rslock",
        start,
        handed.load(Ordering::Relaxed) as f64,
        &mut waits,
        &counts,
        None,
    );
}
