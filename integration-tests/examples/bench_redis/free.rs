//! Locks that nobody else wants.

use std::time::{Duration, Instant};

use integration_tests::RedisServer;

use crate::{Pair, ROUNDS, Raw, calls, calls_inside, compare, locks, percentile};

/// One lock, nobody else: acquire and release, by turns with the raw pair.
pub(crate) async fn cycle(url: &str) {
    let mut raw = Raw::new(url).await;
    let locks = locks(url).await;
    let mutex = locks.mutex("bench:one").unwrap();
    let (mut half, mut most) = (Vec::new(), Vec::new());
    // The first one is for warming up.
    for round in 0..=ROUNDS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..1600 {
            let start = Instant::now();
            raw.cycle("raw:one").await;
            let after = Instant::now();
            let _ = mutex.lock().await.unwrap().release().await.unwrap();
            theirs.push((after - start).as_nanos() as u64);
            ours.push(after.elapsed().as_nanos() as u64);
        }
        if round > 0 {
            for (p, into) in [(0.5, &mut half), (0.99, &mut most)] {
                into.push(Pair {
                    ours: percentile(&mut ours, p) / 1e3,
                    theirs: percentile(&mut theirs, p) / 1e3,
                });
            }
        }
    }
    compare("uncontended cycle, p50", &half, "µs", "<= 1.15");
    compare("uncontended cycle, p99", &most, "µs", "");
}

/// What a process has used of the processors so far, in microseconds.
fn processor_time(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|n| n.parse::<f64>().unwrap()).sum::<f64>() * 10_000.0
}

const TASKS: u64 = 64;
const CYCLES: u64 = 250;

/// What one way of locking came to: cycles per second, and the processor time of the client and the server for each, in microseconds.
struct Rate {
    per_second: f64,
    client: f64,
    server: f64,
}

/// 64 tasks with 16 names each, so that none waits for another.
async fn crowd<F: Future<Output = ()> + Send + 'static>(
    server: &RedisServer,
    task: impl Fn(u64) -> F,
) -> Rate {
    let pid = server.pid().to_string();
    let (client, at_server) = (processor_time("self"), processor_time(&pid));
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS).map(|n| tokio::spawn(task(n))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let cycles = (TASKS * CYCLES) as f64;
    Rate {
        per_second: cycles / start.elapsed().as_secs_f64(),
        client: (processor_time("self") - client) / cycles,
        server: (processor_time(&pid) - at_server) / cycles,
    }
}

fn name(who: &str, task: u64, n: u64) -> String {
    format!("{who}:{task}:{}", (n * 31) % 16)
}

/// The crowd by turns with raw pairs and with rslock.
pub(crate) async fn throughput(server: &RedisServer) {
    let url = &server.url();
    let raw = Raw::new(url).await;
    let locks = locks(url).await;
    let peer = rslock::LockManager::new(vec![url.clone()]);
    let mut all: [Vec<Rate>; 3] = Default::default();
    for round in 0..=ROUNDS {
        let rates = [
            crowd(server, |task| {
                let locks = locks.clone();
                async move {
                    for n in 0..CYCLES {
                        let mutex = locks.mutex(name("bench", task, n)).unwrap();
                        let _ = mutex.lock().await.unwrap().release().await.unwrap();
                    }
                }
            })
            .await,
            crowd(server, |task| {
                let mut raw = raw.clone();
                async move {
                    for n in 0..CYCLES {
                        raw.cycle(&name("raw", task, n)).await;
                    }
                }
            })
            .await,
            crowd(server, |task| {
                let peer = peer.clone();
                async move {
                    for n in 0..CYCLES {
                        let lease = Duration::from_secs(30);
                        let lock = peer
                            .lock(name("rslock", task, n).as_str(), lease)
                            .await
                            .unwrap();
                        peer.unlock(&lock).await;
                    }
                }
            })
            .await,
        ];
        if round > 0 {
            for (all, rate) in all.iter_mut().zip(rates) {
                all.push(rate);
            }
        }
    }
    let [ours, raw, peer] = &all;
    let pairs = |theirs: &[Rate], which: fn(&Rate) -> f64| {
        let both = ours.iter().zip(theirs);
        let pair = |(ours, theirs)| Pair {
            ours: which(ours),
            theirs: which(theirs),
        };
        both.map(pair).collect::<Vec<_>>()
    };
    let rate = |rate: &Rate| rate.per_second;
    let what = "64 tasks on 1024 names, cycles/s";
    compare(what, &pairs(raw, rate), "", ">= 0.95");
    compare("  beside rslock", &pairs(peer, rate), "", ">= 1");
    compare(
        "  processor time of the client per cycle",
        &pairs(raw, |rate| rate.client),
        "µs",
        "",
    );
    compare(
        "  processor time of the server per cycle",
        &pairs(raw, |rate| rate.server),
        "µs",
        "",
    );
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
        "{:<58}{count:>12.2}{:>28}  {:.2} commands inside them",
        "requests per uncontended cycle",
        "  = 2",
        calls_inside(server).await / 1000.0,
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
