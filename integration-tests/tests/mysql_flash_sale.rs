//! The flash sale: 5000 items, 50 workers in 3 processes: read the stock, check it, write one less, on a real table. The transaction commits, then the lock is released.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use dlock_core::Locks;
use integration_tests::{Flavor, MySql, MySqlServer, Sale, WORKERS};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use mysql_support::*;

on_both!(
    stock_ends_at_zero_in_every_mode_and_is_oversold_without_a_lock,
    release_before_the_commit_loses_an_update_and_after_it_does_not,
);

const STOCK: usize = 5000;

/// A server that is quick to commit: what it holds need not outlive it.
async fn shop(flavor: Flavor) -> MySqlServer {
    let server = MySqlServer::start_with(MySql {
        flavor,
        args: vec!["--innodb-flush-log-at-trx-commit=0".to_owned()],
        ..MySql::default()
    })
    .await
    .expect("a server");
    let table = "CREATE TABLE stock (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB";
    server.sql(table).await.expect("a table");
    server
}

/// Reads the stock, checks it and writes one less, in a transaction.
async fn sell_one(conn: &mut Conn) -> bool {
    let tx = conn.start_transaction(TxOpts::default()).await;
    let mut tx = tx.expect("a transaction");
    let left: Option<i64> = tx
        .query_first("SELECT n FROM stock WHERE id = 1")
        .await
        .expect("a row");
    let left = left.expect("a stock");
    let sold = left > 0;
    if sold {
        tx.exec_drop("UPDATE stock SET n = ? WHERE id = 1", (left - 1,))
            .await
            .expect("an update");
    }
    tx.commit().await.expect("a commit");
    sold
}

async fn fill(server: &MySqlServer, stock: usize) {
    let sql = format!("REPLACE INTO stock VALUES (1, {stock})");
    server.sql(&sql).await.expect("a stock");
}

async fn stock(server: &MySqlServer) -> i64 {
    let left = server.sql("SELECT n FROM stock").await.expect("a row");
    left.trim().parse().expect("a number")
}

/// One worker: `purchases` times, under the lock if there is one. Tells how many it got.
async fn worker(url: String, locks: Option<Locks>, purchases: usize) -> usize {
    let mut conn = connection(&url).await;
    let mut sold = 0;
    for _ in 0..purchases {
        let got = match &locks {
            Some(locks) => {
                let mutex = locks.mutex("stock:1").expect("a name");
                let run = mutex.run(async |_| sell_one(&mut conn).await);
                run.await.expect("the lock")
            }
            None => sell_one(&mut conn).await,
        };
        sold += usize::from(got);
    }
    sold
}

/// Does nothing unless `sale` has started it.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_of_the_sale() {
    let Some(job) = Sale::job() else { return };
    let url = &job[0];
    let locks = if url.contains("mode=none") {
        None
    } else {
        Some(client(url).await)
    };
    let workers: usize = job[1].parse().expect("a number");
    let purchases = job[2].parse().expect("a number");
    let tasks = (0..workers).map(|_| tokio::spawn(worker(url.clone(), locks.clone(), purchases)));
    let mut sold = 0;
    for task in futures::future::join_all(tasks).await {
        sold += task.expect("no panic");
    }
    Sale::tell(sold);
}

/// Sells the stock from three processes; tells how many were sold, and what the table says is left.
async fn sale(server: &MySqlServer, mode: &str) -> (usize, i64) {
    let purchases = STOCK / WORKERS;
    fill(server, STOCK).await;
    let url = with(&server.url(), &format!("mode={mode}"));
    let sale = Sale::start(|workers| format!("{url} {workers} {purchases}"));
    let sold = sale.sold().await;
    (sold, stock(server).await)
}

async fn stock_ends_at_zero_in_every_mode_and_is_oversold_without_a_lock(flavor: Flavor) {
    let server = shop(flavor).await;
    for mode in MODES {
        let started = std::time::Instant::now();
        assert_eq!(sale(&server, mode).await, (STOCK, 0), "{mode}");
        println!("{mode}: {:?}", started.elapsed());
    }
    let (sold, left) = sale(&server, "none").await;
    assert!(
        sold as i64 + left > STOCK as i64,
        "without a lock {sold} of {STOCK} were sold and {left} are left: the test shows nothing"
    );
}

/// A lock given back before the commit loses an update; after it, none. Made certain by holding the first one's commit back.
async fn release_before_the_commit_loses_an_update_and_after_it_does_not(flavor: Flavor) {
    let server = shop(flavor).await;
    fill(&server, 10).await;
    let read = "SELECT n FROM stock WHERE id = 1";
    for mode in MODES {
        let before = stock(&server).await;
        let locks = client(&url(&server, mode)).await;
        let (mut first, mut second) = (
            connection(&server.url()).await,
            connection(&server.url()).await,
        );
        let guard = lock(&locks, "stock:1").await;
        let tx = first.start_transaction(TxOpts::default()).await;
        let mut tx = tx.expect("a transaction");
        let left: Option<i64> = tx.query_first(read).await.expect("a row");
        let less = (left.expect("a stock") - 1,);
        tx.exec_drop("UPDATE stock SET n = ? WHERE id = 1", less)
            .await
            .expect("an update");
        free(guard).await;
        let guard = lock(&locks, "stock:1").await;
        let seen: Option<i64> = second.query_first(read).await.expect("a row");
        tx.commit().await.expect("a commit");
        let less = (seen.expect("a stock") - 1,);
        second
            .exec_drop("UPDATE stock SET n = ? WHERE id = 1", less)
            .await
            .expect("an update");
        free(guard).await;
        let left = stock(&server).await;
        assert_eq!(left, before - 1, "{mode}: two sales, and one was lost");

        let mutex = locks.mutex("stock:1").expect("a name");
        for conn in [&mut first, &mut second] {
            let sold = mutex.run(async |_| sell_one(conn).await).await;
            assert!(sold.expect("the lock"));
        }
        assert_eq!(stock(&server).await, before - 3, "{mode}: none was lost");
        fill(&server, 10).await;
    }
}
