//! The rules of time (C7, C8, C10, C12, C20), exact on a paused clock.

mod common;

use std::sync::atomic::Ordering;

use common::{World, millis, seconds};
use dlock_core::{ErrorKind, Hearing, HeldNow, LossReason, Released, Settings};

/// 1 s less 1 % and 2 ms.
const VALIDITY: u64 = 988;

fn one_second() -> Settings {
    Settings::new().lease(seconds(1)).trip_timeout(millis(300))
}

#[tokio::test(start_paused = true)]
async fn validity_counts_from_the_send_time() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second().renewal(false));
    control.delay_replies(millis(200));
    let sent = world.clock.now();
    let guard = locks.mutex("x").unwrap().try_lock().await.unwrap().unwrap();
    assert_eq!(world.clock.now().since(sent), millis(200));
    assert_eq!(guard.valid_until().unwrap().since(sent), millis(VALIDITY));
    assert_eq!(guard.remaining(), Some(millis(VALIDITY - 200)));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_undone() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second().trip_timeout(seconds(5)));
    control.delay_replies(millis(VALIDITY));
    let error = locks.mutex("x").unwrap().try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLate);
    assert_eq!(error.held_now(), HeldNow::No);
    control.heal();
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

/// A backend that sees by itself that a grant came too late says so in the kit's words, and nothing else: what the store has given is undone.
#[tokio::test(start_paused = true)]
async fn what_a_backend_finds_too_late_is_undone() {
    let world = World::new();
    let (locks, backend) = world.altered(one_second(), Hearing::Asks);
    backend.finds_it_late.store(true, Ordering::Relaxed);
    let error = locks.mutex("x").unwrap().try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLate);
    assert_eq!(error.held_now(), HeldNow::Unknown);
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

/// The store may have what came too late until the reaper has undone it: what fails afterwards must not deny it.
#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_leaves_the_call_in_doubt() {
    let world = World::new();
    let settings = one_second()
        .trip_timeout(seconds(5))
        .retry_unreachable_for(millis(100));
    let (locks, control) = world.client_with(settings);
    control.cut();
    let error = locks.mutex("x").unwrap().lock().await.unwrap_err();
    assert_eq!(error.held_now(), HeldNow::No, "nothing was sent");
    control.heal();
    control.delay_replies(millis(VALIDITY));
    let mutex = locks.mutex("x").unwrap();
    let call = tokio::spawn(async move { mutex.lock().await });
    // After the late grant, and before the second attempt.
    tokio::time::sleep(millis(VALIDITY + 1)).await;
    control.cut();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.held_now(), HeldNow::Unknown);
    control.heal();
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn loss_fires_before_the_end_without_a_word_from_the_store() {
    for hang in [false, true] {
        let world = World::new();
        let (locks, control) = world.client_with(one_second());
        let sent = world.clock.now();
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        if hang {
            control.hang()
        } else {
            control.cut()
        }
        assert_eq!(guard.lost().await, LossReason::Expired);
        let after = world.clock.now().since(sent);
        assert!(
            (millis(VALIDITY - 4)..=millis(VALIDITY)).contains(&after),
            "lost after {after:?}, hang: {hang}"
        );
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LossReason::Expired, "sticky");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(locks.stats().losses.expired, 1);
    }
}

/// The keeper alone, with nobody waiting for the signal.
#[tokio::test(start_paused = true)]
async fn loss_is_declared_also_when_nobody_listens() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second());
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.hang();
    tokio::time::sleep(millis(VALIDITY)).await;
    assert_eq!(locks.stats().losses.expired, 1);
    assert_eq!(locks.stats().held, 0);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_inside_the_lease_is_not_a_loss() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second());
    let other = world.client();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    for _ in 0..5 {
        control.cut();
        tokio::time::sleep(millis(500)).await;
        control.heal();
        tokio::time::sleep(millis(300)).await;
        assert!(guard.is_held());
    }
    assert!(locks.stats().renewals_failed > 0);
    assert!(
        other
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

/// C4: the tasks of one client pass a lock around, and one of them runs out of time while the next is just asking for it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_goes_from_task_to_task_is_busy_and_not_out_of_reach() {
    let world = World::new();
    // Every turn is a trip.
    let (locks, control) = world.client_with(one_second().local_turns(1));
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let second = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    tokio::time::sleep(millis(1)).await;
    control.delay_replies(millis(10));
    let third = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock_within(millis(50)).await }
    });
    tokio::time::sleep(millis(35)).await;
    // Confirmed after 45 ms; then the second asks, until 55 ms.
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    let third = third.await.unwrap();
    assert!(third.expect("the store answers").is_none());
    let second = second.await.unwrap().unwrap();
    // But a store that is silent for longer than a trip may take is out of reach, whoever held the lock before.
    let third = tokio::spawn(async move { mutex.lock_within(millis(600)).await });
    tokio::time::sleep(millis(1)).await;
    control.hang();
    assert_eq!(second.release().await.unwrap(), Released::Unknown);
    let error = third.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// C5: what went from task to task was not out of reach then, but it is now.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_not_busy_whoever_held_the_lock_before() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second().retry_unreachable_for(seconds(60)));
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let wait = |patience| {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock_within(patience).await })
    };
    let second = wait(seconds(50));
    tokio::time::sleep(millis(1)).await;
    let third = wait(seconds(5));
    tokio::time::sleep(millis(1)).await;
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    // From now on every question of the second fails at once, and is repeated.
    control.cut();
    let error = third.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    control.heal();
    assert!(second.await.unwrap().unwrap().is_some());
}

