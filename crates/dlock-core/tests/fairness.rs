//! What the turns and rests of one client cost others (C21), and what tasks of one client owe each other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{Guard, Hearing, Mutex, Order, Owner, Result, Settings};
use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// A task that waits for the lock, in line when this returns.
async fn waits(mutex: &Mutex) -> JoinHandle<Result<Guard>> {
    let mutex = mutex.clone();
    let task = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(1)).await;
    task
}

/// Takes the lock, keeps it for so long, and gives it back.
fn uses(mutex: &Mutex, time: Duration) -> JoinHandle<()> {
    let mutex = mutex.clone();
    tokio::spawn(async move {
        let guard = mutex.lock().await.unwrap();
        sleep(time).await;
        let _ = guard.release().await.unwrap();
    })
}

/// The wait for the lock is no trip: however long it was, others get their turn after the time of a hand-over.
#[tokio::test(start_paused = true)]
async fn a_client_that_waited_long_has_the_short_time_for_local_turns() {
    let world = World::new();
    let (locks, backend) = world.altered(Settings::new(), Hearing::Never);
    backend.counts_from_the_call.store(true, Ordering::Relaxed);
    let mutex = locks.mutex("x").unwrap();
    let theirs = world.client().mutex("x").unwrap().lock().await.unwrap();
    let tasks: Vec<_> = (0..5).map(|_| uses(&mutex, millis(1))).collect();
    sleep(seconds(2)).await;
    drop(theirs);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(locks.stats().passed_on, 0, "a trip takes no time here");
}

/// Where a trip takes long, local turns may last as long as a hand-over.
#[tokio::test(start_paused = true)]
async fn the_time_for_local_turns_is_that_of_two_trips() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new());
    let mutex = locks.mutex("x").unwrap();
    control.delay_replies(millis(2));
    for _ in 0..20 {
        let guard = mutex.lock().await.unwrap();
        let _ = guard.release().await.unwrap();
    }
    let before = locks.stats();
    // Of three that wait, two begin within 4 ms.
    let tasks: Vec<_> = (0..4).map(|_| uses(&mutex, millis(1))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let after = locks.stats();
    assert!(after.passed_on >= before.passed_on + 2);
    // One that hangs for a while is no reason to keep others waiting for much longer.
    control.delay_replies(seconds(1));
    let guard = mutex.lock().await.unwrap();
    control.delay_replies(millis(2));
    let _ = guard.release().await.unwrap();
    let before = locks.stats();
    let tasks: Vec<_> = (0..12).map(|_| uses(&mutex, millis(1))).collect();
    sleep(millis(13)).await;
    assert!(locks.stats().acquired > before.acquired + 1);
    for task in tasks {
        task.await.unwrap();
    }
}

/// A store that never tells of others: however often the lock is used meanwhile, they wait for the time to linger and one use.
#[tokio::test(start_paused = true)]
async fn all_rests_of_a_grant_are_one_where_the_store_never_tells() {
    let world = World::new();
    let (linger, stay) = (millis(500), millis(50));
    let settings = Settings::new().lease(seconds(3)).linger(linger);
    let (locks, _) = world.altered(settings, Hearing::Never);
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let other = waits(&world.client().mutex("x").unwrap()).await;
    let _ = first.release().await.unwrap();
    let began = Instant::now();
    while !other.is_finished() {
        let guard = mutex.lock().await.unwrap();
        sleep(stay).await;
        let _ = guard.release().await.unwrap();
        sleep(millis(100)).await;
        assert!(began.elapsed() < 2 * linger, "{:?}", began.elapsed());
    }
    assert!(began.elapsed() <= linger + stay + millis(101));
}

/// A store that is asked: a "no" may be a question that failed, so it gives no more time.
#[tokio::test(start_paused = true)]
async fn all_rests_of_a_grant_are_one_where_the_store_is_asked() {
    for linger in [millis(2500), millis(500)] {
        let world = World::new();
        let settings = Settings::new().lease(seconds(3)).linger(linger);
        let (locks, backend) = world.altered(settings, Hearing::Asks);
        let mutex = locks.mutex("x").unwrap();
        let began = Instant::now();
        // A question each second, always answered by "no", as by a store that cannot be asked.
        while began.elapsed() < seconds(10) {
            let guard = mutex.lock().await.unwrap();
            let _ = guard.release().await.unwrap();
            sleep(millis(400)).await;
        }
        let grants = u128::from(locks.stats().acquired);
        assert!(
            grants >= seconds(10).as_millis() / (linger + millis(400)).as_millis(),
            "{grants}"
        );
        let theirs = world.client().mutex("x").unwrap();
        let began = Instant::now();
        let theirs = timeout(seconds(5), theirs.lock()).await.unwrap();
        assert!(theirs.unwrap().is_held());
        assert!(began.elapsed() <= linger, "{:?}", began.elapsed());
        drop(backend);
    }
}

