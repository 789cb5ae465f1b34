//! A hold that goes from task to task of one client without a trip to the store (C21).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{
    ErrorKind, Guard, Locks, LossReason, Mutex, Order, Owner, Released, Result, Settings,
};
use tokio::task::JoinHandle;

/// Turns enough, and time enough.
fn long() -> Settings {
    Settings::new()
        .lease(seconds(3))
        .local_turns(1000)
        .local_time(Duration::MAX)
}

/// A task that waits for the lock, in line when this returns.
async fn waits(mutex: &Mutex) -> JoinHandle<Result<Guard>> {
    let mutex = mutex.clone();
    let task = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(millis(1)).await;
    assert!(!task.is_finished());
    task
}

fn token(guard: &Guard) -> u64 {
    guard.token().unwrap().get()
}

#[tokio::test(start_paused = true)]
async fn a_hold_goes_to_the_next_task_without_the_store() {
    let world = World::new();
    let (locks, control) = world.client_with(long());
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let before = token(&first);
    let (second, third) = (waits(&mutex).await, waits(&mutex).await);
    control.cut();
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    let second = second.await.unwrap().unwrap();
    assert!(second.is_held());
    assert_eq!(token(&second), before + 1);
    drop(second);
    let third = third.await.unwrap().unwrap();
    assert_eq!(
        token(&third),
        before + 2,
        "also from a guard that is dropped"
    );
    control.heal();
    assert!(
        world
            .client()
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(third.release().await.unwrap(), Released::Freed);
    let next = world.client().mutex("x").unwrap().lock().await.unwrap();
    assert!(token(&next) > before + 2, "no token is given twice (C11)");
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.passed_on, stats.released), (1, 2, 1));
    assert_eq!((stats.held, stats.hold.count), (0, 3));
}