/// C5: the one whose turn it was had been told that others hold the lock, and then the store was gone.
#[tokio::test(start_paused = true)]
async fn an_answer_from_before_the_trouble_does_not_make_a_silent_store_busy() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second().retry_unreachable_for(seconds(60)));
    let impatient = locks
        .with(Settings::new().retry_unreachable_for(millis(1)))
        .unwrap();
    let impatient = impatient.mutex("x").unwrap();
    let (mutex, other) = (
        locks.mutex("x").unwrap(),
        world.client().mutex("x").unwrap(),
    );
    let first = mutex.lock().await.unwrap();
    let wait = |patience| {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock_within(patience).await })
    };
    let second = tokio::spawn(async move { impatient.lock_within(seconds(50)).await });
    tokio::time::sleep(millis(1)).await;
    let third = wait(seconds(50));
    tokio::time::sleep(millis(1)).await;
    let last = wait(millis(200));
    let remote = tokio::spawn(async move { other.lock().await });
    tokio::time::sleep(millis(1)).await;
    // The other client is before the second in the store's queue.
    assert_eq!(first.release().await.unwrap(), Released::Freed);
    let _remote = remote.await.unwrap().unwrap();
    tokio::time::sleep(millis(1)).await;
    control.delay_requests(millis(10));
    control.cut();
    assert!(second.await.unwrap().is_err());
    // The third is about to ask, and hears nothing.
    control.hang();
    let error = last.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    third.abort();
}

/// A renewal whose reply is late counts from when it was sent.
#[tokio::test(start_paused = true)]
async fn a_slow_renewal_does_not_stretch_the_hold() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second());
    let sent = world.clock.now();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.delay_replies(millis(250));
    tokio::time::sleep(millis(700)).await;
    // Renewed at 333 ms, to the grain of a timer, and answered 250 ms later.
    let valid_for = guard.valid_until().unwrap().since(sent);
    let renewed_at = valid_for - millis(VALIDITY);
    assert!(
        (millis(333)..=millis(336)).contains(&renewed_at),
        "{renewed_at:?}"
    );
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn without_renewal_the_hold_ends_with_its_lease() {
    let world = World::new();
    let (locks, _) = world.client_with(one_second().renewal(false));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(locks.stats().renewals, 0);
    world.until_free("x").await;
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_forgotten_guard() {
    let world = World::new();
    let (locks, _) = world.client_with(one_second().max_hold(seconds(10)));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let signal = guard.loss_signal();
    let held = world.clock.now();
    std::mem::forget(guard);
    let other = world.client();
    let next = other.mutex("x").unwrap().lock().await.unwrap();
    assert_eq!(signal.wait().await, Some(LossReason::MaxHold));
    let after = world.clock.now().since(held);
    assert!(
        (millis(9_990)..millis(10_100)).contains(&after),
        "{after:?}"
    );
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_lock_of_a_holder_that_is_cut_off() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second());
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.hang();
    let before = world.clock.now();
    let next = world.client().mutex("x").unwrap().lock().await.unwrap();
    assert!(world.clock.now().since(before) <= millis(1_001));
    assert!(!guard.is_held(), "never two at once");
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    control.heal();
    locks.close().await.unwrap();
    assert!(next.is_held(), "a stale release frees nobody else");
}

/// One trip serves all holds that are due about the same time.
#[tokio::test(start_paused = true)]
async fn renewals_of_many_holds_keep_all_of_them() {
    let world = World::new();
    let (locks, _) = world.client_with(one_second());
    let mut guards = Vec::new();
    for n in 0..1000 {
        let name = format!("lock {n}");
        guards.push(locks.mutex(name).unwrap().lock().await.unwrap());
        if n % 100 == 0 {
            tokio::time::sleep(millis(7)).await;
        }
    }
    tokio::time::sleep(seconds(5)).await;
    assert!(guards.iter().all(dlock_core::Guard::is_held));
    assert_eq!(locks.stats().losses.total(), 0);
    assert_eq!(locks.stats().held, 1000);
    drop(guards);
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_is_kept_and_told_apart() {
    let world = World::new();
    let (locks, control) = world.client_with(one_second());
    let _held = world.client().mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap();
    let start = world.clock.now();
    assert!(mutex.lock_within(millis(700)).await.unwrap().is_none());
    let after = world.clock.now().since(start);
    assert!((millis(700)..=millis(800)).contains(&after), "{after:?}");

    control.hang();
    for limit in [millis(100), millis(250)] {
        let start = world.clock.now();
        let error = mutex.lock_within(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "a hang is not busy (C5)");
        assert!(world.clock.now().since(start) <= limit + millis(100));
    }
    let start = world.clock.now();
    let error = mutex.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(world.clock.now().since(start), millis(300));
}
