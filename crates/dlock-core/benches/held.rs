//! What 100,000 locks held at once by one client cost: memory for each, and the renewals of a minute.
//!
//! `cargo bench -p dlock-core --bench held`
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark talks to a person, and ends where its expectation breaks"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::{Guard, Locks, Settings};
use dlock_memory::MemoryBackend;

const LOCKS: usize = 100_000;

/// What the process has in memory, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * 4096
}

/// The processor time of this process.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * 10)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let lease = Duration::from_secs(6);
    let locks = Locks::builder(Arc::new(MemoryBackend::new()))
        .settings(Settings::new().lease(lease))
        .build()
        .expect("good settings");
    let names: Vec<String> = (0..LOCKS).map(|n| format!("shard:{n:06}")).collect();
    let mut guards: Vec<Guard> = Vec::with_capacity(LOCKS);
    let warm = locks
        .mutex("warm")
        .expect("a name")
        .lock()
        .await
        .expect("free");
    drop(warm);

    let before = resident();
    let start = Instant::now();
    for name in &names {
        guards.push(
            locks
                .mutex(name)
                .expect("a name")
                .lock()
                .await
                .expect("free"),
        );
    }
    let taken = start.elapsed();
    let each = (resident() - before) / LOCKS;
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    println!(
        "held {LOCKS} locks in {taken:.2?}: {each} bytes each (store included), {tasks} background tasks"
    );

    let (start, spent) = (Instant::now(), processor_time());
    tokio::time::sleep(lease * 3).await;
    let stats = locks.stats();
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    println!(
        "after {:.1?}: {held} held, {} renewals, {} losses, {:.1} % of one processor",
        start.elapsed(),
        stats.renewals,
        stats.losses.total(),
        100.0 * (processor_time() - spent).as_secs_f64() / start.elapsed().as_secs_f64(),
    );
    assert_eq!(held, LOCKS, "every lock is still held");
    assert!(each <= 1024, "{each} bytes each is more than 1 KiB");

    let start = Instant::now();
    drop(guards);
    locks.close().await.expect("closed");
    println!("gave all of them back in {:.2?}", start.elapsed());
}
