//! A hold that its client keeps for a while after the release (C21), and a holder that hears of others (C23).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{ErrorKind, Guard, Mutex, Order, Owner, Released, Result, Settings};
use futures::FutureExt;
use tokio::task::JoinHandle;

fn lingers(time: Duration) -> Settings {
    Settings::new().lease(seconds(3)).linger(time)
}

fn token(guard: &Guard) -> u64 {
    guard.token().unwrap().get()
}

async fn waits(mutex: &Mutex) -> JoinHandle<Result<Guard>> {
    let mutex = mutex.clone();
    let task = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(millis(1)).await;
    task
}

#[tokio::test(start_paused = true)]
async fn the_next_acquire_costs_no_trip() {
    let world = World::new();
    let (locks, control) = world.client_with(lingers(seconds(1)));
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let before = token(&first);
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    control.cut();
    for turn in 1..=20 {
        let guard = mutex.lock().await.unwrap();
        assert!(guard.is_held());
        assert_eq!(token(&guard), before + turn, "each has its own");
        drop(guard);
    }
    let guard = mutex.try_lock().await.unwrap().expect("a try has it too");
    assert_eq!(token(&guard), before + 21);
    let _ = guard.release().await.unwrap();
    control.heal();
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.held), (1, 0));
}

/// As many turns as the grant has tokens, then the store is asked; others then get higher ones (C11).
#[tokio::test(start_paused = true)]
async fn tokens_increase_over_rests_and_grants() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(1)));
    let mutex = locks.mutex("x").unwrap();
    let mut last = 0;
    for _ in 0..200 {
        let guard = mutex.lock().await.unwrap();
        assert!(token(&guard) > last);
        last = token(&guard);
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
    }
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.passed_on), (4, 196));
    let theirs = world.client().mutex("x").unwrap().lock().await.unwrap();
    assert!(token(&theirs) > last);
}

#[tokio::test(start_paused = true)]
async fn it_goes_back_when_its_time_has_passed() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(millis(500)));
    let other = world.client().mutex("x").unwrap();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let _ = guard.release().await.unwrap();
    tokio::time::sleep(millis(490)).await;
    assert!(other.try_lock().await.unwrap().is_none(), "it lingers");
    tokio::time::sleep(millis(20)).await;
    assert!(other.try_lock().await.unwrap().is_some());
    assert_eq!(locks.stats().released, 1);
    assert_eq!(locks.stats().losses.total(), 0, "nobody lost anything");
}

/// A rest begins anew with each release, and is no longer than the settings say.
#[tokio::test(start_paused = true)]
async fn every_rest_has_the_whole_time() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(millis(500)));
    let mutex = locks.mutex("x").unwrap();
    let other = world.client().mutex("x").unwrap();
    for _ in 0..5 {
        let guard = mutex.lock().await.unwrap();
        tokio::time::sleep(millis(300)).await;
        let _ = guard.release().await.unwrap();
        tokio::time::sleep(millis(300)).await;
    }
    assert_eq!(locks.stats().acquired, 1);
    assert!(other.try_lock().await.unwrap().is_none());
    tokio::time::sleep(millis(210)).await;
    assert!(other.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn it_goes_back_at_once_when_somebody_else_waits() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    let mine = token(&guard);
    let _ = guard.release().await.unwrap();
    let started = tokio::time::Instant::now();
    let theirs = world.client().mutex("x").unwrap().lock().await.unwrap();
    assert!(started.elapsed() < millis(100), "{:?}", started.elapsed());
    assert!(token(&theirs) > mine);
    // And this client waits behind it, as ever.
    assert!(mutex.try_lock().await.unwrap().is_none());
    let next = waits(&mutex).await;
    assert!(!next.is_finished());
    drop(theirs);
    assert!(next.await.unwrap().unwrap().is_held());
}

