//! A mark whose row somebody keeps locked: the locks of `advisory` go on as they should.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::{Duration, Instant};

use dlock_core::Released;
use integration_tests::Flavor;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use mysql_support::*;

on_both!(
    waiter_that_meets_a_busy_row_keeps_the_lock_that_it_was_granted,
    busy_row_of_a_free_lock_keeps_nobody_for_longer_than_they_wait,
);

/// What the server calls the lock of the last cycle.
async fn name_at_the_server(watcher: &mut Conn) -> String {
    let said = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log \
        WHERE command_type = 'Execute' AND argument LIKE '%GET_LOCK(%' ORDER BY event_time DESC LIMIT 1";
    let said: Option<String> = watcher.query_first(said).await.expect("the log");
    let said = said.expect("it was taken");
    let (_, rest) = said.split_once(" GET_LOCK('").expect("its name");
    rest.split('\'').next().expect("its end").to_owned()
}

/// Which connection has it.
async fn owner(watcher: &mut Conn, lock: &str) -> Option<u64> {
    let asked = format!("SELECT IS_USED_LOCK('{lock}')");
    let owner: Option<Option<u64>> = watcher.query_first(asked).await.expect("an answer");
    owner.flatten()
}

/// The server has granted the lock to the first who waits, but for longer than a statement waits for a row it cannot write its mark. If it let
/// go of the lock meanwhile and went on, it would count the time of the second one, or hold beside it.
async fn waiter_that_meets_a_busy_row_keeps_the_lock_that_it_was_granted(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let mut watcher = connection(&url).await;
    for statement in ["log_output = 'TABLE'", "general_log = ON"] {
        let set = format!("SET GLOBAL {statement}");
        watcher.query_drop(set).await.expect("set");
    }
    let clients = [client(&url).await, client(&url).await];
    free(lock(&clients[0], "busy").await).await;
    let name = name_at_the_server(&mut watcher).await;
    watcher
        .query_drop("SET GLOBAL general_log = OFF")
        .await
        .expect("set");

    // A machine that stands still in between shows nothing, and the scene is played again.
    for _ in 0..10 {
        let (mut stranger, mut other) = (connection(&url).await, connection(&url).await);
        let taken = format!("SELECT GET_LOCK('{name}', 5)");
        assert_eq!(
            stranger.query_first(taken).await.expect("an answer"),
            Some(1)
        );
        let mut waiting = Vec::new();
        for locks in clients.clone() {
            waiting.push(tokio::spawn(async move {
                let guard = lock(&locks, "busy").await;
                guard.release().await.expect("the server answers")
            }));
            // One behind the other.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        other.query_drop("START TRANSACTION").await.expect("begun");
        other
            .query_drop("SELECT 1 FROM dlock_advisory_marks WHERE name = 'busy' FOR UPDATE")
            .await
            .expect("locked");
        let freed = format!("DO RELEASE_LOCK('{name}')");
        stranger.query_drop(freed).await.expect("freed");
        let start = Instant::now();
        let first = owner(&mut watcher, &name).await;
        // A statement waits for a row for a second.
        tokio::time::sleep(Duration::from_millis(1400)).await;
        let later = owner(&mut watcher, &name).await;
        let is_proof = start.elapsed() < Duration::from_millis(1800);
        other.query_drop("ROLLBACK").await.expect("let go");
        for waiter in waiting {
            let released = soon("a waiter", waiter).await.expect("no panic");
            assert_eq!(released, Released::Freed);
        }
        if is_proof {
            assert!(first.is_some(), "the lock was granted to nobody");
            assert_eq!(later, first, "the lock was let go of");
            return;
        }
    }
    panic!("the machine was never quick enough to see it");
}

/// Nobody holds the lock, and its mark cannot be written: to a try, and to whoever has waited as long as they will, that is a lock that is busy.
async fn busy_row_of_a_free_lock_keeps_nobody_for_longer_than_they_wait(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let locks = client(&url).await;
    free(lock(&locks, "busy").await).await;
    let mut other = connection(&url).await;
    other.query_drop("START TRANSACTION").await.expect("begun");
    other
        .query_drop("SELECT 1 FROM dlock_advisory_marks WHERE name = 'busy' FOR UPDATE")
        .await
        .expect("locked");
    let mutex = locks.mutex("busy").expect("a name");
    let tried = soon("a try", mutex.try_lock()).await;
    assert!(tried.expect("no trouble is told").is_none());
    // As long as three statements wait for a row.
    let waited = mutex.lock_within(Duration::from_millis(3_500));
    let waited = soon("a wait with an end", waited).await;
    assert!(waited.expect("no trouble is told").is_none());
    other.query_drop("ROLLBACK").await.expect("let go");
    free(lock(&locks, "busy").await).await;
}
