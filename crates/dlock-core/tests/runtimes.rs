//! One client in several runtimes: one that ends, or lives but is not driven, costs nobody a hold, a renewal or a clean-up.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{millis, seconds};
use dlock_core::{Clock, Locks, LossReason, Moment, Settings, SystemClock};
use dlock_memory::MemoryBackend;
use futures::future::BoxFuture;
use tokio::runtime::{Builder, Runtime};

/// A runtime that works only while somebody is inside its `block_on`.
fn driven_by_hand() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime with a thread of its own.
fn self_driven() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn client(store: &MemoryBackend, settings: Settings) -> Locks {
    Locks::builder(Arc::new(store.another_client()))
        .settings(settings)
        .build()
        .unwrap()
}

/// Waits in real time, and says what for when it takes too long.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + seconds(20);
    while !done() {
        assert!(Instant::now() < limit, "still waiting: {what}");
        std::thread::sleep(millis(5));
    }
}

/// As a `static` client in a program with many `#[tokio::test]`s, each with a runtime of its own.
#[test]
fn a_guard_of_an_ended_runtime_does_not_stop_the_next_lock() {
    let store = MemoryBackend::new();
    let locks = client(&store, Settings::new());
    let first = driven_by_hand();
    let guard = first.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    drop(first);
    drop(guard);
    let second = driven_by_hand();
    let next = second.block_on(async {
        let mutex = locks.mutex("x").unwrap();
        tokio::time::timeout(seconds(20), mutex.lock()).await
    });
    assert!(next.expect("the lock is free").unwrap().is_held());
}

#[test]
fn a_hold_of_a_busy_runtime_is_kept_while_the_first_runtime_is_idle() {
    let store = MemoryBackend::new();
    let locks = client(&store, Settings::new().lease(millis(600)));
    let first = driven_by_hand();
    let early = first
        .block_on(locks.mutex("early").unwrap().lock())
        .unwrap();
    let busy = self_driven();
    let guard = busy.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    std::thread::sleep(seconds(2));
    assert!(guard.is_held(), "the idle runtime costs nobody a renewal");
    assert!(early.is_held(), "nor its own hold");
    assert_eq!(locks.stats().losses.total(), 0);
}

#[test]
fn a_guard_that_outlives_every_runtime_is_still_renewed_and_given_back() {
    let store = MemoryBackend::new();
    let locks = client(&store, Settings::new().lease(millis(600)));
    let only = driven_by_hand();
    let guard = only.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    drop(only);
    std::thread::sleep(seconds(2));
    assert!(
        guard.is_held(),
        "renewed without a runtime of the program's"
    );
    drop(guard);
    let control = store.control();
    until("the store to be empty", || control.names() == 0);
    until("the ledger to be empty", || locks.stats().in_doubt == 0);
}

/// The renewal has begun in a runtime that nobody drives any more.
#[test]
fn a_renewal_in_a_runtime_that_is_no_longer_driven_is_taken_over() {
    let store = MemoryBackend::new();
    let backend = store.another_client();
    let control = backend.control();
    let locks = Locks::builder(Arc::new(backend))
        .settings(Settings::new().lease(millis(1500)))
        .build()
        .unwrap();
    let first = driven_by_hand();
    let guard = first.block_on(async {
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        control.delay_replies(millis(100));
        // Stops right after the renewal was sent.
        tokio::time::sleep(millis(550)).await;
        guard
    });
    control.heal();
    std::thread::sleep(seconds(3));
    assert!(guard.is_held());
}

#[test]
fn a_release_that_is_no_longer_driven_is_finished() {
    let store = MemoryBackend::new();
    let backend = store.another_client();
    let control = backend.control();
    let locks = Locks::builder(Arc::new(backend))
        .settings(Settings::new().trip_timeout(millis(300)))
        .build()
        .unwrap();
    let first = driven_by_hand();
    let guard = first.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    control.hang();
    let mut release = Box::pin(guard.release());
    first.block_on(async {
        assert!(futures::poll!(release.as_mut()).is_pending());
    });
    control.heal();
    let control = store.control();
    until("the store to be empty", || control.names() == 0);
    drop(release);
}

#[test]
fn a_chosen_runtime_does_the_work() {
    let store = MemoryBackend::new();
    let home = self_driven();
    let locks = Locks::builder(Arc::new(store.another_client()))
        .settings(Settings::new().lease(millis(600)))
        .runtime(home.handle().clone())
        .build()
        .unwrap();
    let tasks = || home.metrics().num_alive_tasks();
    assert_eq!(tasks(), 0);
    let caller = driven_by_hand();
    let guard = caller.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    until("the task to be there", || tasks() == 1);
    std::thread::sleep(seconds(1));
    assert!(guard.is_held());
    drop((guard, locks));
    until("the task to end with the client", || tasks() == 0);
}

