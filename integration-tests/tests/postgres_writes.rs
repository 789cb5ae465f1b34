//! What is done inside the caller's own transaction: a lock, a fenced write, an optimistic version; and the flash sale on a real table.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, FencingToken, Locks};
use dlock_postgres::fenced::Fence;
use dlock_postgres::optimistic::{Versioned, retry};
use dlock_postgres::transaction::TransactionLocks;
use integration_tests::{PostgresServer, Sale, WORKERS};
use postgres_support::*;
use tokio_postgres::Client;

const STOCK: usize = 2000;

async fn shop() -> PostgresServer {
    let server = PostgresServer::start().await.expect("a server");
    let table = "CREATE TABLE stock (id bigint PRIMARY KEY, n bigint NOT NULL, version bigint NOT NULL DEFAULT 0)";
    server.sql(table).await.expect("a table");
    server
}

async fn fill(server: &PostgresServer, stock: usize) {
    let sql = format!("DELETE FROM stock; INSERT INTO stock VALUES (1, {stock})");
    server.sql(&sql).await.expect("a stock");
}

async fn stock(server: &PostgresServer) -> i64 {
    let left = server.sql("SELECT n FROM stock").await.expect("a row");
    left.trim().parse().expect("a number")
}

/// Reads the stock, checks it and writes one less, in a transaction.
async fn sell_one(client: &mut Client) -> bool {
    let tx = client.transaction().await.expect("a transaction");
    let row = tx.query_one("SELECT n FROM stock WHERE id = 1", &[]).await;
    let left: i64 = row.expect("a row").get(0);
    if left > 0 {
        let update = "UPDATE stock SET n = $1 WHERE id = 1";
        tx.execute(update, &[&(left - 1)]).await.expect("an update");
    }
    tx.commit().await.expect("a commit");
    left > 0
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
    let locks = match job[3].as_str() {
        "locked" => Some(client(url).await),
        _ => None,
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

#[tokio::test(flavor = "multi_thread")]
async fn stock_ends_at_zero_from_three_processes_and_is_oversold_without_a_lock() {
    let server = shop().await;
    let purchases = STOCK / WORKERS;
    for (how, mode) in [
        ("locked", "lease"),
        ("locked", "session"),
        ("free", "lease"),
    ] {
        fill(&server, STOCK).await;
        let url = with(&server.url(), &format!("mode={mode}"));
        let sale = Sale::start(|workers| format!("{url} {workers} {purchases} {how}"));
        let (sold, left) = (sale.sold().await, stock(&server).await);
        assert_eq!(sold, STOCK);
        match how {
            "locked" => assert_eq!(left, 0, "{mode}"),
            _ => assert!(left > 0, "nobody was oversold: the sale shows nothing"),
        }
    }
    let left = "SELECT (SELECT count(*) FROM dlock_waiters) + (SELECT count(*) FROM dlock_locks WHERE owner IS NOT NULL) \
        + (SELECT count(*) FROM dlock_sessions WHERE owner IS NOT NULL)";
    assert_eq!(server.sql(left).await.expect("a count").trim(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_a_transaction_lasts_until_its_end() {
    let server = shop().await;
    fill(&server, 200).await;
    let locks = TransactionLocks::new("public", "shop_").expect("a prefix");
    server.sql(locks.table_sql()).await.expect("a table");
    let tasks = (0..10).map(|n| {
        let (url, locks) = (server.url(), locks.clone());
        tokio::spawn(async move {
            let mut conn = connection(&url).await;
            for turn in 0..20 {
                let tx = conn.transaction().await.expect("a transaction");
                locks.lock(&tx, "stock:1").await.expect("the lock");
                let row = tx.query_one("SELECT n FROM stock WHERE id = 1", &[]).await;
                let left: i64 = row.expect("a row").get(0);
                tx.execute("UPDATE stock SET n = $1", &[&(left - 1)])
                    .await
                    .expect("an update");
                // One that rolls back has changed nothing, and keeps nobody out.
                if (n, turn) == (0, 7) {
                    tx.rollback().await.expect("a rollback");
                } else {
                    tx.commit().await.expect("a commit");
                }
            }
        })
    });
    for task in futures::future::join_all(tasks).await {
        task.expect("no panic");
    }
    assert_eq!(stock(&server).await, 1);
}

/// Who does not get it can go on with its transaction: nothing of it is undone, and its time-outs are its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_for_the_lock_of_a_transaction_leaves_it_as_it_was() {
    let server = shop().await;
    fill(&server, 10).await;
    let locks = TransactionLocks::new("public", "shop_").expect("a prefix");
    server.sql(locks.table_sql()).await.expect("a table");
    let (mut first, mut second) = (
        connection(&server.url()).await,
        connection(&server.url()).await,
    );
    let pool = sqlx::PgPool::connect(&server.url()).await.expect("a pool");
    let limit = Duration::from_millis(300);
    let holder = first.transaction().await.expect("a transaction");
    assert!(locks.try_lock(&holder, "a").await.expect("an answer"));

    let tx = second.transaction().await.expect("a transaction");
    let begin = "SET LOCAL lock_timeout = '7s'; UPDATE stock SET n = 9";
    tx.batch_execute(begin).await.expect("some work");
    let start = Instant::now();
    let got = locks.lock_within(&tx, "a", limit).await;
    assert!(!got.expect("an answer"));
    assert!(start.elapsed() >= limit, "{:?}", start.elapsed());
    assert!(!locks.try_lock(&tx, "a").await.expect("an answer"));
    assert!(locks.try_lock(&tx, "b").await.expect("an answer"));
    let row = tx.query_one("SHOW lock_timeout", &[]).await;
    assert_eq!(row.expect("still usable").get::<_, String>(0), "7s");
    tx.commit().await.expect("a commit");
    assert_eq!(stock(&server).await, 9);

    let mut tx = pool.begin().await.expect("a transaction");
    let work = sqlx::query("UPDATE stock SET n = 8");
    work.execute(&mut *tx).await.expect("some work");
    let got = locks.lock_within_sqlx(&mut tx, "a", limit).await;
    assert!(!got.expect("an answer"));
    let got = locks.try_lock_sqlx(&mut tx, "a").await;
    assert!(!got.expect("an answer"));
    holder.rollback().await.expect("a rollback");
    let got = locks.lock_within_sqlx(&mut tx, "a", SOON).await;
    assert!(got.expect("an answer"));
    tx.commit().await.expect("a commit");
    assert_eq!(stock(&server).await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_holder_cannot_write_behind_a_later_one() {
    let server = shop().await;
    fill(&server, 10).await;
    let fence = Fence::new("public", "shop_").expect("a prefix");
    server.sql(fence.table_sql()).await.expect("a table");
    let mut conn = connection(&server.url()).await;
    let mut write = async |token: u64| {
        let tx = conn.transaction().await.expect("a transaction");
        fence
            .check(&tx, "stock:1", FencingToken::new(token))
            .await?;
        tx.execute("UPDATE stock SET n = n - 1", &[])
            .await
            .expect("an update");
        tx.commit().await.expect("a commit");
        dlock_core::Result::Ok(())
    };
    write(5).await.expect("the first");
    write(5).await.expect("the same again");
    write(8).await.expect("a later one");
    let error: dlock_core::Error = write(7).await.expect_err("a stale one");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(stock(&server).await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_survives_a_change_of_store() {
    let server = shop().await;
    let old = Fence::new("public", "moved_")
        .expect("a prefix")
        .of_store("redis://cache");
    server.sql(old.table_sql()).await.expect("a table");
    let new = old.clone().of_store("etcd://h");
    let mut conn = connection(&server.url()).await;
    let mut write = async |fence: &Fence, token: u64| {
        let tx = conn.transaction().await.expect("a transaction");
        let outcome = fence.check(&tx, "r", FencingToken::new(token)).await;
        if outcome.is_ok() {
            tx.commit().await.expect("a commit");
        }
        outcome
    };
    // Redis counts in microseconds, etcd in revisions.
    write(&old, 1_790_000_000_000_000)
        .await
        .expect("the old store");
    let error = write(&new, 209).await.expect_err("no match");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(
        error.to_string().contains("raise the epoch to 1"),
        "{error}"
    );
    let moved = new.clone().in_epoch(1);
    write(&moved, 209).await.expect("a new epoch");
    write(&moved, 210).await.expect("a later holder");
    let error = write(&moved, 209).await.expect_err("a stale one");
    assert_eq!(error.kind(), ErrorKind::Lost);
    let error = write(&old, 1_790_000_000_000_001).await;
    let error = error.expect_err("from before the move");
    assert!(error.to_string().contains("before the move"), "{error}");
    let conn = connection(&server.url()).await;
    moved.reset(&conn, "r").await.expect("on purpose");
    let first = old.check(&conn, "r", FencingToken::new(1)).await;
    first.expect("nothing is known after a reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_lose_no_update() {
    let server = shop().await;
    fill(&server, 100).await;
    let tasks = (0..5).map(|_| {
        let url = server.url();
        async move {
            let stock = Versioned::new("public.stock", "id", "version").expect("names");
            let mut conn = connection(&url).await;
            for _ in 0..20 {
                let sold = retry(1000, async || {
                    let version = stock.read(&conn, &1_i64).await?.expect("a row");
                    let row = conn.query_one("SELECT n FROM stock", &[]).await;
                    let left: i64 = row.expect("a row").get(0);
                    let tx = conn.transaction().await.expect("a transaction");
                    stock.commit_if(&tx, &1_i64, version).await?;
                    tx.execute("UPDATE stock SET n = $1", &[&(left - 1)])
                        .await
                        .expect("an update");
                    tx.commit().await.expect("a commit");
                    Ok(())
                });
                sold.await.expect("a sale");
            }
        }
    });
    futures::future::join_all(tasks).await;
    assert_eq!(stock(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_lose_no_update_by_sqlx() {
    let server = shop().await;
    fill(&server, 60).await;
    let pool = sqlx::PgPool::connect(&server.url()).await.expect("a pool");
    let tasks = (0..3).map(|_| async {
        let stock = Versioned::new("public.stock", "id", "version").expect("names");
        for _ in 0..20 {
            let sold = retry(1000, async || {
                let version = stock.read_sqlx(&pool, 1_i64).await?.expect("a row");
                let left: i64 = sqlx::query_scalar("SELECT n FROM stock")
                    .fetch_one(&pool)
                    .await
                    .expect("a row");
                let mut tx = pool.begin().await.expect("a transaction");
                // The server then undoes one of two that write, which is a conflict too.
                let strict = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";
                sqlx::raw_sql(strict)
                    .execute(&mut *tx)
                    .await
                    .expect("strict");
                stock.commit_if_sqlx(&mut tx, 1_i64, version).await?;
                let sell = sqlx::query("UPDATE stock SET n = $1").bind(left - 1);
                sell.execute(&mut *tx).await.expect("an update");
                tx.commit().await.expect("a commit");
                Ok(())
            });
            sold.await.expect("a sale");
        }
    });
    futures::future::join_all(tasks).await;
    assert_eq!(stock(&server).await, 0);
    let stock = Versioned::new("stock", "id", "version").expect("names");
    let nobody = stock.read_sqlx(&pool, 7_i64).await;
    assert_eq!(nobody.expect("an answer"), None);
}