/// Also those who ask the store past the local line want the lock.
#[tokio::test(start_paused = true)]
async fn a_holder_hears_of_local_tasks_in_strict_order() {
    let world = World::new();
    for holder in [Order::ByClient, Order::Strict] {
        let (locks, _) = world.altered(Settings::new().order(holder), Hearing::Never);
        let strict = locks.with(Settings::new().order(Order::Strict)).unwrap();
        let strict = strict.mutex("x").unwrap();
        let guard = locks.mutex("x").unwrap().lock().await.unwrap();
        assert!(strict.try_lock().await.unwrap().is_none());
        assert!(guard.wanted().now_or_never().is_none(), "nobody waits");
        let (heard, next) = (timeout(seconds(1), guard.wanted()), waits(&strict));
        let (heard, next) = tokio::join!(heard, next);
        assert!(heard.is_ok(), "it listened when the other came");
        assert!(guard.wanted().now_or_never().is_some(), "and it is known");
        let _ = guard.release().await.unwrap();
        drop(next.await.unwrap().unwrap());
    }
}

/// Two tasks of one owner wait for the lock, and the first waits for the second while it is in: both are in.
#[tokio::test(start_paused = true)]
async fn tasks_of_one_owner_get_in_together_wherever_they_wait() {
    for order in [Order::ByClient, Order::Strict] {
        let world = World::new();
        let (locks, _) = world.client_with(Settings::new().order(order));
        let owner = Owner::new();
        let mutex = locks.mutex("x").unwrap().owned_by(owner);
        let theirs = world.client().mutex("x").unwrap().lock().await.unwrap();
        let (first, second) = (waits(&mutex).await, waits(&mutex).await);
        drop(theirs);
        let first = timeout(seconds(1), first).await.unwrap();
        let second = timeout(seconds(1), second).await.expect("it may enter");
        let (first, second) = (first.unwrap().unwrap(), second.unwrap().unwrap());
        assert_eq!(first.token(), second.token());
        drop((first, second));
        world.until_free("x").await;
        locks.close().await.unwrap();
        assert_eq!(world.names(), 0, "what waited at the store is gone");
    }
}

/// As before, with the hold of another local task that is passed on to the first of them.
#[tokio::test(start_paused = true)]
async fn an_owner_that_inherits_a_hold_lets_its_other_tasks_in() {
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new().local_time(Duration::MAX));
    let before = locks.mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap().owned_by(Owner::new());
    let first = waits(&mutex).await;
    let between = waits(&locks.mutex("x").unwrap()).await;
    let second = waits(&mutex).await;
    let _ = before.release().await.unwrap();
    let first = first.await.unwrap().unwrap();
    let second = timeout(seconds(1), second).await.expect("it may enter");
    let second = second.unwrap().unwrap();
    assert_eq!(first.token(), second.token());
    assert!(!between.is_finished());
    drop((first, second));
    assert!(between.await.unwrap().unwrap().is_held());
}

/// A task that could enter, but comes too late for it, keeps its place.
#[tokio::test(start_paused = true)]
async fn a_task_whose_owner_was_in_for_a_moment_keeps_its_place() {
    let world = World::new();
    let (locks, _) = world.client_with(Settings::new().local_time(Duration::MAX));
    let holder = locks.mutex("x").unwrap().lock().await.unwrap();
    let mutex = locks.mutex("x").unwrap().owned_by(Owner::new());
    let mut first = Box::pin(mutex.lock());
    assert!(futures::poll!(first.as_mut()).is_pending());
    let mut second = Box::pin(mutex.lock());
    assert!(futures::poll!(second.as_mut()).is_pending());
    let last = waits(&locks.mutex("x").unwrap()).await;
    let _ = holder.release().await.unwrap();
    drop(first.await.unwrap());
    let second = second.await.unwrap();
    assert!(second.is_held());
    assert!(!last.is_finished(), "it came after them");
    drop(second);
    assert!(last.await.unwrap().unwrap().is_held());
}

