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
    waiter_outlives_a_row_that_is_busy_for_long,
    release_has_the_row_of_the_mark_before_it_gives_the_lock_back,
    busy_row_of_a_free_lock_keeps_nobody_for_longer_than_they_wait,
);

/// The server has granted the lock to the first who waits, but for longer than a statement waits for a row it cannot write its mark. If it let
/// go of the lock meanwhile and went on, it would count the time of the second one, or hold beside it.
async fn waiter_that_meets_a_busy_row_keeps_the_lock_that_it_was_granted(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let mut watcher = connection(&url).await;
    let clients = [client(&url).await, client(&url).await];
    let name = name_at_the_server(&mut watcher, &url, "busy").await;

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
        let first = owner_at_the_server(&mut watcher, &name).await;
        // A statement waits for a row for a second.
        tokio::time::sleep(Duration::from_millis(1400)).await;
        let later = owner_at_the_server(&mut watcher, &name).await;
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

/// A stranger locks the rows of all marks.
async fn lock_rows(stranger: &mut Conn) {
    for statement in [
        "START TRANSACTION",
        "SELECT 1 FROM dlock_advisory_marks FOR UPDATE",
    ] {
        stranger.query_drop(statement).await.expect("locked");
    }
}

/// However often it looks at a mark that somebody keeps locked, that is no trouble: the mark does not change.
async fn waiter_outlives_a_row_that_is_busy_for_long(flavor: Flavor) {
    /// As long as a mark is looked at as often as one that others change may be, and longer.
    const BUSY: Duration = Duration::from_secs(24);
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let locks = impatient(&url).await;
    for name in ["left", "died"] {
        free(lock(&locks, name).await).await;
    }
    let mut stranger = connection(&url).await;
    let died = "UPDATE dlock_advisory_marks SET stamp = stamp + 1, owner = REPEAT('d', 16), valid_us = 1000000 WHERE name = 'died'";
    stranger.query_drop(died).await.expect("changed");
    lock_rows(&mut stranger).await;
    let waiters = ["left", "died"].map(|name| waiter(&locks, name));
    tokio::time::sleep(BUSY).await;
    stranger.query_drop("ROLLBACK").await.expect("let go");
    for waiter in waiters {
        let guard = soon("a waiter", waiter).await.expect("no panic");
        free(guard.expect("no trouble is told")).await;
    }
}

/// Whoever is granted the lock waits for that row, and so for the commit. If the lock were free before, a try would find it so with a mark that nobody
/// is about to clear, and count the time of a holder that has left in order.
async fn release_has_the_row_of_the_mark_before_it_gives_the_lock_back(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let mut watcher = connection(&url).await;
    let locks = client(&url).await;
    let name = name_at_the_server(&mut watcher, &url, "busy").await;
    // A machine that stands still in between shows nothing, and the scene is played again.
    for _ in 0..10 {
        let guard = lock(&locks, "busy").await;
        let holder = owner_at_the_server(&mut watcher, &name).await;
        assert!(holder.is_some(), "nobody has the lock");
        let mut stranger = connection(&url).await;
        lock_rows(&mut stranger).await;
        let start = Instant::now();
        let release = tokio::spawn(guard.release());
        let mut owners = Vec::new();
        while start.elapsed() < Duration::from_millis(500) {
            owners.push(owner_at_the_server(&mut watcher, &name).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A statement waits for a row for a second.
        let is_proof = start.elapsed() < Duration::from_millis(900);
        stranger.query_drop("ROLLBACK").await.expect("let go");
        let released = soon("the release", release).await.expect("no panic");
        assert_eq!(released.expect("it answers"), Released::Freed);
        if is_proof {
            assert!(
                owners.iter().all(|owner| *owner == holder),
                "{holder:?}: {owners:?}"
            );
            return;
        }
    }
    panic!("the machine was never quick enough to see it");
}
