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
    free::cycle(&url).await;
    free::throughput(&server).await;
    free::requests(&server).await;
    hand_off::hand_off(&server).await;
    crowd::crowd(&server).await;
    crowd::crowd_of_rslock(&server).await;
    crowd::thousand(&server).await;
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
