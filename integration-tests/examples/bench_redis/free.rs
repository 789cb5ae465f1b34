//! Locks that nobody else wants.

use std::time::{Duration, Instant};

use integration_tests::RedisServer;

use crate::{Raw, calls, locks, percentile, report};

/// One lock, nobody else: acquire and release.
pub(crate) async fn cycle(url: &str) {
    let mut raw = Raw::new(url).await;
    let locks = locks(url).await;
    let mutex = locks.mutex("bench:one").unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..40 {
        for _ in 0..200 {
            let start = Instant::now();
            raw.cycle("raw:one").await;
            let after = Instant::now();
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
            if round > 0 {
                theirs.push((after - start).as_nanos() as u64);
                ours.push(after.elapsed().as_nanos() as u64);
            }
        }
    }
    for (what, p) in [
        ("uncontended cycle, p50", 0.5),
        ("uncontended cycle, p99", 0.99),
    ] {
        let (a, b) = (
            percentile(&mut ours, p) / 1e3,
            percentile(&mut theirs, p) / 1e3,
        );
        report(
            what,
            a,
            b,
            "µs",
            a / b,
            if p == 0.5 { "<= 1.2" } else { "" },
        );
    }
}

/// What a process has used of the processors so far, in microseconds.
fn processor_time(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|n| n.parse::<f64>().unwrap()).sum::<f64>() * 10_000.0
}

/// 64 tasks with 16 names each, so that none waits for another.
pub(crate) async fn throughput(server: &RedisServer) {
    let url = &server.url();
    const TASKS: u64 = 64;
    const CYCLES: u64 = 250;
    let raw = Raw::new(url).await;
    let locks = locks(url).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut work = [0.0; 4];
    for round in 0..7 {
        let before = (
            processor_time("self"),
            processor_time(&server.pid().to_string()),
        );
        let start = Instant::now();
        let tasks = (0..TASKS).map(|task| {
            let mut raw = raw.clone();
            tokio::spawn(async move {
                for n in 0..CYCLES {
                    raw.cycle(&format!("raw:{}:{}", task, (n * 31) % 16)).await;
                }
            })
        });
        futures::future::join_all(tasks.collect::<Vec<_>>()).await;
        let raw_time = start.elapsed();
        let between = (
            processor_time("self"),
            processor_time(&server.pid().to_string()),
        );
        let start = Instant::now();
        let tasks = (0..TASKS).map(|task| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for n in 0..CYCLES {
                    let mutex = locks
                        .mutex(format!("bench:{}:{}", task, (n * 31) % 16))
                        .unwrap();
                    let _ = mutex.lock().await.unwrap().release().await.unwrap();
                }
            })
        });
        futures::future::join_all(tasks.collect::<Vec<_>>()).await;
        if round > 0 {
            let rate = |time: Duration| ((TASKS * CYCLES) as f64 / time.as_secs_f64()) as u64;
            ours.push(rate(start.elapsed()));
            theirs.push(rate(raw_time));
            let after = (
                processor_time("self"),
                processor_time(&server.pid().to_string()),
            );
            let spent = [
                after.0 - between.0,
                after.1 - between.1,
                between.0 - before.0,
                between.1 - before.1,
            ];
            for (sum, more) in work.iter_mut().zip(spent) {
                *sum += more / (6 * TASKS * CYCLES) as f64;
            }
        }
    }
    let (a, b) = (percentile(&mut ours, 0.5), percentile(&mut theirs, 0.5));
    report(
        "64 tasks on 1024 names, cycles/s",
        a,
        b,
        "",
        a / b,
        ">= 0.70",
    );
    for (who, a, b) in [("client", work[0], work[2]), ("server", work[1], work[3])] {
        report(
            &format!("  processor time of the {who} per cycle"),
            a,
            b,
            "µs",
            a / b,
            "",
        );
    }
}

pub(crate) async fn requests(server: &RedisServer) {
    let locks = locks(&server.url()).await;
    let mutex = locks.mutex("bench:count").unwrap();
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    for _ in 0..1000 {
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
    }
    let count = (calls(server, "evalsha").await + calls(server, "eval").await) / 1000.0;
    println!(
        "{:<58}{count:>12.2}{:>28}",
        "requests per uncontended cycle", "  = 2"
    );
    let stats = server
        .command(&["INFO", "commandstats"])
        .await
        .unwrap()
        .text()
        .unwrap_or_default();
    if let Some(line) = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
    {
        println!("{:<58}{line}", "  at the server");
    }
}
