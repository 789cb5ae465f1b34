//! The first use of a name, when others use it at the same moment.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::Duration;

use integration_tests::Flavor;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use mysql_support::*;

on_both!(permit_that_met_no_row_is_not_taken_beside_another);

/// Resolves when a statement of another connection waits for a row.
async fn somebody_waits_for_a_row(watcher: &mut Conn) {
    let asked = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    let waits = async {
        // MariaDB refreshes this table every 100 ms.
        while watcher.query_first::<u64, _>(asked).await.expect("a count") == Some(0) {
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
    };
    tokio::time::timeout(SOON, waits).await.expect("it waits");
}

/// Who takes a permit locks the row of its name first. Where there was none to lock, and another one made it and took the only permit
/// in between, the permit must not be taken a second time.
async fn permit_that_met_no_row_is_not_taken_beside_another(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "lease");
    let locks = client(&url).await;
    // The tables are there from here on.
    drop(locks.mutex("other").unwrap().lock().await.expect("free"));

    let (mut pause, mut other) = (connection(&url).await, connection(&url).await);
    let mut watcher = connection(&url).await;
    for conn in [&mut pause, &mut other] {
        // As our clients do: who locks a row locks no room for others beside it.
        let level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        conn.query_drop(level).await.expect("set");
    }
    let holder = |attempt: &str, ends: &str| {
        format!(
            "INSERT INTO dlock_holders (name, attempt, permits, token, lease_us, taken_at, expires_at, label) \
             VALUES ('permit', UNHEX(REPEAT('{attempt}', 16)), 1, 1, 60000000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) {ends}, '')"
        )
    };
    // The taker stands still between its look at the row of the name and the rest: it wants to remove this holder, who is long gone.
    let gone = holder("AA", "- INTERVAL 60 SECOND");
    pause.query_drop(gone).await.expect("a row");
    pause.query_drop("START TRANSACTION").await.expect("begun");
    pause
        .query_drop("SELECT 1 FROM dlock_holders WHERE name = 'permit' FOR UPDATE")
        .await
        .expect("locked");
    let semaphore = locks.semaphore("permit", 1).expect("a name");
    let taker = tokio::spawn(async move { semaphore.try_acquire().await });
    somebody_waits_for_a_row(&mut watcher).await;

    // Meanwhile another one makes the row, and takes the permit as every client does: with the row locked.
    other
        .query_drop(
            "INSERT INTO dlock_locks (name, owner, fence, token, lease_us, taken_at, expires_at, shared, doubt_until, label) \
             VALUES ('permit', NULL, 0, 0, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0, UTC_TIMESTAMP(6), '')",
        )
        .await
        .expect("a row");
    other.query_drop("START TRANSACTION").await.expect("begun");
    for statement in [
        "SELECT 1 FROM dlock_locks WHERE name = 'permit' FOR UPDATE",
        // Before the row that the taker waits for, so that it does not wait for this one too.
        &holder("11", "+ INTERVAL 60 SECOND"),
        "UPDATE dlock_locks SET fence = 1, token = 1, shared = 1 WHERE name = 'permit'",
    ] {
        other.query_drop(statement).await.expect("done");
    }
    pause.query_drop("ROLLBACK").await.expect("let go");
    somebody_waits_for_a_row(&mut watcher).await;
    other.query_drop("COMMIT").await.expect("taken");

    let taken = taker.await.expect("no panic").expect("the server answers");
    assert!(taken.is_none(), "a second holder of the only permit");
}
