//! R1: 5000 items, 50 workers in 3 processes, 100 purchases each: read the stock, check it, write one less.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::process::Stdio;
use std::time::Duration;

use integration_tests::RedisServer;
use redis_support::*;

const PROCESSES: usize = 3;
const WORKERS: usize = 50;
const PURCHASES: usize = 100;
const JOB: &str = "DLOCK_FLASH_SALE";

#[tokio::test]
async fn the_stock_ends_at_zero_with_three_processes() {
    let server = RedisServer::start().await.expect("redis");
    let stock = (WORKERS * PURCHASES).to_string();
    server
        .command(&["SET", "stock", &stock])
        .await
        .expect("SET");
    let children: Vec<_> = (0..PROCESSES)
        .map(|n| {
            let workers = WORKERS / PROCESSES + usize::from(n < WORKERS % PROCESSES);
            tokio::process::Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "one_process_of_the_sale", "--nocapture"])
                .env(JOB, format!("{workers} {}", server.url()))
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("a process")
        })
        .collect();
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
    assert_eq!(sold, WORKERS * PURCHASES);
    let left = server.command(&["GET", "stock"]).await.expect("GET");
    assert_eq!(left.text().as_deref(), Some("0"));
    server.command(&["DEL", "stock"]).await.expect("DEL");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// Does nothing unless the test above has started it.
#[tokio::test]
async fn one_process_of_the_sale() {
    let Ok(job) = std::env::var(JOB) else { return };
    let (workers, url) = job.split_once(' ').expect("a job");
    let workers: usize = workers.parse().expect("a number");
    let locks = client(url).await;
    let connection = redis::Client::open(url)
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
                    let guard = lock(&locks, "sale").await;
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
