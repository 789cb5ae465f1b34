//! Several clients of one folder, as several processes have them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::backend::{Backend, Request};
use dlock_core::{ErrorKind, Locks, Mode, Name, Settings, SystemClock};
use dlock_file::{Config, FileBackend};

fn backend(folder: &Path) -> FileBackend {
    Config::new(folder).connect().unwrap()
}

fn client(folder: &Path) -> Locks {
    Locks::new(backend(folder)).unwrap()
}

fn files(folder: &Path, part: &str) -> usize {
    std::fs::read_dir(folder.join(part)).unwrap().count()
}

fn request(name: &str) -> Request {
    let name = Name::new(name).unwrap();
    Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_of_many_clients_never_overlap_and_tokens_increase() {
    let dir = tempfile::tempdir().unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = client(dir.path());
        for _ in 0..8 {
            let (locks, inside, last) = (locks.clone(), inside.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = locks.mutex("hot").unwrap().lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    let token = guard.token().unwrap().get();
                    assert!(last.swap(token, Ordering::SeqCst) < token);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let _ = guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(files(dir.path(), "locks"), 0);
    assert_eq!(files(dir.path(), "wake"), 0);
    assert_eq!(files(dir.path(), "clients"), 0, "the clients are gone");
}

#[tokio::test]
async fn there_are_as_many_gates_as_the_format_says_however_many_names_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let locks = client(dir.path());
    for number in 0..1000 {
        let mutex = locks.mutex(format!("name-{number}")).unwrap();
        let _ = mutex.lock().await.unwrap().release().await.unwrap();
    }
    assert_eq!(files(dir.path(), "gates"), 64);
}

#[tokio::test]
async fn a_late_thread_of_an_abandoned_attempt_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let backend = backend(dir.path());
    let request = request("late");
    backend.abandon(&request).await.unwrap();
    let error = backend.try_acquire(&request).await.unwrap_err();
    assert!(error.to_string().contains("abandoned"), "{error}");
    assert!(!backend.inspect(request.name()).await.unwrap().is_locked());
}

#[tokio::test]
async fn the_end_of_a_client_frees_what_it_held_and_wakes_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let holder = backend(dir.path());
    let request = request("left");
    holder.try_acquire(&request).await.unwrap();
    let waiting = client(dir.path());
    assert!(
        waiting
            .mutex("left")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    drop(holder); // without a release, as when its process is killed
    let start = Instant::now();
    let guard = waiting.mutex("left").unwrap().lock().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
    let info = waiting.inspect("left").await.unwrap();
    assert_eq!(info.holders[0].owner, guard.owner_id());
}

#[tokio::test]
async fn inspect_and_list_show_holders_and_waiters_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (client(dir.path()), client(dir.path()));
    let long = "Ä/".repeat(80);
    let first = mine.mutex("b c").unwrap().lock().await.unwrap();
    let second = mine.mutex(&long).unwrap().lock().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.mutex("b c").unwrap().lock().await.unwrap() });
    while mine.inspect("b c").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let names: Vec<_> = mine.list("").await.unwrap();
    assert_eq!(names.len(), 2);
    assert_eq!(names[0].name.as_str(), "b c");
    assert_eq!(names[1].name.as_str(), long);
    assert_eq!(names[1].holders[0].token, second.token());
    assert!(mine.list("b").await.unwrap().len() == 1);
    let released = Instant::now();
    let _ = first.release().await.unwrap();
    let _ = waiter.await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_folder_that_vanished_is_an_error_and_not_busy() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("locks");
    let locks = client(&folder);
    let guard = locks.mutex("a").unwrap().lock().await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let error = locks.mutex("b").unwrap().try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let released = guard.release().await.unwrap();
    assert_eq!(released, dlock_core::Released::AlreadyLost);
}

