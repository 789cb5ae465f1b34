//! R1 on a quorum: 50 workers in 3 processes, while a node is killed and comes back.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::process::Stdio;
use std::time::Duration;

use dlock_core::Settings;
use integration_tests::RedisServer;
use redis_support::residue;
use redlock_support::*;

const PROCESSES: usize = 3;
const WORKERS: usize = 50;
const PURCHASES: usize = 100;
const JOB: &str = "DLOCK_REDLOCK_SALE";

#[tokio::test]
async fn the_stock_ends_at_zero_while_a_node_dies_and_comes_back() {
    let five = start(5).await.expect("servers");
    let shop = RedisServer::start().await.expect("redis");
    let stock = WORKERS * PURCHASES;
    shop.command(&["SET", "stock", &stock.to_string()])
        .await
        .expect("SET");
    // The nodes are new, and count after the longest lease.
    let url = five.url("?longest_lease=2s");
    let children: Vec<_> = (0..PROCESSES)
        .map(|n| {
            let workers = WORKERS / PROCESSES + usize::from(n < WORKERS % PROCESSES);
            tokio::process::Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "one_process_of_the_sale", "--nocapture"])
                .env(JOB, format!("{workers} {} {url}", shop.url()))
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("a process")
        })
        .collect();
    sold(&shop, stock / 5).await;
    five.servers[1].kill();
    sold(&shop, stock * 2 / 5).await;
    five.servers[1].restart().await.expect("restart");
    let mut sold = 0;
    for child in children {
        let output = child.wait_with_output().await.expect("its output");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let own: usize = text
            .lines()
            .find_map(|line| line.strip_prefix("sold ")?.parse().ok())
            .unwrap_or_else(|| panic!("no result: {text}"));
        sold += own;
    }
    assert_eq!(sold, stock);
    let left = shop.command(&["GET", "stock"]).await.expect("GET");
    assert_eq!(left.text().as_deref(), Some("0"));
    for server in &five.servers {
        assert_eq!(residue(server).await, Vec::<String>::new());
    }
}

/// Resolves when so many are sold.
async fn sold(shop: &RedisServer, count: usize) {
    let limit = Duration::from_secs(120);
    integration_tests::until("the sale is under way", limit, || async {
        let left = shop
            .command(&["GET", "stock"])
            .await?
            .text()
            .unwrap_or_default();
        match left.parse::<usize>() {
            Ok(left) if left <= WORKERS * PURCHASES - count => Ok(()),
            _ => Err(integration_tests::Error::answer("GET stock", left)),
        }
    })
    .await
    .expect("a sale");
}

/// Does nothing unless the test above has started it.
#[tokio::test]
async fn one_process_of_the_sale() {
    let Ok(job) = std::env::var(JOB) else { return };
    let words: Vec<&str> = job.split(' ').collect();
    let workers: usize = words[0].parse().expect("a number");
    let settings = Settings::new()
        .lease(Duration::from_secs(2))
        .outage(Duration::from_secs(30));
    let locks = client_with(words[2], settings).await;
    let connection = redis::Client::open(words[1])
        .expect("a URL")
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let tasks: Vec<_> = (0..workers)
        .map(|_| {
            let (locks, mut connection) = (locks.clone(), connection.clone());
            tokio::spawn(async move {
                connection.set_response_timeout(Duration::from_secs(30));
                let mut sold = 0_usize;
                for _ in 0..PURCHASES {
                    let mutex = locks.mutex("sale").expect("a name");
                    let guard = mutex.lock().await.expect("the lock");
                    let stock: i64 = redis::cmd("GET")
                        .arg("stock")
                        .query_async(&mut connection)
                        .await
                        .expect("GET");
                    if stock > 0 {
                        let () = redis::cmd("SET")
                            .arg("stock")
                            .arg(stock - 1)
                            .query_async(&mut connection)
                            .await
                            .expect("SET");
                        sold += 1;
                    }
                    let _ = guard.release().await.expect("release");
                }
                sold
            })
        })
        .collect();
    let mut sold = 0;
    for task in tasks {
        sold += task.await.expect("a worker");
    }
    locks.close().await.expect("close");
    println!("\nsold {sold}");
}
