//! How a hold ends: what `run`, `release`, `downgrade`, `close` and several locks as one tell, and leave (C6, C9, C13, C15).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{
    ErrorKind, HeldNow, Locks, LossReason, Mode, MultiLock, Owner, Released, Settings,
};
use futures::StreamExt;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn run_tells_that_the_release_found_nothing() {
    let world = World::new();
    let locks = world.client();
    let done = locks
        .mutex("x")
        .unwrap()
        .run(async |_| world.control.expire("x"))
        .await;
    let error = done.expect_err("another may have been in");
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_keeps_its_limit_also_while_it_gives_back() {
    let far = World::new();
    let near = World::new();
    let (far_locks, control) = far.client_with(Settings::new());
    let blocked = near.client();
    let _held = blocked.mutex("b").unwrap().lock().await.unwrap();
    // In the order of their identities, whichever is first: the member that hangs is always held when the other is busy.
    let both = MultiLock::new([
        far_locks.mutex("a").unwrap(),
        near.client().mutex("b").unwrap(),
    ])
    .unwrap();
    let start = Instant::now();
    let call = tokio::spawn(async move { both.lock_within(millis(200)).await });
    tokio::time::sleep(millis(100)).await;
    control.hang();
    let answer = call.await.unwrap();
    assert!(start.elapsed() <= millis(300), "{:?}", start.elapsed());
    assert!(matches!(answer, Ok(None)), "{answer:?}");
    control.heal();
    far.until_free("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_says_that_a_member_may_still_be_held() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let holder = world.client();
    let held = holder.mutex("b").unwrap().lock().await.unwrap();
    let both = locks.multi(["a", "b"]).unwrap();
    let call = tokio::spawn(async move { both.lock_within(seconds(60)).await });
    tokio::time::sleep(millis(100)).await;
    control.cut();
    let error = call.await.unwrap().expect_err("the store is out of reach");
    assert_eq!(error.held_now(), HeldNow::Unknown);
    control.heal();
    drop(held);
    world.until_free_after_an_outage("a").await;
}

/// Two processes that reach the same stores under different names take them in different orders.
#[tokio::test(start_paused = true)]
async fn multi_locks_in_different_orders_do_not_wait_for_each_other_for_ever() {
    let (here, there) = (World::new(), World::new());
    let both = |here: Locks, there: Locks| {
        MultiLock::new([here.mutex("x").unwrap(), there.mutex("x").unwrap()]).unwrap()
    };
    let one = both(here.known_as("db-1"), there.known_as("db-2"));
    let two = both(here.known_as("db-z"), there.known_as("db-a"));
    for _ in 0..20 {
        let work = async |_: &dlock_core::Guard| tokio::time::sleep(millis(5)).await;
        let (a, b) = tokio::join!(
            tokio::time::timeout(seconds(60), one.run(work)),
            tokio::time::timeout(seconds(60), two.run(work)),
        );
        a.expect("in time").unwrap();
        b.expect("in time").unwrap();
    }
    assert_eq!((here.names(), there.names()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_in_doubt_is_finished_and_neither_lost_nor_left() {
    for sent in [false, true] {
        let world = World::new();
        let (locks, control) = world.client_with(Settings::new().lease(seconds(3)));
        let lock = locks.rw_lock("x").unwrap();
        let guard = lock.write().await.unwrap();
        if sent {
            control.lose_reply(1);
        } else {
            control.cut();
        }
        let error = guard.downgrade().await.unwrap_err();
        assert!(error.is_retryable());
        assert_eq!(guard.mode(), Mode::Shared, "from the call on");
        control.heal();
        // Renewals go on, and the store hears of the downgrade without another word of ours.
        tokio::time::sleep(seconds(10)).await;
        assert!(guard.is_held(), "sent: {sent}");
        let reader = lock.read_within(millis(10)).await.unwrap();
        let reader = reader.expect("it is a reader's now");
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        assert_eq!(reader.release().await.unwrap(), Released::Freed);
        assert_eq!(world.names(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_downgrade_does_not_keep_the_local_turn() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let lock = locks.rw_lock("x").unwrap();
    let guard = lock.write().await.unwrap();
    control.delay_replies(millis(10));
    {
        let mut call = pin!(guard.downgrade());
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    let reader = tokio::time::timeout(seconds(1), lock.read()).await;
    assert!(reader.expect("readers share").unwrap().is_held());
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_second_close_finishes_what_the_first_did_not() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    control.hang();
    {
        let mut first = pin!(locks.close());
        assert!(futures::poll!(first.as_mut()).is_pending());
    }
    control.heal();
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0, "it waited for the release");
    assert_eq!(guard.lost().await, LossReason::Closed);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_guards_that_were_dropped_before() {
    for _ in 0..50 {
        let world = World::new();
        let (locks, control) = world.client_with(Settings::new());
        control.delay_requests(millis(3));
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        let dropped = tokio::task::spawn_blocking(move || drop(guard));
        let closed = locks.close().await;
        dropped.await.unwrap();
        closed.unwrap();
        locks.close().await.unwrap();
        assert_eq!(world.names(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn no_duration_makes_anything_panic() {
    let most = Duration::MAX;
    let world = World::new();
    let settings = Settings::new()
        .retry_unreachable_for(most)
        .wait_at_most(most)
        .max_hold(most)
        .warn_after(most);
    let (locks, _) = world.client_with(settings);
    let mutex = locks.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    let _ = guard.release().await.unwrap();
    let guard = mutex.lock_within(most).await.unwrap().unwrap();
    drop(guard);
    let election = locks.election("e").unwrap().look_every(most);
    let mut leaders = pin!(election.observe());
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    locks.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_release_says_that_the_lock_is_still_held() {
    let world = World::new();
    let (locks, shards) = world.shards(Settings::new(), Duration::ZERO);
    let guard = locks.mutex("denied:x").unwrap().lock().await.unwrap();
    drop(shards);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(error.held_now(), HeldNow::Yes);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_seen_lost_stays_lost() {
    let world = World::new();
    let settings = Settings::new().lease(seconds(1)).trip_timeout(seconds(5));
    let (locks, control) = world.client_with(settings.renew_every(millis(500)));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    // A renewal is under way when the program stalls; its answer is there when it goes on.
    control.delay_replies(millis(300));
    tokio::time::sleep(millis(600)).await;
    tokio::time::advance(millis(500)).await;
    assert!(!guard.is_held());
    for _ in 0..10 {
        tokio::task::yield_now().await;
        assert!(!guard.is_held(), "it came back");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_at_most_nothing_is_a_try() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().wait_at_most(Duration::ZERO));
    let mutex = locks.mutex("x").unwrap();
    control.delay_replies(millis(100));
    let guard = mutex.lock().await.expect("a try has the time of a trip");
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn observe_tells_no_leader_after_a_failed_first_look() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    control.cut();
    let election = locks.election("e").unwrap();
    let mut leaders = pin!(election.observe());
    assert!(leaders.next().await.unwrap().is_err());
    control.heal();
    let next = tokio::time::timeout(seconds(5), leaders.next()).await;
    assert!(next.expect("told").unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_semaphores_holder_is_no_leader() {
    let world = World::new();
    let locks = world.client();
    let _permit = locks.semaphore("e", 3).unwrap().acquire().await.unwrap();
    assert!(
        locks
            .election("e")
            .unwrap()
            .leader()
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_reads_and_asks_to_write_gets_a_conflict() {
    let world = World::new();
    let locks = world.client();
    let lock = locks.rw_lock("x").unwrap().owned_by(Owner::new());
    let first = lock.read().await.unwrap();
    assert_eq!(lock.write().await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(
        lock.try_write().await.unwrap_err().kind(),
        ErrorKind::Conflict
    );
    // Also when the reader got in while the writer stood in the line.
    let other = world.client();
    drop(first);
    world.until_free("x").await;
    let alone = other.rw_lock("x").unwrap().write().await.unwrap();
    let read = tokio::spawn({
        let lock = lock.clone();
        async move { lock.read().await }
    });
    tokio::time::sleep(millis(1)).await;
    let write = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await }
    });
    tokio::time::sleep(millis(1)).await;
    drop(alone);
    let reader = read.await.unwrap().unwrap();
    let error = tokio::time::timeout(seconds(5), write).await;
    let error = error.expect("told at once").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    drop(reader);
}

#[tokio::test]
async fn a_loss_signal_ends_with_a_release_and_keeps_nothing_alive() {
    let store = dlock_memory::MemoryBackend::new();
    let backend = Arc::new(store.another_client());
    let alive = Arc::downgrade(&backend);
    let locks = Locks::builder(backend).build().unwrap();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let signal = guard.loss_signal();
    let waits = tokio::spawn({
        let signal = signal.clone();
        async move { signal.wait().await }
    });
    tokio::task::yield_now().await;
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert_eq!(waits.await.unwrap(), None);
    drop(locks);
    let limit = Instant::now() + seconds(10);
    while alive.strong_count() > 0 {
        assert!(Instant::now() < limit, "the signal keeps the client");
        tokio::time::sleep(millis(5)).await;
    }
    assert_eq!(signal.wait().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_refused_downgrade_costs_neither_the_hold_nor_its_release() {
    let world = World::new();
    let settings = Settings::new().lease(seconds(3));
    let (locks, _) = world.shards(settings, Duration::ZERO);
    let guard = locks.rw_lock("stays:x").unwrap().write().await.unwrap();
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    tokio::time::sleep(seconds(10)).await;
    assert!(guard.is_held(), "renewed all the same");
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert_eq!(world.names(), 0);
    let reader = locks.rw_lock("x").unwrap().read().await.unwrap();
    let error = reader.downgrade().await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Conflict,
        "a reader has nothing to downgrade"
    );
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_bears_a_hiccup_while_it_holds_a_member() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let holder = world.client();
    let held = holder.mutex("b").unwrap().lock().await.unwrap();
    let both = locks.multi(["a", "b"]).unwrap();
    let call = tokio::spawn(async move { both.lock().await });
    tokio::time::sleep(millis(100)).await;
    control.cut();
    tokio::time::sleep(seconds(3)).await;
    control.heal();
    drop(held);
    assert!(call.await.unwrap().unwrap().is_held());
}

/// Whoever calls it, wherever: no panic.
#[test]
fn a_guard_may_be_used_outside_of_a_runtime() {
    let store = dlock_memory::MemoryBackend::new();
    let backend = store.another_client();
    let control = backend.control();
    let locks = Locks::new(backend).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lock = locks.rw_lock("x").unwrap();
    let guard = runtime.block_on(lock.write()).unwrap();
    control.delay_replies(millis(20));
    let outside = |what: dlock_core::Result<()>| {
        let error = what.unwrap_err();
        assert!(
            error.to_string().contains("outside of a tokio runtime"),
            "{error}"
        );
    };
    outside(futures::executor::block_on(guard.downgrade()));
    outside(futures::executor::block_on(guard.renew_now()));
    let election = locks.election("e").unwrap();
    let mut leaders = Box::pin(election.observe());
    let first = futures::executor::block_on(leaders.next()).unwrap();
    outside(first.map(drop));
    let released = futures::executor::block_on(guard.release()).unwrap();
    assert_eq!(
        released,
        Released::Unknown,
        "it is given back in the background"
    );
    runtime.block_on(async {
        let next = lock.write_within(seconds(20)).await.unwrap();
        assert!(next.is_some());
    });
}

/// C5, for several locks as one: whichever member it is, and whatever was had of the others.
#[tokio::test(start_paused = true)]
async fn a_multi_lock_with_a_member_out_of_reach_is_not_busy() {
    for hang in [false, true] {
        let (near, far) = (World::new(), World::new());
        let (far_locks, control) = far.client_with(Settings::new());
        let both = MultiLock::new([
            near.client().mutex("x").unwrap(),
            far_locks.mutex("x").unwrap(),
        ])
        .unwrap();
        if hang {
            control.hang();
        } else {
            control.cut();
        }
        let start = Instant::now();
        let error = both.lock_within(millis(300)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_ne!(error.kind(), ErrorKind::Busy);
        assert!(start.elapsed() <= millis(400), "{:?}", start.elapsed());
        near.until_free("x").await;
    }
}
