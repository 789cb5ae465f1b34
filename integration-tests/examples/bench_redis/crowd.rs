//! One lock that many want.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Locks, Order, Settings};
use dlock_redis::{Config, Style};
use integration_tests::RedisServer;

use crate::{ROUNDS, calls, calls_inside, connection, locks, percentile};

const WORKERS: u64 = 50;
/// Short rounds by turns, so that a moment at which the machine stands still is seen as what it is.
const ROUND: Duration = Duration::from_secs(1);

/// What one round of a crowd came to.
struct Round {
    hand_offs_per_second: f64,
    requests_each: f64,
    /// Commands that the scripts called.
    inside_each: f64,
    mean: Duration,
    /// The longest single wait, and the mean of the worker that waited longest, as parts of the mean.
    longest: f64,
    slowest: f64,
}

/// Counts the waits of a crowd, and how often the lock goes to another worker.
#[derive(Default)]
struct Count {
    last: AtomicU64,
    handed: AtomicU64,
}

impl Count {
    fn got(&self, worker: u64) {
        // 0 is nobody.
        if self.last.swap(worker + 1, Ordering::Relaxed) != worker + 1 {
            self.handed.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn round(&self, server: &RedisServer, time: Duration, waits: Vec<Vec<u64>>) -> Round {
        let handed = self.handed.load(Ordering::Relaxed) as f64;
        // The first wait of each began before the start.
        let waits = waits.into_iter().map(|own| own[1..].to_vec());
        let waits: Vec<Vec<u64>> = waits.collect();
        let mean_of = |own: &[u64]| own.iter().sum::<u64>() as f64 / own.len().max(1) as f64;
        let all = waits.concat();
        let mean = mean_of(&all);
        let slowest = waits.iter().map(|own| mean_of(own)).fold(0.0, f64::max);
        Round {
            hand_offs_per_second: handed / time.as_secs_f64(),
            requests_each: calls(server, "evalsha").await / handed,
            inside_each: calls_inside(server).await / handed,
            mean: Duration::from_nanos((mean * 1e3) as u64),
            longest: all.iter().max().copied().unwrap_or(0) as f64 / mean,
            slowest: slowest / mean,
        }
    }
}

/// 50 workers on one lock, by turns with the least that a queue in Redis can cost.
pub(crate) async fn crowd(server: &RedisServer) {
    let url = server.url();
    let mut rounds: [Vec<Round>; 4] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(raw_crowd(server).await);
        for (n, style, shared) in [
            (1, Style::Fair, false),
            (2, Style::Fair, true),
            (3, Style::Barging, false),
        ] {
            let make = async || {
                let config = Config::from_url(&url).unwrap().style(style);
                Locks::new(config.connect().await.unwrap()).unwrap()
            };
            rounds[n].push(crowd_of(server, make, shared).await);
        }
    }
    for (what, rounds) in [
        "50 connections, a list and messages by raw scripts",
        "50 workers, a client each, fair",
        "50 workers of one client, fair",
        "50 workers, a client each, barging",
    ]
    .into_iter()
    .zip(rounds)
    {
        let of = |which: fn(&Round) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(which).collect();
            all.sort_by(f64::total_cmp);
            (all[ROUNDS / 2], all[0], all[ROUNDS - 1])
        };
        let (rate, least, most) = of(|round| round.hand_offs_per_second);
        let (longest, shortest, worst) = of(|round| round.longest);
        println!(
            "{what:<58}{rate:>8.0} hand-offs/s ({least:.0} to {most:.0})  longest wait {longest:.2}x mean ({shortest:.2} to {worst:.2}), \
             mean {:.1} ms, of the slowest worker {:.2}x  {:.2} requests and {:.1} commands inside them each",
            of(|round| round.mean.as_secs_f64() * 1e3).0,
            of(|round| round.slowest).0,
            of(|round| round.requests_each).0,
            of(|round| round.inside_each).0,
        );
    }
    println!(
        "{:<58}   fair: >= 3000 hand-offs/s, longest wait <= 2x mean; median of {ROUNDS} rounds by turns (least to most)",
        "  wanted"
    );
}

async fn crowd_of(server: &RedisServer, make: impl AsyncFn() -> Locks, shared: bool) -> Round {
    let first = make().await;
    let holder = first.mutex("bench:crowd").unwrap().lock().await.unwrap();
    let count = Arc::<Count>::default();
    let (go, end) = tokio::sync::watch::channel(None::<Instant>);
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let locks = if shared { first.clone() } else { make().await };
        let (count, end) = (count.clone(), end.clone());
        workers.push(tokio::spawn(async move {
            let mutex = locks.mutex("bench:crowd").unwrap();
            let mut waits = Vec::new();
            while end.borrow().is_none_or(|end| Instant::now() < end) {
                let start = Instant::now();
                let guard = mutex.lock().await.unwrap();
                waits.push(start.elapsed().as_micros() as u64);
                count.got(worker);
                let _ = guard.release().await.unwrap();
            }
            waits
        }));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let start = Instant::now();
    go.send_replace(Some(start + ROUND));
    let _ = holder.release().await.unwrap();
    let mut waits = Vec::new();
    for worker in workers {
        waits.push(worker.await.unwrap());
    }
    count.round(server, start.elapsed(), waits).await
}