/// Somebody began to wait while a task was in: the release gives the lock to them, and it does not rest.
#[tokio::test(start_paused = true)]
async fn a_lock_that_others_wait_for_does_not_rest() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    // It is listened to from the first rest on.
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    let theirs = waits(&world.client().mutex("x").unwrap()).await;
    tokio::time::sleep(millis(50)).await;
    assert!(guard.is_held());
    let started = tokio::time::Instant::now();
    let _ = guard.release().await.unwrap();
    assert!(theirs.await.unwrap().unwrap().is_held());
    assert!(started.elapsed() < millis(10));
}

/// The first rest of a hold for which somebody waits already: the listener finds them at once.
#[tokio::test(start_paused = true)]
async fn those_who_waited_before_the_first_rest_are_found() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let theirs = waits(&world.client().mutex("x").unwrap()).await;
    let started = tokio::time::Instant::now();
    let _ = guard.release().await.unwrap();
    assert!(theirs.await.unwrap().unwrap().is_held());
    assert!(started.elapsed() < millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_resting_hold_is_renewed_and_a_loss_is_nobodys() {
    let world = World::new();
    let (locks, control) = world.client_with(lingers(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    tokio::time::sleep(seconds(20)).await;
    assert!(
        world
            .client()
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none(),
        "renewed for many leases"
    );
    assert!(locks.stats().renewals >= 15);
    assert!(mutex.lock().await.unwrap().is_held());
    // Now the store is out of reach for longer than the lease: no task may be given what was lost.
    control.cut();
    tokio::time::sleep(seconds(4)).await;
    let theirs = world.client().mutex("x").unwrap().lock().await.unwrap();
    control.heal();
    assert!(mutex.try_lock().await.unwrap().is_none(), "theirs");
    assert!(theirs.is_held());
    assert_eq!(locks.stats().losses.total(), 0);
}

/// A hold whose renewal failed is not handed out again.
#[tokio::test(start_paused = true)]
async fn a_rest_in_trouble_ends() {
    let world = World::new();
    let (locks, control) = world.client_with(lingers(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    control.cut();
    tokio::time::sleep(millis(1200)).await;
    let error = mutex
        .try_lock()
        .await
        .expect_err("the store is out of reach");
    assert_ne!(error.kind(), ErrorKind::Busy);
    control.heal();
    let again = mutex.lock().await.unwrap();
    assert!(again.is_held());
    assert_eq!(locks.stats().acquired, 2);
}

#[tokio::test(start_paused = true)]
async fn other_settings_and_readers_end_the_rest() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let rest = async || {
        let _ = locks
            .mutex("x")
            .unwrap()
            .lock()
            .await
            .unwrap()
            .release()
            .await;
    };
    rest().await;
    let shorter = locks.with(lingers(seconds(30))).unwrap();
    let guard = shorter.mutex("x").unwrap().try_lock().await.unwrap();
    let _ = guard
        .expect("its own client's rest")
        .release()
        .await
        .unwrap();
    rest().await;
    let reader = locks.rw_lock("x").unwrap();
    let one = reader.read().await.unwrap();
    let two = reader.try_read().await.unwrap().expect("readers share");
    drop((one, two));
    rest().await;
    assert!(reader.try_read().await.unwrap().is_some());
    rest().await;
    let strict = Settings::new().order(Order::Strict).linger(Duration::ZERO);
    let strict = locks.with(strict).unwrap().mutex("x").unwrap();
    assert!(strict.lock().await.unwrap().is_held());
    rest().await;
    assert!(strict.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn close_and_the_end_of_the_client_give_it_back() {
    let world = World::new();
    let other = world.client().mutex("x").unwrap();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let _ = locks
        .mutex("x")
        .unwrap()
        .lock()
        .await
        .unwrap()
        .release()
        .await;
    locks.close().await.unwrap();
    assert!(other.try_lock().await.unwrap().is_some());
    // Without close: after the time to linger at the most.
    let (locks, _) = world.client_with(lingers(seconds(5)));
    let _ = locks
        .mutex("x")
        .unwrap()
        .lock()
        .await
        .unwrap()
        .release()
        .await;
    drop(locks);
    tokio::time::sleep(seconds(6)).await;
    assert!(other.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_broken_is_not_taken_up_again() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    let _ = mutex.lock().await.unwrap().release().await;
    locks.break_lock("x").await.unwrap();
    let theirs = world.client().mutex("x").unwrap().try_lock().await.unwrap();
    assert!(theirs.is_some());
    assert!(mutex.try_lock().await.unwrap().is_none());
}

/// What belongs to a guard is new with each: owner, longest hold, loss signal.
#[tokio::test(start_paused = true)]
async fn each_stay_is_its_own() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)).max_hold(seconds(2)));
    let owner = Owner::new();
    let mutex = locks.mutex("x").unwrap();
    let owned = mutex.clone().owned_by(owner);
    let first = owned.lock().await.unwrap();
    let signal = first.loss_signal();
    let _ = first.release().await.unwrap();
    assert_eq!(signal.wait().await, None, "released, not lost");
    // The owner is no longer in: this is a stay of its own, and the lock is not entered again.
    let second = mutex.lock().await.unwrap();
    assert!(owned.try_lock().await.unwrap().is_none());
    tokio::time::sleep(seconds(1)).await;
    let _ = second.release().await.unwrap();
    tokio::time::sleep(seconds(5)).await;
    let third = owned.lock().await.unwrap();
    assert!(third.remaining().unwrap() > millis(1900));
    let again = owned.lock().await.unwrap();
    assert_eq!(again.hold_count(), 2);
    drop(again);
    tokio::time::sleep(millis(2001)).await;
    assert!(!third.is_held(), "the longest hold counts for each");
    assert_eq!(locks.stats().acquired, 1);
}

#[tokio::test]
async fn a_store_without_tokens_to_spare_refuses() {
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new());
    for settings in [
        Settings::new().linger(seconds(1)).local_turns(1),
        Settings::new().linger(seconds(1)).order(Order::Strict),
    ] {
        let error = locks
            .with(settings)
            .expect_err("settings that exclude each other");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("linger"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_of_others() {
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new().lease(seconds(3)));
    let mutex = locks.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    assert!(guard.wanted().now_or_never().is_none());
    let theirs = waits(&world.client().mutex("x").unwrap()).await;
    tokio::time::timeout(millis(50), guard.wanted())
        .await
        .expect("told");
    drop(guard);
    let theirs = theirs.await.unwrap().unwrap();
    // A task of this client is somebody too.
    let guard = tokio::spawn(async move { theirs.wanted().await });
    let ours = waits(&mutex).await;
    tokio::time::timeout(millis(50), guard)
        .await
        .expect("told")
        .unwrap();
    drop(ours.await.unwrap().unwrap());
    let guard = mutex.lock().await.unwrap();
    let local = waits(&mutex).await;
    tokio::time::timeout(millis(50), guard.wanted())
        .await
        .expect("told");
    drop(guard);
    drop(local.await.unwrap().unwrap());
}

/// A word that was lost is made up for with a renewal.
#[tokio::test(start_paused = true)]
async fn a_holder_that_was_cut_off_hears_later() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().lease(seconds(3)));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.cut();
    let theirs = waits(&world.client().mutex("x").unwrap()).await;
    let mut wanted = std::pin::pin!(guard.wanted());
    assert!(tokio::time::timeout(millis(50), &mut wanted).await.is_err());
    control.heal();
    tokio::time::timeout(millis(1100), &mut wanted)
        .await
        .expect("told");
    drop(theirs);
}

/// An heir that went away at the last moment had not taken the hold up; what rests then is renewed all the same.
#[tokio::test(start_paused = true)]
async fn a_hold_that_an_heir_did_not_take_up_is_renewed_after_its_rest() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)).local_time(Duration::MAX));
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let mut heir = Box::pin(mutex.lock());
    assert!((&mut heir).now_or_never().is_none());
    drop(first);
    drop(heir);
    let guard = mutex.lock().await.unwrap();
    tokio::time::sleep(seconds(4)).await;
    assert!(guard.is_held());
    assert!(locks.stats().renewals > 0);
    assert_eq!(locks.stats().losses.total(), 0);
}

