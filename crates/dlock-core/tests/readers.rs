//! Readers of one client that join a read hold of it (C21).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{Guard, LossReason, Order, Owner, Released, RwLock, Settings};
use futures::FutureExt;
use futures::future::join_all;

/// Time enough for as many readers as there may be.
fn joined() -> Settings {
    Settings::new()
        .lease(seconds(3))
        .readers_join(true)
        .local_time(Duration::MAX)
}

async fn read(lock: &RwLock) -> Guard {
    lock.read().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_reader_joins_without_a_trip() {
    let world = World::new();
    let (locks, control) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let first = read(&lock).await;
    control.cut();
    let second = read(&lock).await;
    let third = lock.try_read().await.unwrap().expect("a try joins too");
    control.heal();
    assert_eq!(first.token(), second.token(), "one hold, one token");
    assert_eq!(second.hold_count(), 1, "nobody counts the others");
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.passed_on, stats.held), (1, 2, 1));
    drop(third);
    assert_eq!(second.release().await.unwrap(), Released::Freed);
    assert!(first.is_held());
}

/// The store keeps the hold until the last of them has left, whoever came first (C1).
#[tokio::test(start_paused = true)]
async fn it_goes_back_with_the_last_of_them() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let other = world.client().rw_lock("x").unwrap();
    let (first, second) = (read(&lock).await, read(&lock).await);
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    assert!(other.try_write().await.unwrap().is_none());
    assert!(second.is_held());
    tokio::time::sleep(seconds(10)).await;
    assert!(second.is_held(), "it is renewed for whoever is left");
    assert!(other.try_write().await.unwrap().is_none());
    assert_eq!(second.release().await.unwrap(), Released::Freed);
    assert!(other.try_write().await.unwrap().is_some());
    assert_eq!(locks.stats().hold.count, 2);
}

#[tokio::test(start_paused = true)]
async fn readers_that_come_together_ask_the_store_once() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let writer = world.client().rw_lock("x").unwrap().write().await.unwrap();
    let reading = (0..50).map(|_| {
        let lock = lock.clone();
        tokio::spawn(async move { read(&lock).await })
    });
    let reading = join_all(reading.collect::<Vec<_>>());
    tokio::time::sleep(millis(50)).await;
    assert_eq!(writer.release().await.unwrap(), Released::Freed);
    let guards: Vec<_> = reading.await.into_iter().map(Result::unwrap).collect();
    assert!(guards.iter().all(Guard::is_held));
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.passed_on), (1, 49));
}

#[tokio::test(start_paused = true)]
async fn all_of_them_hear_of_a_loss() {
    let world = World::new();
    let (locks, control) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let (first, second) = (read(&lock).await, read(&lock).await);
    control.cut();
    assert_eq!(second.lost().await, LossReason::Expired);
    assert!(!first.is_held() && !second.is_held());
    assert_eq!(first.lost().now_or_never(), Some(LossReason::Expired));
    control.heal();
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(second.release().await.unwrap(), Released::AlreadyLost);
    let after = read(&lock).await;
    assert!(after.is_held(), "nobody joins a hold that is lost");
}

/// Others wait no longer than the bound says.
#[tokio::test(start_paused = true)]
async fn nobody_joins_once_the_time_has_passed() {
    let world = World::new();
    let (locks, _) = world.client_with(joined().local_time(millis(5)));
    let lock = locks.rw_lock("x").unwrap();
    let first = read(&lock).await;
    tokio::time::sleep(millis(6)).await;
    let second = read(&lock).await;
    assert_ne!(first.token(), second.token());
    assert_eq!(locks.stats().acquired, 2);
}

#[tokio::test(start_paused = true)]
async fn no_more_join_than_the_turns() {
    let world = World::new();
    let (locks, _) = world.client_with(joined().local_turns(3));
    let lock = locks.rw_lock("x").unwrap();
    for _ in 0..6 {
        drop(read(&lock).await);
    }
    // Each left before the next came, so there was nothing to join.
    assert_eq!(locks.stats().acquired, 6);
    let guards = [read(&lock).await, read(&lock).await, read(&lock).await];
    assert_eq!(locks.stats().acquired, 7);
    let fourth = read(&lock).await;
    assert_ne!(fourth.token(), guards[0].token());
    assert_eq!(locks.stats().acquired, 8);
}

