//! How a release of mode `lease` and `unique` wakes one that waits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::{Duration, Instant};

use dlock_core::{Guard, Locks, Settings};
use integration_tests::{Flavor, MySqlServer};
use mysql_support::{client, connections, free, kill, lock, soon, url, waiter, with};

on_both! {
    release_wakes_the_next_one,
    waiter_that_gives_up_does_not_keep_the_bell,
    killed_holder_does_not_keep_the_bell,
    names_beyond_the_bells_are_asked_for,
    readers_behind_a_writer_all_get_in,
}

/// Who queues for a bell asks by itself every 2 s at the soonest: what comes within this time was woken.
const WOKEN: Duration = Duration::from_millis(1500);

/// Until so many tasks of a client wait at the store.
async fn waits(locks: &Locks, tasks: u64) {
    soon("they wait", async {
        while locks.stats().waiting < tasks {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The first question, and the place in the queue.
        tokio::time::sleep(Duration::from_millis(300)).await;
    })
    .await;
}

/// Two clients, of whom the first has seen that the second waits for its lock, and holds it again.
async fn contended(server: &MySqlServer, mode: &str) -> (Locks, Locks, Guard) {
    let url = url(server, mode);
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let guard = lock(&ours, "bell").await;
    let waits_for_it = waiter(&theirs, "bell");
    waits(&theirs, 1).await;
    free(guard).await;
    let got = soon("the first hand-over", waits_for_it).await;
    let guard = got.expect("no panic").expect("the lock");
    let again = waiter(&ours, "bell");
    waits(&ours, 1).await;
    free(guard).await;
    let got = soon("the second hand-over", again).await;
    (ours, theirs, got.expect("no panic").expect("the lock"))
}

async fn release_wakes_the_next_one(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in ["lease", "unique"] {
        let (_ours, theirs, guard) = contended(&server, mode).await;
        let waits_for_it = waiter(&theirs, "bell");
        waits(&theirs, 1).await;
        let released = Instant::now();
        free(guard).await;
        let got = soon("the lock", waits_for_it).await.expect("no panic");
        let took = released.elapsed();
        assert!(took < WOKEN, "{mode}: it took {took:?}");
        free(got.expect("the lock")).await;
    }
}

async fn waiter_that_gives_up_does_not_keep_the_bell(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in ["lease", "unique"] {
        let (_ours, theirs, guard) = contended(&server, mode).await;
        let gives_up = waiter(&theirs, "bell");
        waits(&theirs, 1).await;
        let third = client(&url(&server, mode)).await;
        let stays = waiter(&third, "bell");
        waits(&third, 1).await;
        gives_up.abort();
        let _ = gives_up.await;
        // The server has to notice that a connection has ended that waits for a bell.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let released = Instant::now();
        free(guard).await;
        let got = soon("the lock", stays).await.expect("no panic");
        let took = released.elapsed();
        assert!(took < WOKEN, "{mode}: it took {took:?}");
        free(got.expect("the lock")).await;
    }
}

async fn killed_holder_does_not_keep_the_bell(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in ["lease", "unique"] {
        let (_ours, theirs, guard) = contended(&server, mode).await;
        // All of them: the holder's bell goes too, and the hold stays, as it is a row.
        kill(&server, &connections(&server).await).await;
        let waits_for_it = waiter(&theirs, "bell");
        waits(&theirs, 1).await;
        assert!(guard.is_held(), "{mode}");
        let released = Instant::now();
        free(guard).await;
        let got = soon("the lock", waits_for_it).await.expect("no panic");
        let took = released.elapsed();
        assert!(took < WOKEN, "{mode}: it took {took:?}");
        free(got.expect("the lock")).await;
    }
}

async fn names_beyond_the_bells_are_asked_for(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for (mode, bells) in [("lease", 1), ("unique", 1), ("lease", 0)] {
        let url = with(&url(&server, mode), &format!("bells={bells}"));
        let (ours, theirs) = (client(&url).await, client(&url).await);
        let (one, two) = (lock(&ours, "one").await, lock(&ours, "two").await);
        let waiting = [waiter(&theirs, "one"), waiter(&theirs, "two")];
        waits(&theirs, 2).await;
        free(one).await;
        free(two).await;
        for waited in waiting {
            let got = soon("the lock", waited).await.expect("no panic");
            free(got.expect("the lock")).await;
        }
    }
}

/// A reader that got in must not keep the bell, or the others would wait until it has read.
async fn readers_behind_a_writer_all_get_in(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "lease");
    let writer = client(&url).await;
    let room = writer.rw_lock("room").expect("a name");
    let guard = soon("to write", room.write()).await.expect("the lock");
    let mut readers = Vec::new();
    for _ in 0..4 {
        let locks = client(&url).await;
        let locks = locks
            .with(Settings::new().lease(Duration::from_secs(60)))
            .expect("settings");
        let room = locks.rw_lock("room").expect("a name");
        readers.push(tokio::spawn(async move { room.read().await }));
        waits(&locks, 1).await;
    }
    free(guard).await;
    let mut reading = Vec::new();
    for reader in readers {
        let got = soon("to read", reader).await.expect("no panic");
        reading.push(got.expect("a part of the lock"));
    }
    for guard in reading {
        free(guard).await;
    }
}