/// A task that asks after its own client has broken the lock asks the store, also when the holder was still in then.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_broken_under_a_task_does_not_rest() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    assert!(locks.break_lock("x").await.unwrap());
    let theirs = world.client().mutex("x").unwrap().try_lock().await.unwrap();
    let theirs = theirs.expect("free");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert!(mutex.try_lock().await.unwrap().is_none(), "two holders");
    assert!(theirs.is_held());
    drop(theirs);
    // What only rests counts as somebody who held it.
    let _ = mutex.lock().await.unwrap().release().await;
    assert!(locks.break_lock("x").await.unwrap());
}

/// Tasks of this client that stand in the store's own queue are waited for, whether the store tells of them or not.
#[tokio::test(start_paused = true)]
async fn a_lock_does_not_rest_while_a_strict_task_waits() {
    let world = World::new();
    let (locks, _) = world.shards(lingers(seconds(60)), Duration::ZERO);
    let strict = Settings::new().order(Order::Strict).linger(Duration::ZERO);
    let strict = locks.with(strict).unwrap().mutex("x").unwrap();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let waits = waits(&strict).await;
    let _ = guard.release().await.unwrap();
    let theirs = tokio::time::timeout(millis(100), waits).await;
    assert!(theirs.expect("at once").unwrap().unwrap().is_held());
}

