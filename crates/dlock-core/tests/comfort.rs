//! What makes a user's code short: work that may be skipped, settings that are kept, permits in numbers, elections that are pushed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

mod common;

use std::pin::pin;
use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{ErrorKind, Flat, HeldNow, Mode, Settings};
use futures::StreamExt;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn work_is_done_skipped_or_cancelled() {
    let world = World::new();
    let locks = world.client();
    let mutex = locks.mutex("x").unwrap();
    assert_eq!(mutex.try_run(async |_| 1).await.unwrap(), Some(1));
    let holder = world.client().mutex("x").unwrap().lock().await.unwrap();
    let work = async |_: &dlock_core::Guard| panic!("nobody may be in");
    assert!(mutex.try_run(work).await.unwrap().is_none());
    assert!(mutex.run_within(millis(50), work).await.unwrap().is_none());
    let rw = locks.rw_lock("x").unwrap();
    assert!(rw.try_run_read(work).await.unwrap().is_none());
    assert!(rw.try_run_write(work).await.unwrap().is_none());
    assert!(
        rw.run_write_within(millis(5), work)
            .await
            .unwrap()
            .is_none()
    );
    drop(holder);
    world.until_free("x").await;
    let lost = mutex
        .try_run(async |_| {
            world.control.expire("x");
            std::future::pending::<()>().await
        })
        .await;
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    let multi = locks.multi(["x", "y"]).unwrap();
    assert_eq!(multi.try_run(async |_| 2).await.unwrap(), Some(2));
    assert!(!multi.is_locked().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn two_results_are_one() {
    #[derive(Debug, PartialEq)]
    enum Shop {
        SoldOut,
        Lock(ErrorKind),
    }
    impl From<dlock_core::Error> for Shop {
        fn from(error: dlock_core::Error) -> Self {
            Self::Lock(error.kind())
        }
    }
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().retry_unreachable_for(Duration::ZERO));
    let mutex = locks.mutex("x").unwrap();
    let sold = async |_: &dlock_core::Guard| Err::<u32, _>(Shop::SoldOut);
    assert_eq!(mutex.run(sold).await.flat(), Err(Shop::SoldOut));
    let one = async |_: &dlock_core::Guard| Ok::<_, Shop>(1);
    assert_eq!(mutex.try_run(one).await.flat(), Ok(Some(1)));
    control.cut();
    let down = Err(Shop::Lock(ErrorKind::Unreachable));
    assert_eq!(mutex.run(one).await.flat(), down);
}

#[tokio::test(start_paused = true)]
async fn settings_that_are_not_set_are_kept() {
    let world = World::new();
    let settings = Settings::new()
        .lease(seconds(7))
        .retry_unreachable_for(seconds(2));
    let (locks, control) = world.client_with(settings);
    let named = locks.with(Settings::new().label("nightly")).unwrap();
    assert_eq!(named.lease(), seconds(7));
    assert_eq!(named.settings().asked_lease(), Some(seconds(7)));
    let guard = named.mutex("x").unwrap().lock().await.unwrap();
    let info = named.inspect("x").await.unwrap();
    assert_eq!(info.holders[0].label, "nightly");
    drop(guard);
    control.cut();
    let start = Instant::now();
    assert!(named.mutex("y").unwrap().lock().await.is_err());
    assert!(start.elapsed() <= seconds(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_at_once_when_asked() {
    let world = World::new();
    let (locks, control) = world.client_with(Settings::new().lease(seconds(30)));
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    tokio::time::sleep(seconds(5)).await;
    let before = guard.valid_until().unwrap();
    guard.renew_now().await.unwrap();
    assert_eq!(guard.valid_until().unwrap().since(before), seconds(5));
    guard.ensure_held().unwrap();
    control.cut();
    let error = guard.renew_now().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.held_now()),
        (ErrorKind::TimedOut, HeldNow::Yes)
    );
    control.heal();
    world.control.expire("x");
    assert_eq!(guard.renew_now().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_writer_is_proven() {
    let world = World::new();
    let locks = world.client();
    let lock = locks.rw_lock("x").unwrap();
    let guard = lock.write().await.unwrap();
    assert_eq!(guard.writer().unwrap().mode(), Mode::Exclusive);
    guard.downgrade().await.unwrap();
    assert_eq!(guard.writer().unwrap_err().kind(), ErrorKind::Conflict);
    assert!(lock.is_locked().await.unwrap());
    world.control.expire("x");
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(guard.writer().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn permits_come_in_numbers() {
    let world = World::new();
    let (one, two) = (world.client(), world.client());
    let (one, two) = (
        one.semaphore("x", 5).unwrap(),
        two.semaphore("x", 5).unwrap(),
    );
    for wrong in [0, 6] {
        let error = one.acquire_many(wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let three = one.acquire_many(3).await.unwrap();
    assert_eq!(two.available_permits().await.unwrap(), 2);
    assert!(two.try_acquire_many(3).await.unwrap().is_none());
    assert_eq!(two.available_permits().await.unwrap(), 2, "all or none");
    assert!(two.is_locked().await.unwrap());
    drop(three);
    // Each wants more than half: nobody waits for ever with a part.
    for _ in 0..10 {
        let (a, b) = tokio::join!(
            async { one.acquire_many(3).await.unwrap().release().await },
            async { two.acquire_many(4).await.unwrap().release().await },
        );
        let _ = (a.unwrap(), b.unwrap());
    }
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn campaigns_end_and_changes_of_the_leader_are_pushed() {
    let world = World::new();
    let (one, two) = (world.client(), world.client());
    let (one, two) = (one.election("e").unwrap(), two.election("e").unwrap());
    let mut leaders = pin!(two.look_every(seconds(3600)).observe());
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    let first = one
        .try_campaign("one")
        .await
        .unwrap()
        .expect("nobody leads");
    let start = Instant::now();
    let seen = leaders.next().await.unwrap().unwrap().expect("one leads");
    assert_eq!(seen.value, "one");
    assert!(start.elapsed() < millis(100));
    assert!(one.try_campaign("again").await.unwrap().is_none());
    let late = one.campaign_within(millis(50), "late").await.unwrap();
    assert!(late.is_none());
    drop(first);
    assert!(leaders.next().await.unwrap().unwrap().is_none());
    assert!(start.elapsed() < millis(300), "{:?}", start.elapsed());
}