#[test]
fn a_client_dropped_while_its_runtime_ends_is_freed() {
    for round in 0..20 {
        let store = MemoryBackend::new();
        let backend = Arc::new(store.another_client());
        let alive = Arc::downgrade(&backend);
        let locks = Locks::builder(backend)
            .settings(Settings::new().lease(seconds(60)))
            .build()
            .unwrap();
        let runtime = self_driven();
        runtime.spawn(async move {
            let _guards = (
                locks.mutex("x").unwrap().lock().await.unwrap(),
                locks.mutex("y").unwrap().lock().await.unwrap(),
            );
            std::future::pending::<()>().await;
        });
        let control = store.control();
        until("both locks to be held", || control.names() == 2);
        drop(runtime);
        until(&format!("the client to be freed, round {round}"), || {
            alive.strong_count() == 0
        });
        assert_eq!(control.names(), 0, "its locks are given back first");
    }
}

#[test]
fn the_loss_signal_works_outside_of_a_runtime() {
    let store = MemoryBackend::new();
    let locks = client(&store, Settings::new().lease(millis(300)).renewal(false));
    let runtime = self_driven();
    let guard = runtime.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    let reason = futures::executor::block_on(guard.lost());
    assert_eq!(reason, LossReason::Expired);
}

/// The whole runtime is blocked by code that does not await: renewals go on.
#[test]
fn a_blocked_runtime_keeps_its_locks() {
    let store = MemoryBackend::new();
    let locks = client(&store, Settings::new().lease(millis(600)));
    driven_by_hand().block_on(async {
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        std::thread::sleep(Duration::from_secs(2));
        assert!(guard.is_held());
    });
}

/// A hold that is passed on to a task that is never polled again keeps nobody out for longer than its lease (C21).
#[test]
fn a_hold_passed_on_to_a_runtime_that_is_not_driven_ends_with_its_lease() {
    let store = MemoryBackend::new();
    let settings = Settings::new().lease(seconds(1)).local_time(Duration::MAX);
    let locks = client(&store, settings);
    let living = self_driven();
    let guard = living.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    let idle = driven_by_hand();
    let mutex = locks.mutex("x").unwrap();
    let waits = idle.spawn(async move { mutex.lock().await });
    idle.block_on(async { tokio::task::yield_now().await });
    let _ = living.block_on(guard.release()).unwrap();
    assert_eq!(locks.stats().passed_on, 0, "nobody has taken it up");
    let other = client(&store, Settings::new());
    let next = living.block_on(other.mutex("x").unwrap().lock_within(seconds(20)));
    let next = next.unwrap().expect("free after a lease");
    // When it runs again it finds that it is too late, and waits like everybody else.
    idle.block_on(async { tokio::task::yield_now().await });
    assert!(!waits.is_finished());
    let _ = living.block_on(next.release()).unwrap();
    let late = idle.block_on(waits).unwrap().unwrap();
    assert!(late.is_held());
}

/// Others are heard though the runtime that began to listen is not driven any more (C23).
#[test]
fn a_lock_that_lingers_in_an_idle_runtime_goes_to_whoever_waits() {
    let store = MemoryBackend::new();
    let locks = client(
        &store,
        Settings::new().lease(millis(600)).linger(seconds(60)),
    );
    let idle = driven_by_hand();
    idle.block_on(async {
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        let _ = guard.release().await.unwrap();
        // Somebody listens now.
        tokio::time::sleep(millis(50)).await;
    });
    let other = client(&store, Settings::new());
    let next = self_driven().block_on(other.mutex("x").unwrap().lock_within(seconds(20)));
    assert!(next.unwrap().is_some(), "it is kept for a minute");
}

/// Nobody can undo what it has left, and waiting for somebody who can would keep the client for ever. The hold ends with its lease.
#[test]
fn a_client_that_no_room_can_serve_is_freed() {
    let store = MemoryBackend::new();
    let backend = Arc::new(store.another_client());
    let alive = Arc::downgrade(&backend);
    let locks = Locks::builder(backend).standby(false).build().unwrap();
    let only = driven_by_hand();
    let guard = only.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    drop(only);
    drop(guard);
    drop(locks);
    assert_eq!(alive.strong_count(), 0);
}

/// A clock that belongs to one runtime, as far as its users are told.
#[derive(Debug, Default)]
struct OfOneRuntime {
    asked_by_the_standby: AtomicBool,
}

impl Clock for OfOneRuntime {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        if std::thread::current().name() == Some("dlock-standby") {
            self.asked_by_the_standby.store(true, Ordering::Relaxed);
        }
        SystemClock.sleep_until(until)
    }
}

#[test]
fn a_clock_of_one_runtime_is_not_followed_in_another() {
    let clock = Arc::new(OfOneRuntime::default());
    let store = MemoryBackend::with_clock(clock.clone());
    let locks = Locks::builder(Arc::new(store.another_client()))
        .clock(clock.clone())
        .settings(Settings::new().lease(millis(600)))
        .build()
        .unwrap();
    let runtime = self_driven();
    let guard = runtime.block_on(locks.mutex("x").unwrap().lock()).unwrap();
    std::thread::sleep(seconds(1));
    assert!(guard.is_held(), "its own runtime renews it");
    assert!(!clock.asked_by_the_standby.load(Ordering::Relaxed));
}
