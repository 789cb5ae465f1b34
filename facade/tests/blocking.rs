//! The blocking API, case by case, on the memory and the file store. The cases are those of the conformance suite that say something about
//! this layer; what is below it, the suite tests by itself.
#![cfg(all(feature = "blocking", feature = "memory", feature = "file"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::cell::Cell;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use dlocks::blocking::{self, Guard, Locks};
use dlocks::{ErrorKind, LossReason, Mode, Owner, Released, Settings};

const SECOND: Duration = Duration::from_secs(1);
/// A wait that ends with an event; the limit is for a test that has gone wrong.
const LONG: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(3600);

/// Every client of a `Store` shares its locks.
struct Store {
    url: String,
    _folder: Option<tempfile::TempDir>,
}

impl Store {
    /// With a lease that no test waits for: what is free was given back.
    fn client(&self) -> Locks {
        self.with(Settings::new().lease(LEASE))
    }

    fn with(&self, settings: Settings) -> Locks {
        blocking::builder(&self.url)
            .settings(settings)
            .connect()
            .unwrap()
    }
}

fn memory(test: &str) -> Store {
    Store {
        url: format!("memory:blocking-{test}"),
        _folder: None,
    }
}

fn file() -> Store {
    let folder = tempfile::tempdir().unwrap();
    Store {
        url: format!("file:{}", folder.path().join("locks").display()),
        _folder: Some(folder),
    }
}

fn both(test: &str) -> [Store; 2] {
    [memory(test), file()]
}

/// A number that loses updates if two threads are at it. Each thread has the same cell, which is not atomic in any way that helps: it is
/// read, and written back later.
#[derive(Default)]
struct Number(std::sync::atomic::AtomicU64);

impl Number {
    fn increment(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        let seen = self.0.load(Relaxed);
        thread::yield_now();
        self.0.store(seen + 1, Relaxed);
    }
}

fn exclude(store: &Store, clients: usize, threads: usize, times: u64) {
    let number = Number::default();
    thread::scope(|scope| {
        for _ in 0..clients {
            let locks = store.client();
            for _ in 0..threads {
                let mutex = locks.mutex("number").unwrap();
                let number = &number;
                scope.spawn(move || {
                    for _ in 0..times {
                        let guard = mutex.lock().unwrap();
                        number.increment();
                        assert_eq!(guard.release().unwrap(), Released::Freed);
                    }
                });
            }
        }
    });
    let all = (clients * threads) as u64 * times;
    assert_eq!(number.0.into_inner(), all, "updates were lost");
    assert!(!store.client().inspect("number").unwrap().is_locked());
}

#[test]
fn c1_counter_loses_no_update_with_threads_of_one_client() {
    for store in both("c1-one") {
        exclude(&store, 1, 8, 200);
    }
}

#[test]
fn c1_counter_loses_no_update_with_threads_of_several_clients() {
    for store in both("c1-several") {
        exclude(&store, 4, 2, 50);
    }
}

#[test]
fn c1_of_many_tries_at_once_one_succeeds() {
    for store in both("c1-tries") {
        let start = Barrier::new(8);
        let held: Vec<Guard> = thread::scope(|scope| {
            let tries: Vec<_> = (0..8)
                .map(|_| {
                    let mutex = store.client().mutex("x").unwrap();
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        mutex.try_lock().unwrap()
                    })
                })
                .collect();
            tries
                .into_iter()
                .filter_map(|attempt| attempt.join().unwrap())
                .collect()
        });
        assert_eq!(held.len(), 1);
    }
}

#[test]
fn c1_work_is_done_under_the_lock_which_is_freed_after_it() {
    for store in both("c1-run") {
        let locks = store.client();
        let mutex = locks.mutex("x").unwrap();
        let token = mutex
            .run(|guard| {
                assert!(guard.is_held());
                guard.ensure_held().unwrap();
                assert!(mutex.is_locked().unwrap());
                guard.token()
            })
            .unwrap();
        assert!(token.is_some());
        assert!(!mutex.is_locked().unwrap());
        assert_eq!(locks.stats().released, 1);
        let guard = mutex.try_lock().unwrap().unwrap();
        guard.renew_now().unwrap();
        assert_eq!(mutex.try_run(|_| ()).unwrap(), None);
        assert_eq!(mutex.run_within(Duration::ZERO, |_| ()).unwrap(), None);
        drop(guard);
        assert_eq!(mutex.run_within(LONG, |_| 1).unwrap(), Some(1));
    }
}

