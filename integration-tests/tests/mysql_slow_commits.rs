//! A server whose commits stand still for a while, as those do that wait for a replica or a disk: the locks of `advisory` go on as they should.
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

/// Longer than two statements wait for a row, one after the other.
const STALL: Duration = Duration::from_millis(2_600);

/// Statements go on, and their commits do not.
async fn stop_commits(admin: &mut Conn) {
    for stage in ["START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT"] {
        let sql = format!("BACKUP STAGE {stage}");
        admin.query_drop(sql).await.expect("MariaDB has this");
    }
}

async fn let_commits_go_on(admin: &mut Conn) {
    admin.query_drop("BACKUP STAGE END").await.expect("begun");
}

/// How many connections have a lock of ours, or wait for one.
async fn waiting(admin: &mut Conn) -> u64 {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'User lock%'";
    let count: Option<u64> = admin.query_first(sql).await.expect("an answer");
    count.expect("a number")
}

/// A release frees the lock and clears its mark in one statement, and until that is committed nobody else can write to the mark. Who has the lock
/// by then waits for that, and is not told of a store in trouble.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_outlives_a_release_whose_commit_takes_long() {
    let server = Flavor::MariaDb.start().await.expect("a server");
    let url = with(&server.url(), "mode=advisory&session_validity=30s");
    let mut admin = connection(&url).await;
    let (holder, other) = (client(&url).await, impatient(&url).await);
    let guard = lock(&holder, "slow").await;
    let waiter = waiter(&other, "slow");
    soon("a waiter", async {
        while waiting(&mut admin).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    stop_commits(&mut admin).await;
    let release = tokio::spawn(free(guard));
    tokio::time::sleep(STALL).await;
    let_commits_go_on(&mut admin).await;
    soon("the release", release).await.expect("it was freed");
    let guard = soon("the lock", waiter).await.expect("no panic");
    free(guard.expect("no trouble is told")).await;
}

/// Nobody waits, so a try is granted the lock that the release has let go of, and finds the mark of it locked.
#[tokio::test(flavor = "multi_thread")]
async fn try_behind_a_release_whose_commit_takes_long_is_busy() {
    let server = Flavor::MariaDb.start().await.expect("a server");
    let url = with(&server.url(), "mode=advisory&session_validity=30s");
    let mut admin = connection(&url).await;
    let (holder, other) = (client(&url).await, impatient(&url).await);
    // Its connection is there.
    free(lock(&other, "slow").await).await;
    let guard = lock(&holder, "slow").await;

    stop_commits(&mut admin).await;
    let release = tokio::spawn(free(guard));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let tried = other.mutex("slow").expect("a name").try_lock().await;
    let_commits_go_on(&mut admin).await;
    assert!(tried.expect("no trouble is told").is_none());
    soon("the release", release).await.expect("it was freed");
    free(lock(&other, "slow").await).await;
}

/// Whoever was granted the lock keeps it and waits for the row of the mark, also with less patience for an answer than the server has for a row.
#[tokio::test(flavor = "multi_thread")]
async fn impatient_waiters_outlive_a_release_whose_commit_takes_long_and_keep_their_order() {
    /// Longer than their patience, and than one statement waits for a row.
    const STALL: Duration = Duration::from_millis(1_200);
    let server = Flavor::MariaDb.start().await.expect("a server");
    let url = with(&server.url(), "mode=advisory&session_validity=30s");
    let mut admin = connection(&url).await;
    let holder = client(&url).await;
    let hasty = with(&url, "answer_timeout=800ms");
    let others = [impatient(&hasty).await, impatient(&hasty).await];
    let guard = lock(&holder, "slow").await;
    let (tell, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for (number, locks) in others.iter().enumerate() {
        let (mutex, tell) = (locks.mutex("slow").expect("a name"), tell.clone());
        waiters.push(tokio::spawn(async move {
            let guard = mutex.lock().await.expect("no trouble is told");
            tell.send(number).expect("somebody listens");
            free(guard).await;
        }));
        soon("a waiter", async {
            while waiting(&mut admin).await <= number as u64 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    stop_commits(&mut admin).await;
    let release = tokio::spawn(free(guard));
    tokio::time::sleep(STALL).await;
    let_commits_go_on(&mut admin).await;
    soon("the release", release).await.expect("it was freed");
    for waiter in waiters {
        soon("the lock", waiter).await.expect("no panic");
    }
    let order = [order.recv().await, order.recv().await];
    assert_eq!(order, [Some(0), Some(1)]);
}
