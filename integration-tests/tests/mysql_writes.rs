//! Optimistic versions and fenced writes, in the caller's own transactions.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::Duration;

use dlock_core::{ErrorKind, FencingToken, Result, Settings};
use dlock_mysql::fenced::Fence;
use dlock_mysql::optimistic::{Versioned, retry};
use integration_tests::Flavor;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Transaction, TxOpts};
use mysql_support::*;

on_both!(
    of_two_writers_who_read_the_same_version_one_fails,
    writers_who_retry_lose_no_update,
    fence_refuses_lower_tokens_for_each_resource_and_prefix,
    fence_survives_a_change_of_store,
    stale_holder_of_a_real_lock_cannot_write,
);

/// A table of its own, with one row: id 1, n 10, version 1.
async fn items(flavor: Flavor, table: &str) -> Conn {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let mut conn = connection(server.url()).await;
    for sql in [
        format!("DROP TABLE IF EXISTS {table}"),
        format!(
            "CREATE TABLE {table} (id INT PRIMARY KEY, n BIGINT NOT NULL, version BIGINT UNSIGNED NOT NULL) ENGINE = InnoDB"
        ),
        format!("INSERT INTO {table} VALUES (1, 10, 1)"),
    ] {
        conn.query_drop(sql).await.expect("a table");
    }
    conn
}

async fn begin(conn: &mut Conn) -> Transaction<'_> {
    let tx = conn.start_transaction(TxOpts::default()).await;
    tx.expect("a transaction")
}

async fn read(conn: &mut Conn, table: &str) -> (i64, u64) {
    let sql = format!("SELECT n, version FROM {table} WHERE id = 1");
    let row: Option<(i64, u64)> = conn.query_first(sql).await.expect("a row");
    row.expect("a row")
}

async fn of_two_writers_who_read_the_same_version_one_fails(flavor: Flavor) {
    let mut conn = items(flavor, "optimistic_two").await;
    let row = Versioned::new("optimistic_two", "id", "version").expect("good names");
    assert_eq!(row.read(&mut conn, 2).await.expect("asked"), None);
    let seen = row.read(&mut conn, 1).await.expect("asked").expect("a row");
    for (turn, good) in [(0, true), (1, false)] {
        let mut tx = begin(&mut conn).await;
        tx.query_drop("UPDATE optimistic_two SET n = n - 1 WHERE id = 1")
            .await
            .expect("an update");
        match row.commit_if(&mut tx, 1, seen).await {
            Ok(()) => tx.commit().await.expect("a commit"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                assert!(error.is_retryable());
                tx.rollback().await.expect("a rollback");
                assert!(!good, "turn {turn}");
            }
        }
    }
    assert_eq!(read(&mut conn, "optimistic_two").await, (9, 2));
    // Alone, without a transaction.
    row.commit_if(&mut conn, 1, 2).await.expect("nobody wrote");
    assert_eq!(read(&mut conn, "optimistic_two").await, (9, 3));
}

/// Every writer gets through in the end, and no sale is lost.
async fn writers_who_retry_lose_no_update(flavor: Flavor) {
    const WRITERS: i64 = 8;
    let mut conn = items(flavor, "optimistic_many").await;
    let row = Versioned::new("optimistic_many", "id", "version").expect("good names");
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let writers = (0..WRITERS).map(|_| async {
        let mut conn = connection(server.url()).await;
        retry(1000, async || -> Result<()> {
            let seen = row.read(&mut conn, 1).await?.expect("a row");
            let (n, _) = read(&mut conn, "optimistic_many").await;
            let mut tx = begin(&mut conn).await;
            row.commit_if(&mut tx, 1, seen).await?;
            tx.exec_drop("UPDATE optimistic_many SET n = ? WHERE id = 1", (n - 1,))
                .await
                .expect("an update");
            tx.commit().await.expect("a commit");
            Ok(())
        })
        .await
    });
    for written in futures::future::join_all(writers).await {
        written.expect("it got through");
    }
    let expected = (10 - WRITERS, 1 + WRITERS as u64);
    assert_eq!(read(&mut conn, "optimistic_many").await, expected);
}