#[test]
fn c1_several_locks_are_all_or_nothing() {
    let store = memory("c1-multi");
    let locks = store.client();
    let other = store.client().mutex("b").unwrap();
    let all = locks.multi(["a", "b"]).unwrap();
    let guard = other.lock().unwrap();
    assert!(all.try_lock().unwrap().is_none());
    assert!(!locks.inspect("a").unwrap().is_locked(), "a was given back");
    let _ = guard.release().unwrap();
    assert_eq!(all.run(|guard| guard.tokens().len()).unwrap(), 2);
}

#[test]
fn c2_one_thread_excludes_itself_unless_it_is_one_owner() {
    for store in both("c2") {
        let mutex = store.client().mutex("x").unwrap();
        let _guard = mutex.lock().unwrap();
        assert!(mutex.try_lock().unwrap().is_none());
        let mine = store.client().mutex("y").unwrap().owned_by(Owner::new());
        let outer = mine.lock().unwrap();
        let inner = mine.lock().unwrap();
        assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
        assert_eq!(inner.release().unwrap(), Released::StillHeld);
        assert_eq!(outer.release().unwrap(), Released::Freed);
    }
}

#[test]
fn c4_a_time_limit_is_kept_and_zero_is_a_try() {
    for store in both("c4") {
        let mutex = store.client().mutex("x").unwrap();
        let _guard = store.client().mutex("x").unwrap().lock().unwrap();
        let limit = Duration::from_millis(100);
        let start = Instant::now();
        assert!(mutex.lock_within(limit).unwrap().is_none());
        assert!(start.elapsed() >= limit);
        assert!(mutex.lock_within(Duration::ZERO).unwrap().is_none());
        let settings = Settings::new().wait_at_most(limit);
        let hasty = store.with(settings).mutex("x").unwrap();
        assert_eq!(hasty.lock().unwrap_err().kind(), ErrorKind::Busy);
    }
}

#[test]
fn c4_a_waiter_is_woken_by_the_release_of_another_thread() {
    for store in both("c4-wake") {
        let (locks, other) = (store.client(), store.client());
        let guard = locks.mutex("x").unwrap().lock().unwrap();
        let waiter = thread::spawn(move || {
            let mutex = other.mutex("x").unwrap();
            mutex.lock_within(LONG).unwrap().expect("woken").token()
        });
        while locks.inspect("x").unwrap().waiters.is_empty() {
            thread::yield_now();
        }
        let first = guard.token();
        let _ = guard.release().unwrap();
        assert!(waiter.join().unwrap() > first);
    }
}

#[test]
fn c5_a_store_that_is_not_there_is_an_error_of_its_own_kind() {
    let error = blocking::connect("memory:?no=1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "no folder").unwrap();
    let error = blocking::connect(&format!("file:{}", plain.display())).unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Busy, "{error}");
}

#[test]
fn c6_a_broken_lock_is_found_lost_and_its_late_release_frees_nobody_else() {
    let store = memory("c6");
    let settings = Settings::new().lease(Duration::from_secs(2));
    let guard = store.with(settings).mutex("x").unwrap().lock().unwrap();
    assert_eq!(guard.lost_within(Duration::ZERO).unwrap(), None);
    let other = store.client();
    assert!(other.break_lock("x").unwrap());
    let next = other.mutex("x").unwrap().try_lock().unwrap().unwrap();
    assert_eq!(guard.lost_within(LONG).unwrap(), Some(LossReason::Gone));
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
    assert!(next.is_held());
}

