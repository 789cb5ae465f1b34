//! What a Redis lock costs, as ratios against raw commands through the same client in the same run.
//!
//! `cargo run --release -p integration-tests --example bench_redis`, with `cycle`, `names`, `requests`, `hand-offs`, `crowd` or `thousand` behind
//! it for a part.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark prints, and ends where its expectation breaks"
)]

mod crowd;
mod free;
mod hand_off;

use dlock_core::Locks;
use dlock_redis::Config;
use integration_tests::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, Value};

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// Each figure stands beside its baseline in so many rounds, by turns.
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("hand-off") => return hand_off::hand_off_child(&args[2]).await,
        Some("listen") => return hand_off::listen_child(&args[2]).await,
        _ => {}
    }
    let server = RedisServer::start().await.expect("redis");
    let url = server.url();
    println!(
        "{:<58}{:>12}{:>12}{:>8}  wanted",
        "", "dlock", "raw", "ratio"
    );
    // All of it, or the parts that are named.
    let wanted = |part: &str| args.len() < 2 || args[1..].iter().any(|arg| arg == part);
    if wanted("cycle") {
        free::cycle(&url).await;
    }
    if wanted("names") {
        free::throughput(&server).await;
    }
    if wanted("requests") {
        free::requests(&server).await;
    }
    if wanted("hand-offs") {
        hand_off::hand_off(&server).await;
    }
    if wanted("crowd") {
        crowd::crowd(&server).await;
        crowd::crowd_of_rslock(&server).await;
    }
    if wanted("thousand") {
        crowd::thousand(&server).await;
    }
}

fn report(what: &str, ours: f64, raw: f64, unit: &str, ratio: f64, wanted: &str) {
    println!(
        "{what:<58}{:>12}{:>12}{ratio:>8.2}  {wanted}",
        format!("{ours:.0} {unit}"),
        format!("{raw:.0} {unit}")
    );
}

/// What a round measured: of ours, and of what it is compared to.
struct Pair {
    ours: f64,
    theirs: f64,
}

/// Reports the medians over the rounds, and the ratios of the rounds with their spread.
fn compare(what: &str, rounds: &[Pair], unit: &str, wanted: &str) {
    let sorted = |which: fn(&Pair) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(which).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let middle = |all: &[f64]| all[all.len() / 2];
    let ratios = sorted(|pair| pair.ours / pair.theirs);
    report(
        what,
        middle(&sorted(|pair| pair.ours)),
        middle(&sorted(|pair| pair.theirs)),
        unit,
        middle(&ratios),
        &format!(
            "{wanted:<8} {:.2} to {:.2} in {} rounds",
            ratios[0],
            ratios[ratios.len() - 1],
            ratios.len()
        ),
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
    Locks::new(Config::from_url(url).unwrap().connect().await.unwrap()).unwrap()
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
        let owner = dlock_core::backend::AttemptId::new().to_string();
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

    async fn publish(&mut self, number: u64) {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg("bench").arg(number);
        let _: i64 = publish.query_async(&mut self.connection).await.unwrap();
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

/// How many commands scripts have called, by the names of those that they use.
async fn calls_inside(server: &RedisServer) -> f64 {
    let mut sum = 0.0;
    for command in [
        "get",
        "set",
        "exists",
        "time",
        "pttl",
        "pexpire",
        "zadd",
        "zrem",
        "zcard",
        "zcount",
        "zscore",
        "zrange",
        "zpopmin",
        "hset",
        "hget",
        "hdel",
        "pubsub|numsub",
        "publish",
        "rpush",
        "lpop",
    ] {
        sum += calls(server, command).await;
    }
    sum
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