/// The same with nothing but a list of those who wait and a message to the next: no lease, no token, nobody is ever lost.
async fn raw_crowd(server: &RedisServer) -> Round {
    const WAIT: &str = "return redis.call('RPUSH', KEYS[1], ARGV[1])";
    const PASS: &str =
        "local next = redis.call('LPOP', KEYS[1]) if next then redis.call('PUBLISH', next, '') end";
    let url = server.url();
    let mut first = connection(&url, None).await;
    let mut load = async |script| -> String {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(script);
        command.query_async(&mut first).await.unwrap()
    };
    let hashes = Arc::new([load(WAIT).await, load(PASS).await]);
    let count = Arc::<Count>::default();
    let (go, end) = tokio::sync::watch::channel(None::<Instant>);
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let push = move |info: redis::PushInfo| {
            if info.kind == redis::PushKind::Message {
                let _ = tell.send(());
            }
        };
        let mut connection = connection(&url, Some(Box::new(push))).await;
        let channel = format!("raw:crowd:{worker}");
        connection.subscribe(&channel).await.unwrap();
        let (count, end, hashes) = (count.clone(), end.clone(), hashes.clone());
        workers.push(tokio::spawn(async move {
            let mut waits = Vec::new();
            let mut run = async |hash: &str| {
                let mut command = redis::cmd("EVALSHA");
                command.arg(hash).arg(1).arg("raw:crowd").arg(&channel);
                let _: redis::Value = command.query_async(&mut connection).await.unwrap();
            };
            while end.borrow().is_none_or(|end| Instant::now() < end) {
                let start = Instant::now();
                run(&hashes[0]).await;
                told.recv().await.unwrap();
                waits.push(start.elapsed().as_micros() as u64);
                count.got(worker);
                run(&hashes[1]).await;
            }
            waits
        }));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let start = Instant::now();
    go.send_replace(Some(start + ROUND));
    let mut pass = redis::cmd("EVALSHA");
    pass.arg(&hashes[1]).arg(1).arg("raw:crowd");
    let _: redis::Value = pass.query_async(&mut first).await.unwrap();
    let mut waits = Vec::new();
    for worker in workers {
        waits.push(worker.await.unwrap());
    }
    count.round(server, start.elapsed(), waits).await
}

/// 1000 waiters in the store's queue: how many wake for each release?
pub(crate) async fn thousand(server: &RedisServer) {
    const CLIENTS: usize = 10;
    const EACH: usize = 100;
    let url = server.url();
    let first = locks(&url).await;
    let holder = first.mutex("bench:thousand").unwrap().lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..CLIENTS {
        let backend = Config::from_url(&url)
            .unwrap()
            .waiter_lease(Duration::from_secs(60))
            .connect()
            .await
            .unwrap();
        let settings = Settings::new().order(Order::Strict);
        let locks = Locks::builder(Arc::new(backend))
            .settings(settings)
            .build()
            .unwrap();
        for _ in 0..EACH {
            let mutex = locks.mutex("bench:thousand").unwrap();
            waiters.push(tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                let _ = guard.release().await.unwrap();
            }));
        }
    }
    while first.inspect("bench:thousand").await.unwrap().waiters.len() < CLIENTS * EACH {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let start = Instant::now();
    let _ = holder.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let time = start.elapsed();
    let releases = (CLIENTS * EACH) as f64;
    println!(
        "{:<58}{:>12.2}{:>28}  {:.0} µs each, {:.2} requests each",
        "1000 waiters: wake-ups per release",
        calls(server, "publish").await / releases,
        "  = 1",
        time.as_micros() as f64 / releases,
        calls(server, "evalsha").await / releases,
    );
}

/// The same by rslock, which has no queue, with its own pauses and as many tries as it takes.
pub(crate) async fn crowd_of_rslock(server: &RedisServer) {
    let last = Arc::new(AtomicU64::new(u64::MAX));
    let handed = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let end = start + Duration::from_secs(3);
    let workers = (0..50_u64).map(|worker| {
        let manager = rslock::LockManager::new(vec![server.url()]);
        let (last, handed) = (last.clone(), handed.clone());
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while Instant::now() < end {
                let start = Instant::now();
                let Ok(lock) = manager.lock("rslock:crowd", Duration::from_secs(30)).await else {
                    continue;
                };
                waits.push(start.elapsed().as_micros() as u64);
                if last.swap(worker, Ordering::Relaxed) != worker {
                    handed.fetch_add(1, Ordering::Relaxed);
                }
                manager.unlock(&lock).await;
            }
            waits
        })
    });
    let workers: Vec<_> = workers.collect();
    let mut waits = Vec::new();
    for worker in workers {
        waits.extend(worker.await.unwrap());
    }
    let handed = handed.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
    println!(
        "{:<58}{handed:>8.0} hand-offs/s            wait mean {:.1} ms, longest that got it {:.0} ms",
        "50 workers of rslock",
        mean / 1e3,
        percentile(&mut waits, 1.0) / 1e3,
    );
}