#[test]
fn c8_work_whose_hold_was_lost_is_an_error() {
    let store = memory("c8");
    let other = store.client();
    let settings = Settings::new().lease(Duration::from_secs(2));
    let mutex = store.with(settings).mutex("x").unwrap();
    let error = mutex
        .run(|guard| {
            assert!(other.break_lock("x").unwrap());
            assert_eq!(guard.lost_within(LONG).unwrap(), Some(LossReason::Gone));
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.backend(), Some("memory"));
    assert!(error.to_string().contains("work \"x\""), "{error}");
}

#[test]
fn c8_a_loss_that_only_the_release_finds_is_an_error_too() {
    let store = memory("c8-late");
    let other = store.client();
    // Nobody renews, so nobody but the release can notice.
    let settings = Settings::new().renewal(false).lease(LEASE);
    let mutex = store.with(settings).mutex("x").unwrap();
    let error = mutex
        .run(|_| assert!(other.break_lock("x").unwrap()))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[test]
fn c11_tokens_increase_from_thread_to_thread() {
    for store in both("c11") {
        let (tell, told) = channel();
        thread::scope(|scope| {
            for _ in 0..4 {
                let (tell, mutex) = (tell.clone(), store.client().mutex("x").unwrap());
                scope.spawn(move || {
                    for _ in 0..10 {
                        let guard = mutex.lock().unwrap();
                        tell.send(guard.token().unwrap()).unwrap();
                        let _ = guard.release().unwrap();
                    }
                });
            }
        });
        drop(tell);
        let tokens: Vec<_> = told.iter().collect();
        assert_eq!(tokens.len(), 40);
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }
}

/// Taken by somebody else, without help.
fn expect_free_soon(store: &Store) {
    let mutex = store.client().mutex("x").unwrap();
    let guard = mutex.lock_within(LONG).unwrap().expect("free");
    let _ = guard.release().unwrap();
}

#[test]
fn c14_dropping_a_guard_frees_the_lock_and_never_panics() {
    thread_local! {
        static LAST: Cell<Option<Guard>> = const { Cell::new(None) };
    }
    for store in both("c14") {
        let locks = store.client();
        let mutex = locks.mutex("x").unwrap();
        drop(mutex.lock().unwrap());
        expect_free_soon(&store);
        let unwound = thread::spawn({
            let mutex = mutex.clone();
            move || mutex.run(|_| std::panic::resume_unwind(Box::new("the work panics")))
        });
        assert!(unwound.join().is_err());
        expect_free_soon(&store);
        let at_the_end_of_a_thread = thread::spawn({
            let mutex = mutex.clone();
            move || LAST.set(Some(mutex.lock().unwrap()))
        });
        at_the_end_of_a_thread.join().unwrap();
        expect_free_soon(&store);
        // The guard alone keeps its client alive, and ends it.
        let guard = mutex.lock().unwrap();
        drop((mutex, locks));
        assert!(guard.is_held());
        drop(guard);
        expect_free_soon(&store);
    }
}

#[test]
fn c14_a_lock_that_was_dropped_is_free_for_the_next_call_of_the_same_thread() {
    for store in both("c14-same") {
        let mutex = store.client().mutex("x").unwrap();
        for _ in 0..20 {
            drop(mutex.lock_within(LONG).unwrap().expect("free"));
        }
    }
}

#[test]
fn c19_readers_share_writers_exclude_and_a_writer_becomes_a_reader() {
    for store in both("c19") {
        let lock = store.client().rw_lock("x").unwrap();
        let other = store.client().rw_lock("x").unwrap();
        let writer = lock.write().unwrap();
        assert!(other.try_read().unwrap().is_none());
        writer.downgrade().unwrap();
        assert_eq!(writer.mode(), Mode::Shared);
        let reader = other.read_within(LONG).unwrap().expect("readers share");
        assert!(other.try_write().unwrap().is_none());
        assert_eq!(reader.release().unwrap(), Released::Freed);
        assert_eq!(writer.release().unwrap(), Released::Freed);
        lock.run_write(|guard| assert_eq!(guard.mode(), Mode::Exclusive))
            .unwrap();
        lock.run_read(|guard| assert_eq!(guard.mode(), Mode::Shared))
            .unwrap();
        assert!(other.write_within(SECOND).unwrap().is_some());
    }
}

#[test]
fn c19_permits_never_exceed_the_limit() {
    for store in both("c19-permits") {
        let semaphore = store.client().semaphore("x", 2).unwrap();
        let one = semaphore.acquire().unwrap();
        let two = semaphore.acquire_within(LONG).unwrap().unwrap();
        assert!(semaphore.try_acquire().unwrap().is_none());
        drop(one);
        semaphore.run(|guard| assert!(guard.is_held())).unwrap();
        drop(two);
        let all = semaphore.acquire_many(2).unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        assert!(semaphore.try_acquire_many(2).unwrap().is_none());
        assert_eq!(all.release().unwrap(), Released::Freed);
        assert_eq!(
            (semaphore.limit(), semaphore.is_locked().unwrap()),
            (2, false)
        );
    }
}

#[test]
fn what_a_client_tells_is_told_and_closing_ends_its_holds() {
    for store in both("tells") {
        let locks = store.client();
        let guard = locks.mutex("shop:1").unwrap().lock().unwrap();
        let info = locks.inspect("shop:1").unwrap();
        assert_eq!(info.holders[0].owner, guard.owner_id());
        let names: Vec<_> = locks.list("shop:").unwrap();
        let names: Vec<_> = names.iter().map(|lock| lock.name.as_str()).collect();
        assert_eq!(names, ["shop:1"]);
        assert_eq!(locks.stats().held, 1);
        assert!(format!("{locks:?}").contains(locks.identity()));
        locks.close().unwrap();
        assert!(!guard.is_held());
        assert_eq!(
            guard.lost_within(LONG).unwrap(),
            Some(LossReason::Closed),
            "the thread still answers"
        );
        let error = locks.mutex("x").unwrap().lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        locks.close().unwrap();
    }
}

#[test]
fn a_client_made_by_a_future_of_the_callers_own() {
    let backend = dlocks::memory::MemoryBackend::new();
    let locks = blocking::open(async move { dlocks::Locks::new(backend) }).unwrap();
    assert!(locks.mutex("x").unwrap().try_lock().unwrap().is_some());
    let error = blocking::open(async { Err(dlocks::Error::invalid("no")) }).unwrap_err();
    assert_eq!(error.message(), "no");
}

fn in_a_task(error: &dlocks::Error) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("spawn_blocking"), "{error}");
}

