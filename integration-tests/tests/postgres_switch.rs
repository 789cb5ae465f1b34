//! A switch-over under a holder and a waiter, and calls that are stuck beside renewals.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dlock_core::{Locks, Settings};
use integration_tests::{Direction, FaultProxy, Postgres, PostgresServer, until};
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

/// Calls that give up one after the other must not leave a connection each that is still being made.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_server_gets_no_more_connections_than_were_promised() {
    const MOST: usize = 4;
    let server = start().await;
    for mode in ["lease", "session"] {
        let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
        let through = format!(
            "postgres://dlock@{}/dlock?mode={mode}&connections={MOST}&max_sessions={MOST}&connect_timeout=4s",
            proxy.addr()
        );
        let locks = Locks::builder(backend(&through).await)
            .settings(Settings::new().trip_timeout(Duration::from_millis(100)))
            .build()
            .expect("settings");
        free(lock(&locks, "warm").await).await;
        proxy.black_hole(Direction::Both);
        let end = Instant::now() + Duration::from_secs(3);
        let calls = (0..3 * MOST).map(|n| {
            let mutex = locks.mutex(format!("stalled {n}")).expect("a name");
            async move {
                while Instant::now() < end {
                    let tried = mutex.try_lock().await;
                    tried.expect_err("nobody answers");
                    // Where all sessions are taken, that is told at once.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        let port = proxy.addr().port();
        let looks = async {
            let (mut most, mut before) = (0, HashSet::new());
            while Instant::now() < end {
                let now = sockets_to(port);
                // One that is being closed is gone soon.
                most = most.max(now.intersection(&before).count());
                before = now;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            most
        };
        let (_, most) = tokio::join!(futures::future::join_all(calls), looks);
        // Calls share some, and holders and waiters have their own.
        let promised = if mode == "lease" { MOST } else { 2 * MOST };
        assert!(most <= promised, "{mode}: {most} for {promised}");
        proxy.heal().await;
        free(lock(&locks, "warm").await).await;
    }
}

/// The connections that this process has, or is making, to a port of this machine, by their own port.
fn sockets_to(port: u16) -> HashSet<String> {
    const CLOSED_BY_US: [&str; 6] = ["04", "05", "06", "07", "09", "0B"];
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's list");
    let end = format!(":{port:04X}");
    let mut found = HashSet::new();
    for line in table.lines() {
        let mut fields = line.split_whitespace().skip(1).map(str::to_owned);
        let (Some(from), Some(to), Some(state)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if to.ends_with(&end) && !CLOSED_BY_US.contains(&state.as_str()) {
            found.insert(from);
        }
    }
    found
}
