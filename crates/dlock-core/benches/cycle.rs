//! What core itself costs: lock and release on the memory backend, and hand-offs between local waiters.
//!
//! `cargo bench -p dlock-core --bench cycle`

#![allow(
    clippy::expect_used,
    reason = "a benchmark ends where its expectation breaks"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dlock_core::backend::Request;
use dlock_core::{Locks, Mode, Name, Order, Settings, SystemClock};
use dlock_memory::MemoryBackend;
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn uncontended(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("uncontended");
    let lingers = Settings::new().linger(Duration::from_secs(1));
    for (what, settings) in [
        ("lock and release", Settings::new()),
        ("lock and release, lingering", lingers),
    ] {
        let locks = Locks::builder(Arc::new(MemoryBackend::new()));
        let locks = locks.settings(settings).build().expect("settings");
        let mutex = locks.mutex("stock:42").expect("a good name");
        group.bench_function(what, |b| {
            b.iter_custom(|rounds| {
                runtime.block_on(async {
                    let start = Instant::now();
                    for _ in 0..rounds {
                        let guard = mutex.lock().await.expect("free");
                        let _ = guard.release().await.expect("held");
                    }
                    start.elapsed()
                })
            });
        });
    }
    // The baseline: the same two steps at the backend, without core.
    let backend: Arc<dyn dlock_core::backend::Backend> = Arc::new(MemoryBackend::new());
    let name = Name::new("stock:42").expect("a good name");
    group.bench_function("backend alone", |b| {
        b.iter_custom(|rounds| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..rounds {
                    let request =
                        Request::new(name.clone(), Mode::Exclusive, Arc::new(SystemClock));
                    let Ok(dlock_core::backend::Outcome::Held(lease)) =
                        backend.try_acquire(&request).await
                    else {
                        continue;
                    };
                    let _ = backend.release(&lease).await.expect("held");
                }
                start.elapsed()
            })
        });
    });
    group.finish();
}

/// `waiters` tasks take one lock in turn; the time is that of one hand-off.
async fn hand_offs(order: Order, waiters: u64, rounds: u64) -> Duration {
    let locks = Locks::builder(Arc::new(MemoryBackend::new()))
        .settings(Settings::new().order(order))
        .build()
        .expect("defaults");
    let mutex = locks.mutex("stock:42").expect("a good name");
    let each = rounds.div_ceil(waiters).max(1);
    let blocker = mutex.lock().await.expect("free");
    let tasks: Vec<_> = (0..waiters)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move {
                for _ in 0..each {
                    let guard = mutex.lock().await.expect("in turn");
                    let _ = guard.release().await.expect("held");
                }
            })
        })
        .collect();
    tokio::task::yield_now().await; // all of them stand in line
    let start = Instant::now();
    drop(blocker);
    for task in tasks {
        task.await.expect("no panic");
    }
    // Scaled to the rounds that were asked for.
    let done = each * waiters;
    start.elapsed().mul_f64(rounds as f64 / done as f64)
}

fn waiting(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("hand-off");
    group.throughput(Throughput::Elements(1));
    for (label, order) in [("by client", Order::ByClient), ("strict", Order::Strict)] {
        for waiters in [10, 100, 1000, 10_000] {
            group.bench_function(BenchmarkId::new(label, waiters), |b| {
                b.iter_custom(|rounds| {
                    runtime
                        .block_on(hand_offs(order, waiters, rounds.max(waiters)))
                        .mul_f64(rounds as f64 / rounds.max(waiters) as f64)
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = uncontended, waiting
}
criterion_main!(benches);
