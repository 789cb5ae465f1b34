//! Dropped futures and guards, lost replies and closed clients leave nothing (C13 to C16).

mod common;

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use common::{World, millis, seconds};
use dlock_core::{ErrorKind, HeldNow, Locks, LossReason, Order, Released, Settings};
use dlock_memory::MemoryBackend;
use futures::FutureExt;

/// Polls a future `times` times, with the rest of the program running in between, and drops it. `true` when it was done.
async fn poll_times<F: Future>(future: F, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let done = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if done {
            return true;
        }
        tokio::time::sleep(millis(1)).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_after_any_poll_leaves_nothing() {
    for order in [Order::ByClient, Order::Strict] {
        for held_by_another in [false, true] {
            for polls in 0..12 {
                let world = World::new();
                let (locks, control) = world.client_with(Settings::new().order(order));
                control.delay_requests(millis(2));
                control.delay_replies(millis(2));
                let holder = world.client();
                let blocker = match held_by_another {
                    true => Some(holder.mutex("x").unwrap().lock().await.unwrap()),
                    false => None,
                };
                let mutex = locks.mutex("x").unwrap();
                let done = poll_times(mutex.lock(), polls).await;
                assert!(!(done && held_by_another));
                drop(blocker);
                locks.close().await.unwrap();
                holder.close().await.unwrap();
                assert_eq!(world.names(), 0, "after {polls} polls");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_after_any_poll_goes_on() {
    for polls in 0..8 {
        let world = World::new();
        let (locks, control) = world.client_with(Settings::new());
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        control.delay_requests(millis(2));
        control.delay_replies(millis(2));
        poll_times(guard.release(), polls).await;
        world.until_free("x").await;
        assert_eq!(locks.stats().held, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_local_waiters_block_nobody() {
    let world = World::new();
    let locks = world.client();
    let mutex = locks.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let mutex = mutex.clone();
        waiters.push(Box::pin(async move { mutex.lock().await }));
    }
    for waiter in &mut waiters {
        assert!(waiter.as_mut().now_or_never().is_none());
    }
    waiters.truncate(1);
    drop(guard);
    let last = waiters.pop().unwrap().await.unwrap();
    drop(last);
    assert_eq!(locks.stats().cancelled, 19);
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_neither_leaks_nor_lies() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let mutex = locks.mutex("x").unwrap();

    control.lose_reply(1);
    let error = mutex.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(error.held_now(), dlock_core::HeldNow::Unknown);
    world.until_free("x").await;

    control.lose_reply(1);
    let guard = mutex.lock().await.expect("a waiting acquire tries again");
    control.lose_reply(1);
    assert_eq!(guard.release().await.unwrap(), Released::Unknown);
    world.until_free("x").await;

    let guard = mutex.lock().await.unwrap();
    control.lose_reply(1); // of the first renewal
    tokio::time::sleep(seconds(60)).await;
    assert!(guard.is_held());
    assert_eq!(locks.stats().renewals_failed, 1);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for_only_so_long() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().retry_unreachable_for(seconds(3)));
    control.cut();
    let start = world.clock.now();
    let error = locks.mutex("x").unwrap().lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(world.clock.now().since(start) <= seconds(3));

    let mutex = locks.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(seconds(1)).await;
    control.heal();
    let guard = waiting.await.unwrap().expect("back before patience ended");
    assert!(guard.is_held());
}

/// A task behind another one in the local queue is not told "busy" when the store is the trouble (C5).
#[tokio::test(start_paused = true)]
async fn a_hung_store_is_not_busy_for_local_waiters_either() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.hang();
    let mutex = locks.mutex("x").unwrap();
    let mut first = pin!(mutex.lock());
    assert!(first.as_mut().now_or_never().is_none());
    let error = mutex.lock_within(millis(100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_lost_exclusive_hold_lets_local_waiters_go_on() {
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new().lease(seconds(1)).renewal(false));
    let mutex = locks.mutex("x").unwrap();
    let lost = mutex.lock().await.unwrap();
    let next = mutex
        .lock_within(seconds(2))
        .await
        .unwrap()
        .expect("after the loss");
    assert!(!lost.is_held() && next.is_held());
}

#[tokio::test(start_paused = true)]
async fn close_gives_everything_back_and_refuses_more() {
    let world = World::new();
    let locks = world.client();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(millis(1)).await;
    locks.close().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Closed);
    assert_eq!(
        waiting.await.unwrap().unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(world.names(), 0);
    let error = locks.mutex("y").unwrap().try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    locks.close().await.expect("closing twice is harmless");
}

/// The answer is there when the client is closed, and the task that asked has not seen it yet.
#[tokio::test(start_paused = true)]
async fn a_grant_that_meets_a_close_is_undone() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.delay_replies(millis(10));
    let mutex = locks.mutex("x").unwrap();
    let mut call = Box::pin(mutex.lock());
    assert!(call.as_mut().now_or_never().is_none());
    tokio::time::sleep(millis(10)).await;
    let mut close = Box::pin(locks.close());
    assert!(close.as_mut().now_or_never().is_none());
    let error = call.await.expect_err("it is closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(error.held_now(), HeldNow::Unknown);
    close.await.unwrap();
    assert_eq!(world.names(), 0);
}

/// Pauses between the tries are random, and the last may not be left out because it would be long.
#[tokio::test(start_paused = true)]
async fn a_release_is_tried_until_the_lease_is_over() {
    for round in 0..30 {
        let world = World::new();
        let (locks, control) = world.client_with(Settings::new().lease(seconds(10)));
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        control.cut();
        drop(guard);
        tokio::time::sleep(millis(9500)).await;
        control.heal();
        locks.close().await.unwrap();
        assert_eq!(world.names(), 0, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_for_ever() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.hang();
    let error = locks.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("ends with its lease"), "{error}");
    drop(guard);
}

#[test]
fn a_guard_may_be_dropped_anywhere() {
    let backend = MemoryBackend::new();
    let probe = Locks::new(backend.another_client()).unwrap();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let home = runtime();
    let locks = Locks::builder(Arc::new(backend.another_client()))
        .settings(Settings::new().lease(millis(500)))
        .build()
        .unwrap();
    let take = |name: &str| home.block_on(locks.mutex(name).unwrap().lock()).unwrap();
    let wait_free = |name: &str| {
        runtime().block_on(async {
            let next = probe.mutex(name).unwrap().lock_within(seconds(10)).await;
            assert!(next.unwrap().is_some(), "{name} was not freed");
        });
    };

    let (outside, unwinding, orphan) = (take("outside"), take("unwinding"), take("orphan"));
    std::thread::spawn(move || drop(outside)).join().unwrap();
    wait_free("outside");

    let caught = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _guard = unwinding;
        panic!("on purpose");
    }));
    assert!(caught.is_err());
    wait_free("unwinding");

    home.shutdown_background();
    drop(orphan); // nobody can send a word: its lease ends it
    wait_free("orphan");

    // The client works again from another runtime.
    let second = runtime();
    let guard = second
        .block_on(locks.mutex("again").unwrap().lock())
        .unwrap();
    std::thread::sleep(millis(1200));
    assert!(guard.is_held(), "renewed by the new runtime");
}

/// A renewal that was under way when its runtime ended must not stop renewals for ever.
#[test]
fn a_hold_outlives_the_runtime_of_its_renewal() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let backend = MemoryBackend::new();
    let control = backend.control();
    let locks = Locks::builder(Arc::new(backend))
        .settings(Settings::new().lease(seconds(3)))
        .build()
        .unwrap();
    let first = runtime();
    let guard = first.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    control.hang();
    std::thread::sleep(millis(1300)); // the renewal hangs
    first.shutdown_timeout(seconds(5));
    control.heal();
    let second = runtime();
    let _other = second.block_on(locks.mutex("y").unwrap().lock()).unwrap();
    std::thread::sleep(millis(2500));
    assert!(guard.is_held(), "renewed by the new keeper");
}

#[test]
fn outside_of_a_runtime_there_is_a_clear_error() {
    let locks = Locks::new(MemoryBackend::new()).unwrap();
    let error = futures::executor::block_on(locks.mutex("x").unwrap().lock()).unwrap_err();
    assert!(
        error.to_string().contains("outside of a tokio runtime"),
        "{error}"
    );
    let error = futures::executor::block_on(locks.inspect("x")).unwrap_err();
    assert!(
        error.to_string().contains("outside of a tokio runtime"),
        "{error}"
    );
    assert!(futures::executor::block_on(locks.close()).is_err());
}

#[tokio::test]
async fn background_tasks_end_with_the_client() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let world = World::new();
    for _ in 0..20 {
        let locks = world.client();
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        drop(guard);
        drop(locks);
    }
    let limit = tokio::time::Instant::now() + seconds(10);
    while tasks() > before {
        assert!(
            tokio::time::Instant::now() < limit,
            "{} tasks left",
            tasks()
        );
        tokio::task::yield_now().await;
    }
    assert_eq!(world.names(), 0, "the reaper finished its work first");
}
