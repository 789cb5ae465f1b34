//! How often the memory backend, with core around it, allocates for a cycle, against docs/costs.txt; and that no task is left.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod costs_support;

use std::alloc::System;

use costs_support::{Row, settle};
use dlock_core::Locks;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CYCLES: usize = 1_000;

/// In a runtime of one thread, so that nobody else allocates.
#[tokio::test]
async fn a_cycle_in_memory_allocates_no_more_than_the_file_says_and_leaves_no_task() {
    let locks = dlocks::connect("memory:").await.expect("a client");
    let cycle = async |locks: &Locks| {
        let mutex = locks.mutex("cost").expect("a name");
        let guard = mutex.lock().await.expect("the lock");
        let _ = guard.release().await.expect("it answers");
    };
    for _ in 0..CYCLES {
        cycle(&locks).await;
    }
    let metrics = tokio::runtime::Handle::current().metrics();
    let tasks = metrics.num_alive_tasks();
    let region = Region::new(ALLOCATOR);
    for _ in 0..CYCLES {
        cycle(&locks).await;
    }
    let change = region.change();
    assert!(
        metrics.num_alive_tasks() <= tasks,
        "{} tasks, before {tasks}",
        metrics.num_alive_tasks()
    );
    settle(vec![Row {
        name: "memory:allocations".to_owned(),
        cycle: change.allocations as f64 / CYCLES as f64,
        turn: None,
        renewal: None,
    }]);
}
