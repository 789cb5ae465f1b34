//! What is left behind, and what is counted: tasks of rooms, attempts in doubt, releases that came late (C13, C16).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::task::Poll;

use common::{World, millis, seconds};
use dlock_core::{ErrorKind, Hearing, Released, Settings};
use futures::poll;
use tokio::runtime::Handle;

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn a_client_has_one_room_in_its_runtime_and_none_after_its_end() {
    let world = World::new();
    let before = tasks();
    let locks = world.client();
    let lock = locks.mutex("x").unwrap();
    for _ in 0..3 {
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(tasks(), before + 1);
    }
    drop((lock, locks));
    tokio::time::sleep(millis(1)).await;
    assert_eq!(tasks(), before);
}

#[tokio::test(start_paused = true)]
async fn a_try_comes_after_what_an_earlier_attempt_has_left() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let lock = locks.mutex("x").unwrap();
    control.delay_replies(millis(100));
    let mut first = Box::pin(lock.lock());
    assert!(poll!(first.as_mut()).is_pending());
    // The store has granted it, and nobody wants it any more.
    tokio::time::sleep(millis(1)).await;
    assert!(poll!(first.as_mut()).is_pending());
    assert_eq!(world.names(), 1);
    drop(first);
    control.heal();
    let guard = lock.try_lock().await.unwrap();
    assert!(
        guard.is_some(),
        "its own earlier attempt is no other holder"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_that_a_room_has_finished_meanwhile_is_unknown() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.hang();
    let mut release = Box::pin(guard.release());
    assert!(poll!(release.as_mut()).is_pending());
    // Nobody drives it for longer than its trip may take.
    tokio::time::sleep(millis(5300)).await;
    control.heal();
    world.until_free_after_an_outage("x").await;
    let told = release.await;
    assert!(
        matches!(told, Ok(Released::Unknown)),
        "it cannot know who has freed it: {told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_close_that_was_in_vain_is_not_taken_for_one_that_was_not() {
    let world = World::new();
    let settings = Settings::new()
        .trip_timeout(seconds(1))
        .retry_unreachable_for(seconds(1));
    let (locks, control) = world.client_with(settings);
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.hang();
    for _ in 0..2 {
        let error = locks.close().await.expect_err("nothing is confirmed");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    control.heal();
    locks.close().await.unwrap();
    drop(guard);
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_goes_back_after_a_loss_is_no_release() {
    let world = World::new();
    let locks = world.client_with(Settings::new().max_hold(millis(100))).0;
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    tokio::time::sleep(millis(200)).await;
    assert!(!guard.is_held());
    world.until_free("x").await;
    let stats = locks.stats();
    assert_eq!((stats.losses.max_hold, stats.released), (1, 0));
    let (locks, _) = world.client_with(Settings::new());
    drop(locks.mutex("y").unwrap().lock().await.unwrap());
    world.until_free("y").await;
    assert_eq!(locks.stats().released, 1, "a drop is one");
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_store_tells_of_needs_no_undo() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().lease(seconds(3)));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    world.control.expire("x");
    tokio::time::sleep(millis(1200)).await;
    assert!(!guard.is_held(), "a renewal has found nothing");
    assert_eq!(locks.stats().losses.gone, 1);
    control.hang();
    assert_eq!(locks.stats().in_doubt, 0);
    locks.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_gave_up_is_told_its_own_limit() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.hang();
    let lock = locks.mutex("x").unwrap();
    let error = lock.lock_within(millis(1234)).await.unwrap_err();
    assert!(error.to_string().contains("1.234s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn readers_who_were_not_told_to_join_ask_the_store_side_by_side() {
    let world = World::new();
    let (locks, backend) = world.altered(Settings::new(), Hearing::Never);
    backend
        .readers_hang
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let lock = locks.rw_lock("x").unwrap();
    let mut first = Box::pin(lock.read());
    let mut second = Box::pin(lock.read());
    assert!(poll!(first.as_mut()).is_pending());
    assert!(poll!(second.as_mut()).is_pending());
    backend
        .readers_hang
        .store(false, std::sync::atomic::Ordering::Relaxed);
    drop(first);
    backend.heals.notify_waiters();
    let Poll::Ready(guard) = poll!(second.as_mut()) else {
        panic!("it has asked for itself");
    };
    assert!(guard.unwrap().is_held());
}

/// Its label is what the store shows of a leader, so a hold with another one is no hold for it.
#[tokio::test(start_paused = true)]
async fn the_next_leader_of_one_client_is_seen_under_its_own_value() {
    let world = World::new();
    let election = world.client().election("leader").unwrap();
    let one = election.campaign("one").await.unwrap();
    let mut next = Box::pin(election.campaign("two"));
    assert!(poll!(next.as_mut()).is_pending());
    assert_eq!(one.release().await.unwrap(), Released::Freed);
    let two = next.await.unwrap();
    let leader = election.leader().await.unwrap().expect("elected");
    assert_eq!(&*leader.value, "two");
    assert!(two.is_held());
}
