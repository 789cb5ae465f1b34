//! How many commands locks cost each server, against docs/costs.txt: a check that does not depend on how fast the machine is.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod costs_support;

use std::time::Duration;

use async_trait::async_trait;
use costs_support::{Row, settle};
use dlock_bench::{Counters, Meter};
use dlock_core::{Locks, WakeUp};
use integration_tests::{
    EtcdServer, Flavor, Postgres, PostgresServer, RedisServer, ZooKeeperServer,
};

const CYCLES: usize = 50;
const CLIENTS: usize = 8;
const TURNS: usize = 20;
const HELD: usize = 50;
/// Long enough for a busy machine to renew in time.
const LEASE: &str = "lease=6s";
const LIMIT: Duration = Duration::from_secs(60);

/// Commands so far; and what it costs to ask.
async fn commands(meter: &dyn Meter) -> f64 {
    let counters = meter.read().await.expect("counters");
    counters.commands.expect("a number of commands")
}

/// Commands since `before`, without those that only counted.
async fn since(meter: &dyn Meter, before: f64) -> f64 {
    let now = commands(meter).await;
    let asking = commands(meter).await - now;
    now - before - asking
}

async fn client(url: &str) -> Locks {
    let sign = if url.contains('?') { '&' } else { '?' };
    let url = match url.contains("session_validity=") {
        true => url.to_owned(),
        false => format!("{url}{sign}{LEASE}"),
    };
    dlocks::connect(&url).await.expect("a client")
}

async fn cycle(locks: &Locks, name: &str) {
    let mutex = locks.mutex(name).expect("a name");
    let guard = mutex.lock().await.expect("the lock");
    let _ = guard.release().await.expect("it answers");
}

async fn row(name: &str, url: &str, meter: &dyn Meter) -> Row {
    let locks = client(url).await;
    cycle(&locks, "cost").await;
    let before = commands(meter).await;
    for _ in 0..CYCLES {
        cycle(&locks, "cost").await;
    }
    let each = since(meter, before).await / CYCLES as f64;

    let is_told = matches!(locks.capabilities().wake_up, WakeUp::Push { .. });
    let turn = match is_told {
        true => Some(turn(url, meter).await),
        false => None,
    };
    let renewal = renewal(&locks, meter).await;
    locks.close().await.expect("closed");
    Row {
        name: name.to_owned(),
        cycle: each,
        turn,
        renewal: Some(renewal),
    }
}

/// Eight clients that want the same lock, after a turn of each in which they make what they need.
async fn turn(url: &str, meter: &dyn Meter) -> f64 {
    let clients = futures::future::join_all((0..CLIENTS).map(|_| client(url))).await;
    let all = async |turns: usize| {
        let tasks = clients.iter().map(|locks| async move {
            for _ in 0..turns {
                cycle(locks, "turn").await;
            }
        });
        let all = futures::future::join_all(tasks);
        tokio::time::timeout(LIMIT, all).await.expect("all turns");
    };
    all(2).await;
    let before = commands(meter).await;
    all(TURNS).await;
    let each = since(meter, before).await / (CLIENTS * TURNS) as f64;
    for locks in clients {
        locks.close().await.expect("closed");
    }
    each
}

/// What it costs to renew fifty locks once. The first time they are due as they were taken, one after the other, and each may go alone where the
/// machine is slow; from then on together. Of two more times the cheaper one counts.
async fn renewal(locks: &Locks, meter: &dyn Meter) -> f64 {
    let mut guards = Vec::new();
    for lock in 0..HELD {
        let mutex = locks.mutex(format!("held {lock}")).expect("a name");
        guards.push(mutex.lock().await.expect("the lock"));
    }
    all_renewed(locks).await;
    let mut least = f64::INFINITY;
    for _ in 0..2 {
        let before = commands(meter).await;
        all_renewed(locks).await;
        least = least.min(since(meter, before).await);
    }
    for guard in guards {
        let _ = guard.release().await.expect("it answers");
    }
    least
}

async fn all_renewed(locks: &Locks) {
    let renewed = locks.stats().renewals;
    let all = async {
        while locks.stats().renewals < renewed + HELD as u64 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("renewals");
}

/// Several servers as one.
struct Nodes(Vec<RedisServer>);

#[async_trait]
impl Meter for Nodes {
    async fn read(&self) -> dlock_bench::Result<Counters> {
        let mut commands = 0.0;
        for node in &self.0 {
            commands += node.read().await?.commands.unwrap_or_default();
        }
        Ok(Counters {
            commands: Some(commands),
            ..Counters::default()
        })
    }
}

/// All servers at once: most of the time is spent waiting for renewals.
#[tokio::test(flavor = "multi_thread")]
async fn no_server_is_asked_for_more_than_the_file_says() {
    let (redis, etcd, zookeeper, mysql, postgres) = tokio::join!(
        redis_and_redlock(),
        etcd(),
        zookeeper(),
        mysql(),
        postgres()
    );
    settle([redis, etcd, zookeeper, mysql, postgres].concat());
}

async fn redis_and_redlock() -> Vec<Row> {
    let server = RedisServer::start().await.expect("redis");
    let mut rows = Vec::new();
    for style in ["fair", "barging", "plain"] {
        let url = format!("{}?style={style}", server.url());
        rows.push(row(&format!("redis:{style}"), &url, &server).await);
    }
    let nodes = futures::future::join_all((0..3).map(|_| RedisServer::start())).await;
    let nodes: Vec<_> = nodes.into_iter().map(|node| node.expect("redis")).collect();
    let hosts: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
    // New nodes count at once only if they keep what they write.
    let url = format!("redlock://{}?persistent=true", hosts.join(","));
    rows.push(row("redlock:3-nodes", &url, &Nodes(nodes)).await);
    rows
}

async fn etcd() -> Vec<Row> {
    let server = EtcdServer::start().await.expect("etcd");
    vec![row("etcd", &server.url(), &server).await]
}

async fn zookeeper() -> Vec<Row> {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    vec![row("zk", &server.url(), &server).await]
}

async fn mysql() -> Vec<Row> {
    let server = Flavor::MariaDb.start().await.expect("mariadb");
    let mut rows = Vec::new();
    for mode in ["lease", "unique", "session", "advisory"] {
        let url = format!("{}?mode={mode}&table_prefix={mode}_", server.url());
        rows.push(row(&format!("mysql:{mode}"), &url, &server).await);
    }
    rows
}

async fn postgres() -> Vec<Row> {
    let settings = Postgres::set(&["log_statement=all"]);
    let server = PostgresServer::start_with(settings)
        .await
        .expect("postgres");
    let mut rows = Vec::new();
    for (mode, more) in [("lease", ""), ("session", "&session_validity=6s")] {
        let url = format!("{}?mode={mode}{more}", server.url());
        rows.push(row(&format!("postgres:{mode}"), &url, &server).await);
    }
    rows
}