async fn fence_refuses_lower_tokens_for_each_resource_and_prefix(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let mut conn = connection(server.url()).await;
    let (one, two) = (
        Fence::new("fence_one_").expect("a prefix"),
        Fence::new("fence_two_").expect("a prefix"),
    );
    for fence in [&one, &two] {
        conn.query_drop(fence.table_sql()).await.expect("a table");
    }
    conn.query_drop("DELETE FROM fence_one_fenced")
        .await
        .expect("emptied");
    conn.query_drop("DELETE FROM fence_two_fenced")
        .await
        .expect("emptied");
    for (fence, resource, token, good) in [
        (&one, "item:1", 5, true),
        (&one, "item:1", 5, true),
        (&one, "item:1", 7, true),
        (&one, "item:1", 6, false),
        (&one, "ITEM:1", 1, true),
        (&one, "item:1 ", 1, true),
        (&two, "item:1", 1, true),
        (&one, "item:1", 8, true),
    ] {
        let mut tx = begin(&mut conn).await;
        let outcome = fence
            .check(&mut tx, resource, FencingToken::new(token))
            .await;
        assert_eq!(outcome.is_ok(), good, "token {token}: {outcome:?}");
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        tx.commit().await.expect("a commit");
    }
}

async fn fence_survives_a_change_of_store(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let mut conn = connection(server.url()).await;
    let old = Fence::new("fence_moved_")
        .expect("a prefix")
        .of_store("redis://cache");
    conn.query_drop(old.table_sql()).await.expect("a table");
    old.reset(&mut conn, "r").await.expect("on purpose");
    let new = old.clone().of_store("etcd://h");
    let moved = new.clone().in_epoch(1);
    for (fence, token, refused) in [
        (&old, 1_790_000_000_000_000, None),
        (
            &new,
            209,
            Some((ErrorKind::Conflict, "raise the epoch to 1")),
        ),
        (&moved, 209, None),
        (&moved, 210, None),
        (&moved, 209, Some((ErrorKind::Lost, "its hold was lost"))),
        (
            &old,
            1_790_000_000_000_001,
            Some((ErrorKind::Conflict, "before the move")),
        ),
    ] {
        let mut tx = begin(&mut conn).await;
        let outcome = fence.check(&mut tx, "r", FencingToken::new(token)).await;
        match (outcome, refused) {
            (Ok(()), None) => tx.commit().await.expect("a commit"),
            (Err(error), Some((kind, reason))) => {
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains(reason), "{error}");
                tx.rollback().await.expect("a rollback");
            }
            (outcome, _) => panic!("token {token}: {outcome:?}"),
        }
    }
}

/// A holder that overslept its lease writes, and its transaction fails.
async fn stale_holder_of_a_real_lock_cannot_write(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let mut conn = items(flavor, "fence_stock").await;
    let fence = Fence::new("fence_stale_").expect("a prefix");
    conn.query_drop(fence.table_sql()).await.expect("a table");
    for mode in ["lease", "unique"] {
        let url = with(server.url(), &format!("mode={mode}&table_prefix=w_"));
        let (sleepy, awake) = (client(&url).await, client(&url).await);
        let settings = Settings::new()
            .lease(Duration::from_millis(300))
            .renewal(false);
        let sleepy = sleepy.with(settings).expect("settings");
        let stale = lock(&sleepy, "stock").await;
        let fresh = lock(&awake, "stock").await;
        for (guard, good) in [(&fresh, true), (&stale, false)] {
            let token = guard.token().expect("a token");
            let mut tx = begin(&mut conn).await;
            let outcome = fence
                .check(&mut tx, &format!("stock of {mode}"), token)
                .await;
            assert_eq!(outcome.is_ok(), good, "{mode}: {outcome:?}");
            tx.rollback().await.expect("a rollback");
            if good {
                let mut tx = begin(&mut conn).await;
                let again = fence
                    .check(&mut tx, &format!("stock of {mode}"), token)
                    .await;
                again.expect("it is the holder");
                tx.commit().await.expect("a commit");
            }
        }
        free(fresh).await;
    }
}
