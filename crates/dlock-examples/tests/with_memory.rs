//! How to test your own code with `dlock-memory`: a store inside the process that fails when you say so. The page is docs/testing.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;
use std::time::Duration;

use dlocks::memory::MemoryBackend;
use dlocks::{ErrorKind, Locks, LossReason, Released, Settings, TokioClock};

// [code-under-test]
/// The code under test takes its locks as an argument: a service in production, a store of its own in each test.
async fn nightly(locks: &Locks, mut report: impl FnMut()) -> Result<bool, dlocks::Error> {
    let ran = locks.mutex("nightly")?.try_run(async |_| report()).await?;
    Ok(ran.is_some())
}
// [end]

// [busy]
#[tokio::test]
async fn the_report_is_left_out_while_another_host_is_at_it() {
    let store = MemoryBackend::new();
    let other = Locks::new(store.another_client()).unwrap();
    let mine = Locks::new(store.another_client()).unwrap();

    let _at_it = other.mutex("nightly").unwrap().lock().await.unwrap();
    assert!(!nightly(&mine, || panic!("must not run")).await.unwrap());
}
// [end]

// [cut]
#[tokio::test]
async fn a_store_out_of_reach_is_an_error_and_not_busy() {
    let backend = MemoryBackend::new();
    let control = backend.control(); // of this client alone
    let locks = Locks::new(backend).unwrap();

    control.cut();
    let error = nightly(&locks, || ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);

    control.heal();
    assert!(nightly(&locks, || ()).await.unwrap());
}
// [end]

// [lost]
#[tokio::test]
async fn the_work_stops_when_the_lock_is_lost() {
    let backend = MemoryBackend::new();
    let control = backend.control();
    let settings = Settings::new().lease(Duration::from_millis(300));
    let locks = Locks::builder(backend).settings(settings).build().unwrap();

    let lock = locks.mutex("nightly").unwrap();
    let outcome = lock
        .run(async |guard| {
            control.expire("nightly"); // as if this process had been paused past its lease
            guard.lost().await; // the next renewal finds it gone
            std::future::pending::<()>().await // never ends by itself: `run` cancels it
        })
        .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}
// [end]

// [reply]
#[tokio::test]
async fn a_lost_reply_leaves_nothing_behind() {
    let store = MemoryBackend::new();
    let backend = store.another_client();
    let control = backend.control();
    let mine = Locks::new(backend).unwrap();
    let theirs = Locks::new(store.another_client()).unwrap();

    control.lose_reply(1); // the store grants the lock, and nobody hears of it
    let outcome = mine.mutex("nightly").unwrap().try_lock().await;
    assert!(outcome.is_err(), "{outcome:?}");

    // What is in doubt is undone in the background.
    let guard = theirs.mutex("nightly").unwrap().lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}
// [end]

// [hour]
#[tokio::test(start_paused = true)]
async fn an_hour_passes_at_once() {
    let clock = Arc::new(TokioClock::new());
    let backend = MemoryBackend::with_clock(clock.clone());
    let settings = Settings::new().max_hold(Duration::from_secs(3600));
    let locks = Locks::builder(backend)
        .clock(clock)
        .settings(settings)
        .build()
        .unwrap();

    let guard = locks.mutex("nightly").unwrap().lock().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert!(guard.is_held(), "renewed all the time");
    assert_eq!(guard.lost().await, LossReason::MaxHold);
}
// [end]