/// A time limit is kept also when a rest has to be ended first, on a store that hangs (C4).
#[tokio::test(start_paused = true)]
async fn ending_a_rest_keeps_time_limits() {
    let world = World::new();
    let (locks, control) = world.client_with(lingers(seconds(60)).trip_timeout(seconds(1)));
    let mutex = locks.mutex("x").unwrap();
    let strict = Settings::new().order(Order::Strict).linger(Duration::ZERO);
    let strict = locks.with(strict).unwrap().mutex("x").unwrap();
    let other = locks
        .with(lingers(seconds(30)))
        .unwrap()
        .mutex("x")
        .unwrap();
    for waits in [true, false] {
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
        control.hang();
        let started = tokio::time::Instant::now();
        if waits {
            assert!(strict.lock_within(millis(100)).await.is_err());
            assert!(started.elapsed() < millis(200), "{:?}", started.elapsed());
        } else {
            assert!(other.try_lock().await.is_err());
            assert!(started.elapsed() < millis(1100), "{:?}", started.elapsed());
        }
        control.heal();
        tokio::time::sleep(seconds(5)).await;
    }
}

/// What a multi-lock gives back because it could not have all is for others.
#[tokio::test(start_paused = true)]
async fn members_that_a_multi_lock_gives_back_do_not_rest() {
    let world = World::new();
    let (locks, _) = world.client_with(lingers(seconds(60)));
    let other = world.client();
    let held = other.mutex("y").unwrap().lock().await.unwrap();
    let multi = locks.multi(["x", "y"]).unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    assert!(
        other
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_some()
    );
    drop(held);
}

/// Outside of a runtime nothing panics.
#[test]
fn outside_of_a_runtime_there_are_errors() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let (locks, guard) = runtime.block_on(async {
        let backend = dlock_memory::MemoryBackend::new();
        let locks = dlock_core::Locks::builder(std::sync::Arc::new(backend))
            .settings(lingers(seconds(60)))
            .build()
            .unwrap();
        let _ = locks
            .mutex("x")
            .unwrap()
            .lock()
            .await
            .unwrap()
            .release()
            .await;
        let guard = locks.mutex("y").unwrap().lock().await.unwrap();
        (locks, guard)
    });
    let error = locks
        .break_lock("x")
        .now_or_never()
        .expect("at once")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(guard.wanted().now_or_never().is_none());
}
