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

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Outcome, Request};
use dlock_core::{Guard, HeldNow, Locks, Mode, Name, Settings, SystemClock};
use integration_tests::{Flavor, MySqlServer};
use mysql_support::relay::Relay;
use mysql_support::{backend, client, connections, free, kill, lock, soon, url, waiter, with};

on_both! {
    release_wakes_the_next_one,
    waiter_that_gives_up_does_not_keep_the_bell,
    killed_holder_does_not_keep_the_bell,
    names_beyond_the_bells_are_asked_for,
    readers_behind_a_writer_all_get_in,
    broken_holder_does_not_keep_the_bell,
    long_lease_does_not_let_the_bell_go,
    release_of_unique_that_was_interrupted_is_in_doubt,
}

/// Whoever queues for a bell asks by itself after 0.6 to 1.2 s, so about 0.5 s after a release: what comes within this time again and again was woken.
const WOKEN: Duration = Duration::from_millis(200);
/// How often that is tried.
const ROUNDS: u32 = 5;
/// Within this time a waiter gets in, woken or not.
const GETS_IN: Duration = Duration::from_millis(1500);

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
        let (ours, theirs, mut guard) = contended(&server, mode).await;
        let (mut waits_here, mut waits_there) = (&theirs, &ours);
        let mut took = Duration::ZERO;
        for _ in 0..ROUNDS {
            let waits_for_it = waiter(waits_here, "bell");
            waits(waits_here, 1).await;
            let released = Instant::now();
            free(guard).await;
            let got = soon("the lock", waits_for_it).await.expect("no panic");
            took += released.elapsed();
            guard = got.expect("the lock");
            std::mem::swap(&mut waits_here, &mut waits_there);
        }
        free(guard).await;
        assert!(took < ROUNDS * WOKEN, "{mode}: it took {took:?}");
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
        assert!(took < GETS_IN, "{mode}: it took {took:?}");
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
        assert!(took < GETS_IN, "{mode}: it took {took:?}");
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

/// Of the client whose hold was broken nothing is heard before its next renewal: whoever breaks a lock frees its bell too.
async fn broken_holder_does_not_keep_the_bell(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in ["lease", "unique"] {
        let (ours, theirs, mut guard) = contended(&server, mode).await;
        let admin = client(&url(&server, mode)).await;
        let (mut waits_here, mut waits_there) = (&theirs, &ours);
        let mut took = Duration::ZERO;
        for _ in 0..ROUNDS {
            let waits_for_it = waiter(waits_here, "bell");
            waits(waits_here, 1).await;
            let started = Instant::now();
            assert!(
                admin.break_lock("bell").await.expect("it answers"),
                "{mode}"
            );
            let got = soon("the lock", waits_for_it).await.expect("no panic");
            took += started.elapsed();
            guard = got.expect("the lock");
            std::mem::swap(&mut waits_here, &mut waits_there);
        }
        free(guard).await;
        assert!(took < ROUNDS * WOKEN, "{mode}: it took {took:?}");
    }
}

/// The server ends a connection that has a bell after some silence, and renewals can be further apart.
async fn long_lease_does_not_let_the_bell_go(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let url = url(&server, "lease");
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let theirs = theirs
        .with(Settings::new().lease(Duration::from_secs(120)))
        .expect("settings");
    let guard = lock(&ours, "long").await;
    let waits_for_it = waiter(&theirs, "long");
    waits(&theirs, 1).await;
    free(guard).await;
    let got = soon("the lock", waits_for_it).await.expect("no panic");
    let pings = async || -> u64 {
        let status = "SHOW GLOBAL STATUS LIKE 'Com_admin_commands'";
        let told = server.sql(status).await.expect("a status");
        let number = told.split_whitespace().last().expect("a number");
        number.parse().expect("a number")
    };
    let before = pings().await;
    // The hold has the bell, as it waited itself.
    soon("a sign of life", async {
        while pings().await == before {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    free(got.expect("the lock")).await;
}

/// A release of mode `unique` also asks who waits, by a second statement. When that one fails, the first has been carried out.
async fn release_of_unique_that_was_interrupted_is_in_doubt(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let relay = Relay::start(server.port(), "DELETE FROM").await;
    let direct = url(&server, "unique");
    let (from, to) = (server.port().to_string(), relay.port.to_string());
    let (ours, theirs) = (
        backend(&direct.replace(&from, &to)).await,
        client(&direct).await,
    );
    let name = Name::new("interrupted").expect("a name");
    let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
        .with_trip_timeout(Duration::from_secs(10))
        .with_lease(Duration::from_secs(60));
    let Outcome::Held(lease) = ours.try_acquire(&request).await.expect("an answer") else {
        panic!("it is free");
    };
    relay.arm();
    let released = soon("an answer", ours.release(&lease)).await;
    assert!(relay.has_interrupted());
    let error = released.expect_err("the second statement failed");
    assert_eq!(error.held_now(), HeldNow::Unknown, "{error}");
    free(lock(&theirs, "interrupted").await).await;
}
