//! The statements of a fence without any backend: a plain client of the database, and `dlock_core`. The part between `// [name]` and
//! `// [end]` is shown in docs/guarantees.md, and `ci/docs` compares.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

use std::sync::Arc;

use dlock_core::fence::{Mark, SqlFence};
use dlock_core::{ErrorKind, FencingToken};
use integration_tests::PostgresServer;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

type BoxResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

// [sqlx]
/// The statements of `dlock_core::fence`, by sqlx. The fence's table is made once, by `fence.table_sql()`.
async fn sell_one(pool: &PgPool, fence: &SqlFence, mine: &Mark) -> BoxResult {
    let mut tx = pool.begin().await?;
    // First: it locks the row of the resource until the commit, and tells the highest mark.
    let (epoch, token, store) = sqlx::query_as(AssertSqlSafe(fence.record_sql()))
        .bind("stock:42")
        .bind(mine.epoch)
        .bind(mine.token)
        .bind(&mine.store)
        .fetch_one(&mut *tx)
        .await?;
    let highest = Mark {
        epoch,
        token,
        store,
    };
    mine.check(&highest, "stock:42")?; // an error drops tx, which rolls back
    sqlx::query("INSERT INTO sales (epoch, token) VALUES ($1, $2)")
        .bind(mine.epoch)
        .bind(mine.token)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}
// [end]

async fn shop() -> (PostgresServer, PgPool, SqlFence) {
    let server = PostgresServer::start().await.expect("a server");
    let options = PgPoolOptions::new().max_connections(8);
    let pool = options.connect(&server.url()).await.expect("a pool");
    let fence = SqlFence::postgres("public.shop_fenced").expect("a name");
    let sales = "CREATE TABLE sales (id bigserial PRIMARY KEY, epoch bigint NOT NULL, token bigint NOT NULL)";
    for sql in [sales, fence.table_sql(), fence.table_sql()] {
        let made = sqlx::query(AssertSqlSafe(sql)).execute(&pool).await;
        made.expect("a table");
    }
    (server, pool, fence)
}

fn mark(token: u64, store: &str, epoch: i64) -> Mark {
    let mark = Mark::new(FencingToken::new(token)).expect("a token");
    mark.of_store(store).in_epoch(epoch)
}

async fn sales(pool: &PgPool) -> Vec<(i64, i64)> {
    let sales = sqlx::query_as("SELECT epoch, token FROM sales ORDER BY id");
    sales.fetch_all(pool).await.expect("rows")
}

fn kind_and_text(refused: BoxResult) -> (ErrorKind, String) {
    let error = refused.expect_err("refused");
    let error = error
        .downcast_ref::<dlock_core::Error>()
        .expect("the fence's");
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn a_late_holder_writes_nothing_and_the_next_goes_on() {
    let (_server, pool, fence) = shop().await;
    let (first, second) = (mark(7, "redis", 0), mark(8, "redis", 0));
    sell_one(&pool, &fence, &first).await.expect("the holder");
    sell_one(&pool, &fence, &second).await.expect("the next");
    let (kind, text) = kind_and_text(sell_one(&pool, &fence, &first).await);
    assert_eq!(kind, ErrorKind::Lost, "{text}");
    assert!(text.contains("a holder with token 8"), "{text}");
    sell_one(&pool, &fence, &second).await.expect("once more");
    assert_eq!(sales(&pool).await, [(0, 7), (0, 8), (0, 8)]);
}

/// Holders of all ages write at once: what is committed never goes back behind a later holder, and who is refused was late.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_many_holders_are_committed_in_their_order() {
    let (_server, pool, fence) = shop().await;
    let fence = Arc::new(fence);
    let holders = (1..=160_u64).map(|number| {
        // Each number once, in an order that is not theirs.
        let mine = mark(number * 50 % 161, "redis", 0);
        let (pool, fence) = (pool.clone(), fence.clone());
        tokio::spawn(async move { sell_one(&pool, &fence, &mine).await })
    });
    let mut refused = 0;
    for holder in holders.collect::<Vec<_>>() {
        let done = holder.await.expect("no panic");
        if done.is_err() {
            let (kind, text) = kind_and_text(done);
            assert_eq!(kind, ErrorKind::Lost, "{text}");
            refused += 1;
        }
    }
    let sold = sales(&pool).await;
    assert!(sold.is_sorted(), "{sold:?}");
    assert_eq!(sold.last(), Some(&(0, 160)));
    assert_eq!(sold.len() + refused, 160);
}

/// The numbers of another store are smaller, or larger: neither passes without an epoch of its own.
#[tokio::test]
async fn tokens_of_another_store_pass_by_their_epoch_and_the_refusal_says_so() {
    let (_server, pool, fence) = shop().await;
    let redis = mark(1_763_430_000_000_001, "redis", 0);
    sell_one(&pool, &fence, &redis).await.expect("the first");
    for token in [209, 1_763_430_000_000_002] {
        let (kind, text) = kind_and_text(sell_one(&pool, &fence, &mark(token, "etcd", 0)).await);
        assert_eq!(kind, ErrorKind::Conflict, "{text}");
        assert!(text.contains("raise the epoch to 1"), "{text}");
    }
    let etcd = mark(209, "etcd", 1);
    sell_one(&pool, &fence, &etcd).await.expect("the move");
    let (kind, text) = kind_and_text(sell_one(&pool, &fence, &redis).await);
    assert_eq!(kind, ErrorKind::Conflict, "{text}");
    assert!(text.contains("from before the move"), "{text}");
    assert_eq!(sales(&pool).await, [(0, redis.token), (1, 209)]);
}

#[tokio::test]
async fn a_row_is_read_under_its_lock_and_can_be_forgotten() {
    let (_server, pool, fence) = shop().await;
    sell_one(&pool, &fence, &mark(8, "redis", 0))
        .await
        .expect("a holder");
    let row: (i64, i64, String) = sqlx::query_as(AssertSqlSafe(fence.read_sql()))
        .bind("stock:42")
        .fetch_one(&pool)
        .await
        .expect("a row");
    assert_eq!(row, (0, 8, "redis".to_owned()));
    let reset = sqlx::query(AssertSqlSafe(fence.reset_sql())).bind("stock:42");
    reset.execute(&pool).await.expect("forgotten");
    sell_one(&pool, &fence, &mark(3, "redis", 0))
        .await
        .expect("any token");
}