/// One task asks the store with the turn of its client, and another of the same owner gets in by a try.
#[tokio::test(start_paused = true)]
async fn a_task_that_asks_the_store_enters_what_its_owner_got_meanwhile() {
    let world = World::new();
    let (locks, backend) = world.altered(Settings::new(), Hearing::Never);
    backend.polls.store(true, Ordering::Relaxed);
    let mutex = locks.mutex("x").unwrap().owned_by(Owner::new());
    let theirs = world.client().mutex("x").unwrap().lock().await.unwrap();
    let asks = waits(&mutex).await;
    let _ = theirs.release().await.unwrap();
    let tried = mutex.try_lock().await.unwrap().expect("it is free");
    let asks = timeout(seconds(1), asks).await.expect("it may enter");
    let asks = asks.unwrap().unwrap();
    assert_eq!(asks.token(), tried.token());
    drop((asks, tried));
    locks.close().await.unwrap();
    assert_eq!(world.names(), 0);
}

/// A reader that asks for itself stands in no line; what a writer leaves does not rest before it.
#[tokio::test(start_paused = true)]
async fn a_reader_that_asks_alone_is_not_kept_out_by_a_rest() {
    let world = World::new();
    let settings = Settings::new().lease(seconds(9)).linger(seconds(60));
    let settings = settings.readers_join(true).trip_timeout(seconds(1));
    let (locks, backend) = world.altered(settings, Hearing::Never);
    let lock = locks.rw_lock("x").unwrap();
    let reads = || {
        let lock = lock.clone();
        tokio::spawn(async move { lock.read().await })
    };
    backend.readers_hang.store(true, Ordering::Relaxed);
    let (first, second) = (reads(), reads());
    // The second has waited for the answer of the first, and asks for itself.
    sleep(millis(1500)).await;
    first.abort();
    let writer = lock.write().await.unwrap();
    backend.readers_hang.store(false, Ordering::Relaxed);
    backend.heals.notify_waiters();
    sleep(millis(10)).await;
    let _ = writer.release().await.unwrap();
    let second = timeout(seconds(1), second).await;
    assert!(second.expect("nothing rests").unwrap().unwrap().is_held());
}

/// Two readers of one owner that asked at the same moment have a hold each. When one has left, the owner is still in by the other, and does not
/// stand behind a writer that waits for it.
#[tokio::test(start_paused = true)]
async fn an_owner_with_two_holds_is_in_until_it_has_left_both() {
    let world = World::new();
    let (locks, _) = world.altered(Settings::new(), Hearing::Never);
    let owner = Owner::new();
    let lock = locks.rw_lock("x").unwrap().owned_by(owner);
    let (first, second) = tokio::join!(lock.read(), lock.read());
    let (first, second) = (first.unwrap(), second.unwrap());
    let _ = second.release().await.unwrap();
    let writer = world.client().rw_lock("x").unwrap();
    let waits = tokio::spawn(async move { writer.write().await });
    sleep(millis(100)).await;
    let again = timeout(seconds(5), lock.read())
        .await
        .expect("it is in")
        .unwrap();
    assert!(
        timeout(seconds(5), lock.write())
            .await
            .expect("it is told")
            .is_err()
    );
    drop((first, again));
    drop(timeout(seconds(5), waits).await.unwrap().unwrap().unwrap());
}

/// A writer that came in by its owner stays a writer: the one before it cannot become a reader any more.
#[tokio::test(start_paused = true)]
async fn a_downgrade_finds_who_came_in_since_it_looked() {
    let world = World::new();
    let locks = world.client();
    let lock = locks.rw_lock("x").unwrap().owned_by(Owner::new());
    let first = lock.write().await.unwrap();
    let second = lock.write().await.unwrap();
    let refused = first.downgrade().await.unwrap_err();
    assert_eq!(refused.kind(), dlock_core::ErrorKind::Conflict);
    assert!(second.writer().is_ok());
    let _ = second.release().await.unwrap();
    first.downgrade().await.unwrap();
}
