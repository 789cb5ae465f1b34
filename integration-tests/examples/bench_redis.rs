//! What a Redis lock costs, as ratios against raw commands through the same client in the same run.
//!
//! `cargo run --release -p integration-tests --example bench_redis`
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

use dlock_core::{Clock, Locks, Order, Settings, SystemClock};
use dlock_redis::{Config, Style};
use integration_tests::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, Value,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("hand-off") => return hand_off_child(&args[2]).await,
        Some("listen") => return listen_child(&args[2]).await,
        _ => {}
    }
    let server = RedisServer::start().await.expect("redis");
    let url = server.url();
    println!(
        "{:<58}{:>12}{:>12}{:>8}  wanted",
        "", "dlock", "raw", "ratio"
    );
    cycle(&url).await;
    throughput(&server).await;
    requests(&server).await;
    hand_off(&server).await;
    crowd(&server).await;
    thousand(&server).await;
}

fn report(what: &str, ours: f64, raw: f64, unit: &str, ratio: f64, wanted: &str) {
    println!(
        "{what:<58}{:>12}{:>12}{ratio:>8.2}  {wanted}",
        format!("{ours:.0} {unit}"),
        format!("{raw:.0} {unit}")
    );
}

fn percentile(times: &mut [u64], p: f64) -> f64 {
    times.sort_unstable();
    let at = ((times.len() - 1) as f64 * p).round() as usize;
    times[at] as f64
}

