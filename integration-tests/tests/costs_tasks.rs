//! How many tasks are spawned for a cycle and for a turn, by core and by the client library of each store, against docs/costs.txt. A task costs an allocation, a place in a
//! queue and a wake-up: one for each lock would not show in what the server counts.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod costs_support;

use std::time::Duration;

use costs_support::{Row, settle};
use dlock_core::Locks;
use integration_tests::{EtcdServer, Flavor, Folder, PostgresServer, RedisServer, ZooKeeperServer};

const CYCLES: u64 = 100;
const CLIENTS: usize = 8;
const TURNS: usize = 20;
const LIMIT: Duration = Duration::from_secs(60);

/// The number of the task that is spawned now. Tokio counts the tasks of all runtimes of a process, those for blocking work too; that it still does is checked before it is used.
fn number_of_a_task() -> u64 {
    let id = tokio::spawn(async {}).id().to_string();
    id.parse().expect("a number")
}

/// How many were spawned since that task, without the one that asks.
fn spawned_since(before: u64) -> u64 {
    number_of_a_task() - before - 1
}

async fn a_spawned_task_counts_as_one() {
    let before = number_of_a_task();
    for _ in 0..5 {
        tokio::spawn(async {}).await.expect("a task");
    }
    tokio::task::spawn_blocking(|| ()).await.expect("a thread");
    assert_eq!(spawned_since(before), 6, "tokio counts its tasks otherwise");
}

async fn cycle(locks: &Locks, name: &str) {
    let mutex = locks.mutex(name).expect("a name");
    let guard = mutex.lock().await.expect("the lock");
    let _ = guard.release().await.expect("it answers");
}

async fn row(name: &str, url: &str) -> Row {
    let clients = (0..CLIENTS).map(|_| dlocks::connect(url));
    let clients = futures::future::try_join_all(clients).await;
    let clients = clients.expect("clients");
    // What a client makes when it is used for the first time is no part of a cycle.
    all_take_turns(&clients, 2).await;
    let before = number_of_a_task();
    for _ in 0..CYCLES {
        cycle(&clients[0], "cost").await;
    }
    let each = spawned_since(before) as f64 / CYCLES as f64;
    let before = number_of_a_task();
    all_take_turns(&clients, TURNS).await;
    let turn = spawned_since(before) as f64 / (CLIENTS * TURNS) as f64;
    for locks in clients {
        locks.close().await.expect("closed");
    }
    Row {
        name: format!("{name}:tasks"),
        cycle: each,
        turn: Some(turn),
        renewal: None,
    }
}

async fn all_take_turns(clients: &[Locks], turns: usize) {
    let tasks = clients.iter().map(|locks| async move {
        for _ in 0..turns {
            cycle(locks, "turn").await;
        }
    });
    let all = futures::future::join_all(tasks);
    tokio::time::timeout(LIMIT, all).await.expect("all turns");
}

/// One store after the other: the number counts for the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_tasks_are_spawned_than_the_file_says() {
    a_spawned_task_counts_as_one().await;
    let folder = Folder::new("costs").expect("a folder");
    let nodes = futures::future::try_join_all((0..3).map(|_| RedisServer::start()));
    let (redis, nodes, etcd, zookeeper, mysql, postgres) = tokio::try_join!(
        RedisServer::start(),
        nodes,
        EtcdServer::start(),
        ZooKeeperServer::start(),
        Flavor::MariaDb.start(),
        PostgresServer::start(),
    )
    .expect("the servers");
    let hosts: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let stores = [
        ("memory", "memory:costs".to_owned()),
        ("file", format!("file:{}", folder.path().display())),
        ("redis:fair", redis.url()),
        (
            "redlock:3-nodes",
            format!("redlock://{}?persistent=true", hosts.join(",")),
        ),
        ("etcd", etcd.url()),
        ("zk", zookeeper.url()),
        ("mysql:lease", mysql.url()),
        ("mysql:session", format!("{}?mode=session", mysql.url())),
        ("postgres:lease", postgres.url()),
        (
            "postgres:session",
            format!("{}?mode=session", postgres.url()),
        ),
    ];
    let mut rows = Vec::new();
    for (name, url) in &stores {
        rows.push(row(name, url).await);
    }
    settle(rows);
}
