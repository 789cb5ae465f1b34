//! What a blocking client leaves behind: nothing. Alone in its program, because it counts the threads.
#![cfg(all(feature = "blocking", feature = "memory", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlocks::memory::MemoryBackend;
use dlocks::{Locks, Settings, blocking};

/// The kernel keeps the first 15 bytes of a thread's name.
fn threads_of_clients() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "dlock-blocking")
        .count()
}

fn expect_none() {
    // Nothing tells that a thread of another's has ended; the limit is for a test that has gone wrong.
    let start = Instant::now();
    while threads_of_clients() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "a thread is left"
        );
        thread::yield_now();
    }
}

#[test]
fn the_thread_of_a_client_ends_with_its_last_handle_and_frees_the_lock_before() {
    assert!(blocking::connect("memory:?no=1").is_err());
    expect_none();

    let store = MemoryBackend::new();
    let backend = store.another_client();
    // The thread has to wait for the release.
    backend.control().delay_requests(Duration::from_millis(50));
    let settings = Settings::new().lease(Duration::from_secs(3600));
    let made = Locks::builder(Arc::new(backend)).settings(settings).build();
    let locks = blocking::open(async { made }).unwrap();
    assert_eq!(threads_of_clients(), 1, "one for each client");
    let mutex = locks.mutex("x").unwrap();
    drop(locks);
    let guard = mutex.lock().unwrap();
    drop(mutex);
    assert_eq!(threads_of_clients(), 1, "the guard needs it");
    assert!(guard.is_held());
    drop(guard);
    expect_none();

    let others = blocking::open(async { Locks::new(store) }).unwrap();
    assert_eq!(others.list("").unwrap(), [], "given back before it ended");
    drop(others);
    expect_none();
}