/// Others wait for no more turns and no longer than the settings say.
#[tokio::test(start_paused = true)]
async fn others_get_their_turn() {
    for (settings, most) in [
        (long().local_turns(5), 5),
        (long().local_time(millis(35)), 4),
        (long().local_turns(1), 1),
        (long().local_time(Duration::ZERO), 1),
        (long().order(Order::Strict), 1),
    ] {
        let world = World::new();
        let (locks, _) = world.client_with(settings);
        let mutex = locks.mutex("x").unwrap();
        let first = mutex.lock().await.unwrap();
        let turns = Arc::new(AtomicUsize::new(1));
        let mut tasks = Vec::new();
        let other = waits(&world.client().mutex("x").unwrap()).await;
        for _ in 0..20 {
            let (mutex, turns) = (mutex.clone(), turns.clone());
            tasks.push(tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(millis(10)).await;
                let _ = guard.release().await.unwrap();
            }));
        }
        tokio::time::sleep(millis(5)).await;
        let _ = first.release().await.unwrap();
        let other = other.await.unwrap().unwrap();
        assert_eq!(turns.load(Ordering::Relaxed), most);
        drop(other);
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// The store's lease is one for all of them: renewals are the hold's, whoever is in it.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_passed_on_is_renewed_all_the_while() {
    let world = World::new();
    let (locks, control) = world.client_with(long());
    // A renewal is always under way while the hold goes on.
    control.delay_replies(millis(30));
    let mutex = locks.mutex("x").unwrap();
    let mut guard = mutex.lock().await.unwrap();
    for _ in 0..200 {
        let next = waits(&mutex).await;
        tokio::time::sleep(millis(60)).await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        guard = next.await.unwrap().unwrap();
        assert!(guard.is_held());
    }
    let stats = locks.stats();
    assert_eq!(stats.acquired + stats.passed_on, 201, "12 s, four leases");
    assert!(stats.acquired <= 5, "one grant for 64 of them");
    assert!(stats.renewals >= 8);
    assert_eq!(stats.losses.total(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_at_the_last_moment_passes_on() {
    let world = World::new();
    let (locks, control) = world.client_with(long());
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(waits(&mutex).await);
    }
    let last = tasks.pop().unwrap();
    control.cut();
    let _ = first.release().await.unwrap();
    // The first of them has it in its hands, and is never polled again.
    for task in &tasks {
        task.abort();
    }
    let last = last.await.unwrap().unwrap();
    assert!(last.is_held());
    control.heal();
    // And if all are gone, the lock is free.
    let only = waits(&mutex).await;
    let _ = last.release().await.unwrap();
    only.abort();
    world.until_free("x").await;
    assert_eq!(locks.stats().held, 0);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_to_whoever_is_in_and_to_nobody_before() {
    let world = World::new();
    let (locks, _) = world.client_with(long());
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let signal = first.loss_signal();
    let watched = tokio::spawn(async move { signal.wait().await });
    let second = waits(&mutex).await;
    let _ = first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert_eq!(watched.await.unwrap(), None, "a release is no loss (C9)");
    world.control.expire("x");
    assert_eq!(second.lost().await, LossReason::Gone);
    assert!(!second.is_held());
    assert_eq!(second.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn what_may_be_over_is_not_passed_on() {
    let world = World::new();
    let (locks, control) = world.client_with(long().retry_unreachable_for(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    // Its time is up: it is lost, and the next one asks the store.
    let first = mutex.lock().await.unwrap();
    let before = token(&first);
    let second = waits(&mutex).await;
    control.cut();
    tokio::time::sleep(seconds(4)).await;
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    control.heal();
    let second = second.await.unwrap().unwrap();
    assert!(token(&second) > before + 1, "a grant of the store's own");
    // A renewal has failed: nobody begins with a hold that the store may not have.
    let third = waits(&mutex).await;
    control.cut();
    tokio::time::sleep(millis(1200)).await;
    assert!(second.is_held());
    assert_eq!(second.release().await.unwrap(), Released::Unknown);
    assert!(!third.is_finished());
    control.heal();
    assert!(third.await.unwrap().unwrap().is_held());
    assert_eq!(locks.stats().passed_on, 0);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_counts_for_each_task() {
    let world = World::new();
    let (locks, _) = world.client_with(long().max_hold(millis(500)));
    let mutex = locks.mutex("x").unwrap();
    let mut guard = mutex.lock().await.unwrap();
    for _ in 0..20 {
        let next = waits(&mutex).await;
        tokio::time::sleep(millis(400)).await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        guard = next.await.unwrap().unwrap();
        assert!(guard.remaining().unwrap() > millis(490));
    }
    assert_eq!(locks.stats().passed_on, 20);
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    world.until_free("x").await;
}

/// Who would have asked the store for something else asks it.
#[tokio::test(start_paused = true)]
async fn a_hold_goes_only_to_those_who_want_the_same() {
    let world = World::new();
    let (locks, _) = world.client_with(long());
    let mutex = locks.mutex("x").unwrap();
    for other in [
        Settings::new().lease(seconds(9)).label("longer"),
        Settings::new().label("another"),
    ] {
        let other = locks.with(other).unwrap();
        let first = mutex.lock().await.unwrap();
        let second = waits(&other.mutex("x").unwrap()).await;
        let _ = first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        let info = locks.inspect("x").await.unwrap();
        let label = &info.holders.first().unwrap().label;
        assert!(["longer", "another"].contains(&label.as_str()), "{label}");
        let _ = second.release().await.unwrap();
    }
    let first = mutex.lock().await.unwrap();
    let reader = locks.rw_lock("x").unwrap();
    let reads = tokio::spawn(async move { reader.read().await });
    tokio::time::sleep(millis(1)).await;
    let _ = first.release().await.unwrap();
    let reads = reads.await.unwrap().unwrap();
    assert_eq!(reads.mode(), dlock_core::Mode::Shared);
    drop(reads);
    assert_eq!(locks.stats().passed_on, 0);
}

#[tokio::test(start_paused = true)]
async fn the_next_owner_reenters_and_the_one_before_does_not() {
    let world = World::new();
    let (locks, _) = world.client_with(long());
    let (ours, theirs) = (Owner::new(), Owner::new());
    let mine = locks.mutex("x").unwrap().owned_by(ours);
    let other = locks.mutex("x").unwrap().owned_by(theirs);
    let first = mine.lock().await.unwrap();
    let again = mine.lock().await.unwrap();
    let second = waits(&other).await;
    assert_eq!(first.release().await.unwrap(), Released::StillHeld);
    assert!(!second.is_finished());
    assert_eq!(again.release().await.unwrap(), Released::Freed);
    let second = second.await.unwrap().unwrap();
    assert_eq!(locks.stats().passed_on, 1);
    assert!(mine.try_lock().await.unwrap().is_none());
    let inner = other.try_lock().await.unwrap().expect("its own");
    assert_eq!(token(&inner), token(&second));
    drop(inner);
    assert!(other.is_owned() && !mine.is_owned());
    assert_eq!(second.release().await.unwrap(), Released::Freed);
    assert!(!other.is_owned());
}

/// The task that inherits may never be polled again, while another task of the same owner is in.
#[tokio::test(start_paused = true)]
async fn an_owner_that_reenters_what_its_other_task_inherits_keeps_it() {
    let world = World::new();
    let (locks, _) = world.client_with(long());
    let first = locks.mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap().owned_by(Owner::new());
    let mut heir = Box::pin(mutex.lock());
    assert!(futures::poll!(heir.as_mut()).is_pending());
    let _ = first.release().await.unwrap();
    let again = mutex.try_lock().await.unwrap().expect("its owner's");
    drop(heir);
    tokio::time::sleep(seconds(10)).await;
    assert!(again.is_held(), "renewed for who is in");
    assert_eq!(again.release().await.unwrap(), Released::Freed);
    world.until_free("x").await;
}

/// A task that could not run for a while is in time, and the renewal that waited for it is made up for.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_taken_up_late_is_renewed_at_once() {
    let world = World::new();
    let (locks, _) = world.client_with(long());
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let mut heir = Box::pin(mutex.lock());
    assert!(futures::poll!(heir.as_mut()).is_pending());
    let _ = first.release().await.unwrap();
    // The lease of 3 s is good for 2.968 s.
    tokio::time::sleep(millis(2960)).await;
    let guard = heir.await.unwrap();
    tokio::time::sleep(seconds(10)).await;
    assert!(guard.is_held());
    let stats = locks.stats();
    assert_eq!((stats.passed_on, stats.losses.total()), (1, 0));
}

/// Nobody begins with the rest of a lease that is not renewed.
#[tokio::test(start_paused = true)]
async fn the_next_one_has_a_good_part_of_the_lease() {
    let world = World::new();
    let (locks, _) = world.client_with(long().renewal(false));
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let second = waits(&mutex).await;
    tokio::time::sleep(seconds(2)).await;
    let _ = first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(second.remaining().unwrap() > millis(2900));
    assert_eq!(locks.stats().passed_on, 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_passed_on_once_the_client_is_closed() {
    let world = World::new();
    let (locks, _) = world.client_with(long());
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let second = waits(&mutex).await;
    locks.close().await.unwrap();
    assert_eq!(first.lost().await, LossReason::Closed);
    assert_eq!(first.release().await.unwrap(), Released::AlreadyLost);
    let error = second.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(world.names(), 0);
}

/// Tasks on many threads, some of which are cut off at any moment: never two inside, tokens increase, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_tasks_keeps_one_inside_and_the_order_of_tokens() {
    let store = dlock_memory::MemoryBackend::new();
    let clients: Vec<Locks> = (0..2)
        .map(|_| Locks::new(store.another_client()).unwrap())
        .collect();
    let inside = Arc::new(AtomicUsize::new(0));
    let last = Arc::new(std::sync::Mutex::new(0));
    let mut tasks = Vec::new();
    for number in 0..64_u64 {
        let mutex = clients[number as usize % 2].mutex("x").unwrap();
        let (inside, last) = (inside.clone(), last.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..100_u64 {
                if (number + round) % 7 == 0 {
                    let brief = Duration::from_micros(number * round % 200);
                    let _ = tokio::time::timeout(brief, mutex.lock()).await;
                    continue;
                }
                let guard = mutex.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                {
                    let mut last = last.lock().unwrap();
                    assert!(token(&guard) > *last);
                    *last = token(&guard);
                }
                if round % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                assert!(guard.is_held());
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                if round % 2 == 0 {
                    assert_eq!(guard.release().await.unwrap(), Released::Freed);
                }
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(seconds(60), task)
            .await
            .unwrap()
            .unwrap();
    }
    assert!(clients.iter().any(|locks| locks.stats().passed_on > 0));
    for locks in clients {
        locks.close().await.unwrap();
        assert_eq!(locks.stats().held, 0);
    }
    assert_eq!(store.control().names(), 0);
}

/// A guard that has shown to others what the store has of its hold: that ends with the guard.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_not_passed_on_goes_back_to_the_store() {
    let world = World::new();
    for settings in [long(), long().linger(seconds(60))] {
        let (locks, _) = world.client_with(settings);
        let mutex = locks.mutex("x").unwrap();
        let first = mutex.lock().await.unwrap();
        first.not_passed_on();
        let (before, next) = (token(&first), waits(&mutex).await);
        assert_eq!(first.release().await.unwrap(), Released::Freed);
        let next = next.await.unwrap().unwrap();
        assert!(token(&next) > before + 1, "a grant of its own");
        assert_eq!(locks.stats().passed_on, 0);
        // It may be passed on itself, as any other.
        let last = waits(&mutex).await;
        let before = token(&next);
        assert_eq!(next.release().await.unwrap(), Released::Freed);
        let last = last.await.unwrap().unwrap();
        assert_eq!(token(&last), before + 1);
        last.not_passed_on();
        assert_eq!(last.release().await.unwrap(), Released::Freed);
        let other = world.client().mutex("x").unwrap();
        assert!(other.try_lock().await.unwrap().is_some(), "nothing lingers");
    }
}
