//! Whoever stands in line for a lock, in place of a try, hears whether others have it (C4, C5).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Locks;
use integration_tests::Flavor;
use mysql_support::*;
use tokio::sync::Barrier;

on_both!(
    of_many_who_stand_in_line_at_once_each_hears_that_another_has_the_lock,
    lock_that_was_waited_for_is_taken_once_and_free_after_one_release,
);

/// Asks for the lock when all others do, for no longer than `patience`; whoever gets it keeps it until the others have given up.
async fn asks_with_all(locks: &Locks, name: &str, all: &Barrier, patience: Duration) -> bool {
    let mutex = locks.mutex(name).expect("a name");
    all.wait().await;
    let got = mutex.lock_within(patience).await;
    let got = got.expect("a lock that others have is busy, and no trouble");
    let Some(guard) = got else {
        return false;
    };
    tokio::time::sleep(patience * 5 / 2).await;
    free(guard).await;
    true
}

/// The locks are free when they ask, so they race for them. Who has lost must not take the server's silence for a store that does not answer.
async fn of_many_who_stand_in_line_at_once_each_hears_that_another_has_the_lock(flavor: Flavor) {
    const CLIENTS: usize = 8;
    const NAMES: [&str; 4] = ["race 1", "race 2", "race 3", "race 4"];
    const PATIENCE: Duration = Duration::from_millis(250);
    let server = flavor.start().await.expect("a server");
    for (mode, rounds) in [("advisory", 40), ("session", 5)] {
        let url = url(&server, mode);
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(client(&url).await);
        }
        // Who has been in vain lately stands in line.
        for name in NAMES {
            let guard = lock(&client(&url).await, name).await;
            let tried = clients.iter().map(async |locks| {
                let mutex = locks.mutex(name).expect("a name");
                mutex.lock_within(PATIENCE).await
            });
            for tried in futures::future::join_all(tried).await {
                assert!(tried.expect("it answers").is_none(), "{mode}");
            }
            free(guard).await;
        }
        let all = Arc::new(Barrier::new(CLIENTS * NAMES.len()));
        for round in 0..rounds {
            let racing = NAMES.iter().flat_map(|name| {
                let all = &all;
                clients.iter().map(move |locks| {
                    let (locks, all) = (locks.clone(), all.clone());
                    tokio::spawn(async move { asks_with_all(&locks, name, &all, PATIENCE).await })
                })
            });
            let won = futures::future::join_all(racing).await;
            let won = won.into_iter().map(|won| won.expect("no panic"));
            let won = won.filter(|won| *won).count();
            assert_eq!(won, NAMES.len(), "{mode}: round {round}");
        }
    }
}

/// A named lock that a connection takes twice is not free after one release.
async fn lock_that_was_waited_for_is_taken_once_and_free_after_one_release(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "advisory");
    let mut watcher = connection(&url).await;
    let (holder, other) = (client(&url).await, client(&url).await);
    let name = name_at_the_server(&mut watcher, &url, "twice").await;

    let guard = lock(&holder, "twice").await;
    let waits = waiter(&other, "twice");
    tokio::time::sleep(Duration::from_millis(200)).await;
    free(guard).await;
    let guard = soon("the waiter", waits).await.expect("no panic");
    free(guard.expect("the lock")).await;
    let owner = owner_at_the_server(&mut watcher, &name).await;
    assert_eq!(owner, None, "of one that waited");

    // It knows that others lately had it, and stands in line for a lock that is free.
    free(lock(&other, "twice").await).await;
    let owner = owner_at_the_server(&mut watcher, &name).await;
    assert_eq!(owner, None, "of one that stood in line and was the first");
}