#[tokio::test]
async fn where_the_path_is_too_long_for_a_socket_waiters_look_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("x".repeat(120));
    let (mine, theirs) = (client(&folder), client(&folder));
    let guard = mine.mutex("a").unwrap().lock().await.unwrap();
    let waiter = tokio::spawn(async move { theirs.mutex("a").unwrap().lock().await.unwrap() });
    while mine.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(files(&folder, "wake"), 0);
    let _ = guard.release().await.unwrap();
    let _ = waiter.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_gate_that_was_removed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let locks = client(dir.path());
    let first = locks.mutex("a").unwrap().lock().await.unwrap();
    let token = first.token();
    for entry in std::fs::read_dir(dir.path().join("gates")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert!(
        client(dir.path())
            .mutex("a")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    let _ = first.release().await.unwrap();
    let again = locks.mutex("a").unwrap().lock().await.unwrap();
    assert!(again.token() > token);
}

#[tokio::test]
async fn a_client_whose_proof_of_life_was_removed_makes_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (client(dir.path()), client(dir.path()));
    let guard = mine.mutex("a").unwrap().lock().await.unwrap();
    for entry in std::fs::read_dir(dir.path().join("clients")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let other = mine.mutex("b").unwrap().lock().await.unwrap();
    for name in ["a", "b"] {
        let taken = theirs.mutex(name).unwrap().try_lock().await.unwrap();
        assert!(taken.is_none(), "{name} is held");
    }
    let _ = guard.release().await.unwrap();
    let _ = other.release().await.unwrap();
}

fn remove_all_proofs(folder: &Path) {
    for entry in std::fs::read_dir(folder.join("clients")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

/// A cleaner of old files came by, and another client is the first to look after it (C1).
#[tokio::test]
async fn a_client_whose_proof_of_life_was_removed_still_holds_for_whoever_looks_first() {
    let dir = tempfile::tempdir().unwrap();
    let mine = client(dir.path());
    let guard = mine.mutex("a").unwrap().lock().await.unwrap();
    remove_all_proofs(dir.path());
    // One that comes now buries the dead, too.
    let theirs = client(dir.path());
    let taken = theirs.mutex("a").unwrap().try_lock().await.unwrap();
    assert!(taken.is_none(), "a second holder");
    assert_eq!(theirs.inspect("a").await.unwrap().holders.len(), 1);
    let released = guard.release().await.unwrap();
    assert_eq!(released, dlock_core::Released::Freed);
    let taken = theirs.mutex("a").unwrap().try_lock().await.unwrap();
    assert!(taken.is_some());
}

#[test]
fn a_runtime_without_io_is_enough_to_wait() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (client(dir.path()), client(dir.path()));
    runtime.block_on(async {
        let guard = mine.mutex("a").unwrap().lock().await.unwrap();
        let waiter = tokio::spawn(async move { theirs.mutex("a").unwrap().lock().await });
        while mine.inspect("a").await.unwrap().waiters.is_empty() {
            assert!(!waiter.is_finished(), "nobody waits");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _ = guard.release().await.unwrap();
        let _ = waiter.await.unwrap().unwrap().release().await.unwrap();
    });
    drop(mine);
}

/// A hold that was passed on to a task that never runs again has a deadline after all, and is given back then (C21).
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_passed_on_to_a_task_that_never_runs_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::new()
        .lease(Duration::from_secs(1))
        .local_time(Duration::MAX);
    let locks = Locks::builder(Arc::new(backend(dir.path())))
        .settings(settings)
        .build()
        .unwrap();
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let mut heir = Box::pin(mutex.lock());
    assert!(futures::poll!(heir.as_mut()).is_pending());
    let _ = first.release().await.unwrap();
    let other = client(dir.path()).mutex("x").unwrap();
    assert!(other.try_lock().await.unwrap().is_none(), "it is passed on");
    // Well before anybody would look without having been told.
    let next = other.lock_within(Duration::from_secs(10)).await.unwrap();
    assert!(next.is_some());
    drop(next);
    assert!(heir.await.unwrap().is_held(), "it waited once more");
}

/// A hold that was taken up has no deadline, however long its lease would be.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_passed_on_and_taken_up_stays() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::new()
        .lease(Duration::from_millis(200))
        .local_time(Duration::MAX);
    let locks = Locks::builder(Arc::new(backend(dir.path())))
        .settings(settings)
        .build()
        .unwrap();
    let mutex = locks.mutex("x").unwrap();
    let first = mutex.lock().await.unwrap();
    let mut heir = Box::pin(mutex.lock());
    assert!(futures::poll!(heir.as_mut()).is_pending());
    let _ = first.release().await.unwrap();
    let guard = heir.await.unwrap();
    assert_eq!(locks.stats().passed_on, 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(guard.is_held() && guard.valid_until().is_none());
    let other = client(dir.path()).mutex("x").unwrap();
    assert!(other.try_lock().await.unwrap().is_none());
}

/// Other backends refuse with an error; this one has no client below that would need a runtime.
#[test]
fn a_client_connects_outside_of_a_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(folder.path().join("locks"));
    config.connect().unwrap();
}

/// A lock that was taken up after a rest has no deadline, as any lock of a process.
#[tokio::test]
async fn a_lock_taken_up_after_a_rest_has_no_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::new()
        .lease(Duration::from_millis(100))
        .linger(Duration::from_secs(60))
        .local_time(Duration::from_secs(1));
    let locks = client(dir.path()).with(settings).unwrap();
    let mutex = locks.mutex("a").unwrap();
    let _ = mutex.lock().await.unwrap().release().await.unwrap();
    let guard = mutex.lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert!(guard.is_held());
    assert_eq!(guard.valid_until(), None);
    locks.close().await.unwrap();
}
