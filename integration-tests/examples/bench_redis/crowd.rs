//! One lock that many want.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Locks, Order, Settings};
use dlock_redis::{Config, Style};
use integration_tests::RedisServer;

use crate::{calls, locks, percentile};

/// 50 workers on one lock.
pub(crate) async fn crowd(server: &RedisServer) {
    let url = server.url();
    for (what, style, shared) in [
        ("50 workers, a client each, fair", Style::Fair, false),
        ("50 workers of one client, fair", Style::Fair, true),
        ("50 workers, a client each, barging", Style::Barging, false),
    ] {
        let make = async || {
            let backend = Config::from_url(&url)
                .unwrap()
                .style(style)
                .connect()
                .await
                .unwrap();
            Locks::new(Arc::new(backend)).unwrap()
        };
        let first = make().await;
        let holder = first.mutex("bench:crowd").unwrap().lock().await.unwrap();
        let last = Arc::new(AtomicU64::new(u64::MAX));
        let handed = Arc::new(AtomicU64::new(0));
        let end = Instant::now() + Duration::from_secs(3);
        let mut workers = Vec::new();
        for worker in 0..50_u64 {
            let locks = if shared { first.clone() } else { make().await };
            let (last, handed) = (last.clone(), handed.clone());
            workers.push(tokio::spawn(async move {
                let mutex = locks.mutex("bench:crowd").unwrap();
                let mut waits = Vec::new();
                while Instant::now() < end {
                    let start = Instant::now();
                    let guard = mutex.lock().await.unwrap();
                    waits.push(start.elapsed().as_micros() as u64);
                    if last.swap(worker, Ordering::Relaxed) != worker {
                        handed.fetch_add(1, Ordering::Relaxed);
                    }
                    let _ = guard.release().await.unwrap();
                }
                waits
            }));
        }
        let start = Instant::now();
        server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
        let _ = holder.release().await.unwrap();
        let mut waits = Vec::new();
        let mut counts = Vec::new();
        let mut slowest = 0.0_f64;
        for worker in workers {
            let own = worker.await.unwrap();
            counts.push(own.len());
            // The first wait began before the start.
            let own: Vec<u64> = own.into_iter().skip(1).collect();
            slowest = slowest.max(own.iter().sum::<u64>() as f64 / own.len() as f64);
            waits.extend(own);
        }
        let time = start.elapsed().as_secs_f64();
        let handed = handed.load(Ordering::Relaxed) as f64;
        let evals = calls(server, "evalsha").await / handed;
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
        let (p99, max) = (percentile(&mut waits, 0.99), percentile(&mut waits, 1.0));
        println!(
            "{what:<58}{:>8.0} hand-offs/s (>= 3000)  {evals:.2} requests each  wait mean {:.1} ms, p99 {:.2}x, max {:.2}x (<= 2x), mean of the slowest worker {:.2}x  cycles of a worker {}..{}",
            handed / time,
            mean / 1e3,
            p99 / mean,
            max / mean,
            slowest / mean,
            counts.iter().min().unwrap(),
            counts.iter().max().unwrap(),
        );
    }
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
