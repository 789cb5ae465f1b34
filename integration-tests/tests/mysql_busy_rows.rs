//! A mark whose row somebody keeps locked: the locks of `advisory` go on as they should.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::Duration;

use dlock_core::Released;
use integration_tests::Flavor;
use mysql_async::prelude::Queryable;
use mysql_support::*;

on_both!(waiter_that_meets_a_busy_row_keeps_the_lock_that_it_was_granted);

/// The server has granted the lock to the first who waits, but for some seconds it cannot write its mark. If it let go of the lock meanwhile and
/// went on, the second one would hold beside it, or lose its hold to it.
async fn waiter_that_meets_a_busy_row_keeps_the_lock_that_it_was_granted(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let first = client(&url).await;
    let held = lock(&first, "busy").await;
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let locks = client(&url).await;
        waiting.push(tokio::spawn(async move {
            let guard = locks.mutex("busy").unwrap().lock().await.expect("its turn");
            // Two signs of life, of which each proves that the lock is where it should be.
            tokio::time::sleep(Duration::from_millis(2200)).await;
            assert!(guard.is_held(), "a hold was lost that nobody broke");
            guard.release().await.expect("the server answers")
        }));
        // One behind the other.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let mut other = connection(&url).await;
    other.query_drop("START TRANSACTION").await.expect("begun");
    other
        .query_drop("SELECT 1 FROM dlock_advisory_marks WHERE name = 'busy' FOR UPDATE")
        .await
        .expect("locked");
    let release = tokio::spawn(held.release());
    // Longer than a statement waits for a row, for the release and then for the waiter.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    other.query_drop("ROLLBACK").await.expect("let go");
    let _ = release.await.expect("no panic");
    for waiter in waiting {
        let released = soon("a waiter", waiter).await.expect("no panic");
        assert_eq!(released, Released::Freed);
    }
}