/// A writer of the same client waits at the store, and readers wait behind it (C19).
#[tokio::test(start_paused = true)]
async fn nobody_joins_past_a_writer() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let first = read(&lock).await;
    let writing = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.unwrap() }
    });
    tokio::time::sleep(millis(10)).await;
    let mut reading = std::pin::pin!(lock.read());
    assert!(
        tokio::time::timeout(millis(100), &mut reading)
            .await
            .is_err()
    );
    let _ = first.release().await.unwrap();
    let writer = writing.await.unwrap();
    assert!((&mut reading).now_or_never().is_none());
    let _ = writer.release().await.unwrap();
    assert!(reading.await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn owners_other_settings_and_closed_clients_have_holds_of_their_own() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let first = read(&lock).await;
    let owned = lock.clone().owned_by(Owner::new());
    let (second, again) = (read(&owned).await, read(&owned).await);
    assert_ne!(second.token(), first.token());
    assert_eq!((second.hold_count(), again.token()), (2, second.token()));
    let labelled = locks.with(joined().label("another")).unwrap();
    let labelled = labelled.rw_lock("x").unwrap();
    assert_ne!(read(&labelled).await.token(), first.token());
    locks.close().await.unwrap();
    assert!(lock.read().await.is_err());
}

/// A future that is dropped while it waits to join leaves nothing (C13).
#[tokio::test(start_paused = true)]
async fn one_that_gives_up_while_it_waits_leaves_nothing() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let other = world.client().rw_lock("x").unwrap();
    let writer = other.write().await.unwrap();
    let first = tokio::spawn({
        let lock = lock.clone();
        async move { read(&lock).await }
    });
    tokio::time::sleep(millis(1)).await;
    let second = tokio::time::timeout(millis(20), lock.read()).await;
    assert!(second.is_err());
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let _ = writer.release().await.unwrap();
    tokio::time::sleep(millis(100)).await;
    assert!(other.try_write().await.unwrap().is_some());
    assert_eq!(locks.stats().held, 0);
}

/// Whoever breaks a lock lets nobody into what was broken (C1).
#[tokio::test(start_paused = true)]
async fn nobody_joins_a_hold_that_its_client_has_broken() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let _first = read(&lock).await;
    assert!(locks.break_lock("x").await.unwrap());
    let other = world.client().rw_lock("x").unwrap();
    let writer = other.try_write().await.unwrap().expect("it was broken");
    assert!(lock.try_read().await.unwrap().is_none());
    assert!(writer.is_held());
}

/// A loss after the release is no loss of the one who has left (C9), whoever that was; a loss before it is.
#[tokio::test(start_paused = true)]
async fn a_reader_that_has_left_hears_of_no_loss() {
    for host_leaves in [true, false] {
        let world = World::new();
        let (locks, control) = world.client_with(joined());
        let lock = locks.rw_lock("x").unwrap();
        let (host, guest) = (read(&lock).await, read(&lock).await);
        let (leaves, stays) = if host_leaves {
            (host, guest)
        } else {
            (guest, host)
        };
        let (signal, watched) = (leaves.loss_signal(), leaves.loss_signal());
        let watching = tokio::spawn(async move { watched.wait().await });
        tokio::time::sleep(millis(1)).await;
        assert_eq!(leaves.release().await.unwrap(), Released::Freed);
        assert_eq!(watching.await.unwrap(), None, "who watches is told at once");
        control.cut();
        assert_eq!(stays.lost().await, LossReason::Expired);
        assert_eq!(signal.wait().now_or_never(), Some(None));
        let late = stays.loss_signal();
        drop(stays);
        assert_eq!(late.wait().now_or_never(), Some(Some(LossReason::Expired)));
    }
}

/// A future that is polled once and never again keeps others waiting no longer than a trip.
#[tokio::test(start_paused = true)]
async fn a_reader_does_not_wait_for_one_that_nobody_polls() {
    let world = World::new();
    let (locks, control) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    control.delay_replies(millis(5));
    let mut never_again = std::pin::pin!(lock.read());
    assert!((&mut never_again).now_or_never().is_none());
    let second = tokio::time::timeout(seconds(6), lock.read()).await;
    assert!(second.expect("the trip time-out is 5 s").unwrap().is_held());
}

/// A writer in strict order stands in no line of the client.
#[tokio::test(start_paused = true)]
async fn nobody_joins_past_a_writer_in_strict_order() {
    let world = World::new();
    let (locks, _) = world.client_with(joined());
    let lock = locks.rw_lock("x").unwrap();
    let first = read(&lock).await;
    let strict = Settings::new().readers_join(false).order(Order::Strict);
    let strict = locks.with(strict).unwrap().rw_lock("x").unwrap();
    let writing = tokio::spawn(async move { strict.write().await.unwrap() });
    tokio::time::sleep(millis(10)).await;
    assert!(lock.try_read().await.unwrap().is_none());
    let _ = first.release().await.unwrap();
    assert!(writing.await.unwrap().is_held());
}