async fn every_call_is_refused(store: Store) {
    in_a_task(&blocking::connect(&store.url).unwrap_err());
    let (locks, guard) = tokio::task::spawn_blocking({
        let url = store.url.clone();
        move || {
            let locks = blocking::connect(&url).unwrap();
            let guard = locks.mutex("x").unwrap().lock().unwrap();
            (locks, guard)
        }
    })
    .await
    .expect("allowed there");
    let mutex = locks.mutex("x").unwrap();
    in_a_task(&mutex.lock().unwrap_err());
    in_a_task(&mutex.try_lock().unwrap_err());
    in_a_task(&mutex.lock_within(SECOND).unwrap_err());
    in_a_task(&mutex.run(|_| ()).unwrap_err());
    in_a_task(&locks.inspect("x").unwrap_err());
    in_a_task(&guard.lost_within(SECOND).unwrap_err());
    // What asks nobody works, and a refused release gives back all the same.
    guard.ensure_held().unwrap();
    in_a_task(&guard.release().unwrap_err());
    tokio::task::spawn_blocking(move || expect_free_soon(&store))
        .await
        .unwrap();
}

#[tokio::test]
async fn in_a_task_of_a_current_thread_runtime_every_call_is_an_error() {
    every_call_is_refused(memory("task-current")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn in_a_task_of_a_worker_every_call_is_an_error() {
    tokio::spawn(every_call_is_refused(memory("task-worker")))
        .await
        .unwrap();
    tokio::task::block_in_place(|| exclude(&memory("in-place"), 1, 1, 3));
}

#[test]
fn a_thread_that_only_knows_a_runtime_may_block() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    exclude(&memory("entered"), 1, 1, 3);
}
