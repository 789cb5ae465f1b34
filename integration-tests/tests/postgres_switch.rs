//! A switch-over under a holder and a waiter, and calls that are stuck beside renewals.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::time::Duration;

use integration_tests::{Postgres, PostgresServer, until};
use postgres_support::*;

async fn start() -> PostgresServer {
    PostgresServer::start().await.expect("a server")
}

/// Waits until a count is what is wanted.
async fn counts(server: &PostgresServer, what: &str, sql: &str, wanted: &str) {
    until(what, SOON, || async {
        match server.sql(sql).await?.trim() {
            found if found == wanted => Ok(()),
            found => Err(integration_tests::Error::answer("count", found)),
        }
    })
    .await
    .expect(what);
}

const BELLS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";

/// The old primary lives, keeps its connections and takes no writes: what listens there hears nothing of the new one, where
/// everybody who waits with its bell would be passed over.
#[tokio::test(flavor = "multi_thread")]
async fn what_listens_moves_to_the_new_primary() {
    let old = start().await;
    let new = PostgresServer::start_with(Postgres {
        follows: Some(old.port()),
        ..Postgres::default()
    })
    .await
    .expect("a standby");
    let both = format!(
        "postgres://dlock@{},{}/dlock?connect_timeout=2s&waiter_lease=8s",
        old.addr(),
        new.addr()
    );
    let (one, other) = (client(&both).await, client(&both).await);
    let guard = lock(&one, "a").await;
    let waiting = waiter(&other, "a");
    let queued = "SELECT count(*) FROM dlock_waiters WHERE bell IS NOT NULL";
    counts(&old, "it waits and listens", queued, "1").await;
    let sent = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
    counts(&old, "the standby has it", sent, "1").await;
    for sql in [
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "SELECT pg_reload_conf()",
    ] {
        old.sql(sql).await.expect("read-only");
    }
    new.promote().await.expect("a primary");
    counts(&new, "it listens at the new one", BELLS, "1").await;
    let heard = "SELECT count(*) FROM dlock_waiters w, pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
        AND (l.classid::bigint << 32 | l.objid::bigint) = w.bell";
    counts(&new, "its place has the new bell", heard, "1").await;
    free(guard).await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    free(next.expect("the lock")).await;
}

/// Calls that wait for rows that somebody keeps have all connections; a renewal needs one all the same.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_do_not_wait_behind_calls_that_are_stuck() {
    let server = start().await;
    let locks = hasty(&with(&server.url(), "connections=2")).await;
    let guard = lock(&locks, "kept").await;
    let mut stranger = connection(&server.url()).await;
    let tx = stranger.transaction().await.expect("a transaction");
    let names: Vec<String> = (0..12).map(|n| format!("stuck {n}")).collect();
    for name in &names {
        let keep = "INSERT INTO dlock_locks (name) VALUES ($1)";
        tx.execute(keep, &[name]).await.expect("a row of its own");
    }
    let stuck: Vec<_> = names.iter().map(|name| waiter(&locks, name)).collect();
    let waits = "SELECT count(*) >= 2 FROM pg_stat_activity WHERE application_name = 'dlock' AND wait_event_type = 'Lock'";
    counts(&server, "both connections are taken", waits, "t").await;
    // Three leases: without a renewal it would be over.
    let lost = tokio::time::timeout(Duration::from_secs(9), guard.lost()).await;
    lost.expect_err("the hold was lost");
    assert!(guard.is_held());
    tx.rollback().await.expect("a rollback");
    for task in stuck {
        let taken = soon("the others", task).await.expect("no panic");
        free(taken.expect("the lock")).await;
    }
    free(guard).await;
}