async fn connection(
    url: &str,
    push: Option<Box<dyn Fn(PushInfo) + Send + Sync>>,
) -> MultiplexedConnection {
    let info = url.into_connection_info().unwrap();
    let login = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let info = info
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_redis_settings(login);
    let mut config = AsyncConnectionConfig::new().set_response_timeout(None);
    if let Some(push) = push {
        config = config.set_push_sender(move |info: PushInfo| {
            push(info);
            Ok::<(), std::convert::Infallible>(())
        });
    }
    redis::Client::open(info)
        .unwrap()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

async fn locks(url: &str) -> Locks {
    Locks::new(Arc::new(
        Config::from_url(url).unwrap().connect().await.unwrap(),
    ))
    .unwrap()
}

/// The convention everybody knows, with a new owner for each attempt.
#[derive(Clone)]
struct Raw {
    connection: MultiplexedConnection,
    hash: String,
}

impl Raw {
    async fn new(url: &str) -> Self {
        let mut connection = connection(url, None).await;
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(COMPARE_AND_DELETE)
            .query_async(&mut connection)
            .await
            .unwrap();
        Self { connection, hash }
    }

    async fn cycle(&mut self, name: &str) {
        let owner = dlock_core::AttemptId::new().to_string();
        let taken: Value = redis::cmd("SET")
            .arg(name)
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(30_000)
            .query_async(&mut self.connection)
            .await
            .unwrap();
        assert_eq!(taken, Value::Okay);
        let freed: i64 = redis::cmd("EVALSHA")
            .arg(&self.hash)
            .arg(1)
            .arg(name)
            .arg(&owner)
            .query_async(&mut self.connection)
            .await
            .unwrap();
        assert_eq!(freed, 1);
    }

    async fn script(&mut self) {
        let _: i64 = redis::cmd("EVALSHA")
            .arg(&self.hash)
            .arg(1)
            .arg("nothing")
            .arg("x")
            .query_async(&mut self.connection)
            .await
            .unwrap();
    }
}

/// One lock, nobody else: acquire and release.
async fn cycle(url: &str) {
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
async fn throughput(server: &RedisServer) {
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

async fn calls(server: &RedisServer, command: &str) -> f64 {
    let stats = server
        .command(&["INFO", "commandstats"])
        .await
        .unwrap()
        .text()
        .unwrap_or_default();
    let start = format!("cmdstat_{command}:calls=");
    stats
        .lines()
        .find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
        .unwrap_or(0.0)
}

async fn requests(server: &RedisServer) {
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

/// Alternates with the other process on one lock, and tells when it got and gave it.
async fn alternate(url: &str, rounds: usize) -> Vec<(u64, u64, u64)> {
    let locks = locks(url).await;
    let mutex = locks.mutex("bench:hand-off").unwrap();
    let mut seen = Vec::new();
    for _ in 0..rounds {
        let guard = mutex.lock().await.unwrap();
        let got = SystemClock.now().as_nanos();
        let token = guard.token().unwrap().get();
        // Long enough for the other to stand in the queue.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let gave = SystemClock.now().as_nanos();
        let _ = guard.release().await.unwrap();
        seen.push((token, got, gave));
    }
    seen
}

async fn hand_off_child(url: &str) {
    for (token, got, gave) in alternate(url, 1000).await {
        println!("{token} {got} {gave}");
    }
}

async fn listen_child(url: &str) {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let push = move |info: PushInfo| {
        if info.kind == PushKind::Message
            && let Some(Value::BulkString(sent)) = info.data.last()
        {
            let sent: u64 = String::from_utf8_lossy(sent).parse().unwrap();
            let _ = tell.send((sent, SystemClock.now().as_nanos()));
        }
    };
    let mut connection = connection(url, Some(Box::new(push))).await;
    connection.subscribe("bench").await.unwrap();
    println!("ready");
    let mut times = Vec::new();
    while let Some((sent, heard)) = told.recv().await {
        if sent == 0 {
            break;
        }
        times.push(heard.saturating_sub(sent));
    }
    println!("{}", percentile(&mut times, 0.5));
}

fn child(role: &str, url: &str) -> tokio::process::Child {
    tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([role, url])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Release in this process to acquired in another, against one script call and one published message.
async fn hand_off(server: &RedisServer) {
    let url = server.url();
    let mut listener = child("listen", &url);
    let mut lines = BufReader::new(listener.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    let mut raw = Raw::new(&url).await;
    let mut script = Vec::new();
    for _ in 0..1500 {
        // The same rhythm as the hand-offs: what sleeps must wake up in both.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let start = Instant::now();
        raw.script().await;
        script.push(start.elapsed().as_nanos() as u64);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = SystemClock.now().as_nanos();
        let _: i64 = redis::cmd("PUBLISH")
            .arg("bench")
            .arg(now)
            .query_async(&mut raw.connection)
            .await
            .unwrap();
    }
    let _: i64 = redis::cmd("PUBLISH")
        .arg("bench")
        .arg(0)
        .query_async(&mut raw.connection)
        .await
        .unwrap();
    let message: f64 = lines.next_line().await.unwrap().unwrap().parse().unwrap();
    let script = percentile(&mut script, 0.5);

    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let mut other = child("hand-off", &url);
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let mut seen: Vec<(u64, u64, u64, bool)> = alternate(&url, 1000)
        .await
        .into_iter()
        .map(|(t, got, gave)| (t, got, gave, true))
        .collect();
    let evals = calls(server, "evalsha").await + calls(server, "eval").await;
    while let Some(line) = lines.next_line().await.unwrap() {
        let mut parts = line.split(' ').map(|part| part.parse().unwrap());
        let (t, got, gave) = (
            parts.next().unwrap(),
            parts.next().unwrap(),
            parts.next().unwrap(),
        );
        seen.push((t, got, gave, false));
    }
    let holds = seen.len() as f64;
    let evals = evals.max(calls(server, "evalsha").await + calls(server, "eval").await);
    seen.sort_unstable();
    let mut times: Vec<u64> = seen
        .windows(2)
        .filter(|pair| pair[0].3 != pair[1].3)
        .map(|pair| pair[1].1.saturating_sub(pair[0].2))
        .collect();
    let count = times.len();
    let (ours, raw) = (percentile(&mut times, 0.5) / 1e3, (script + message) / 1e3);
    report(
        &format!("hand-off to another process, p50 of {count}"),
        ours,
        raw,
        "µs",
        ours / raw,
        "<= 1.5",
    );
    println!(
        "{:<58}{:>12.2}{:>28}",
        "requests per contended hand-off",
        evals / holds,
        "  <= 3"
    );
}

/// 50 workers on one lock.
async fn crowd(server: &RedisServer) {
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
        for worker in workers {
            let own = worker.await.unwrap();
            counts.push(own.len());
            // The first wait began before the start.
            waits.extend(own.into_iter().skip(1));
        }
        let time = start.elapsed().as_secs_f64();
        let handed = handed.load(Ordering::Relaxed) as f64;
        let evals = calls(server, "evalsha").await / handed;
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
        let (p99, max) = (percentile(&mut waits, 0.99), percentile(&mut waits, 1.0));
        println!(
            "{what:<58}{:>8.0} hand-offs/s (>= 3000)  {evals:.2} requests each  wait mean {:.1} ms, p99 {:.2}x, max {:.2}x (<= 2x)  cycles of a worker {}..{}",
            handed / time,
            mean / 1e3,
            p99 / mean,
            max / mean,
            counts.iter().min().unwrap(),
            counts.iter().max().unwrap(),
        );
    }
}

/// 1000 waiters in the store's queue: how many wake for each release?
async fn thousand(server: &RedisServer) {
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
    tokio::io::stdout().flush().await.unwrap();
}
