//! Counters and histograms reach the program's metrics recorder.
#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{World, seconds};
use dlock_core::Settings;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, u64>>>);

struct One(Seen, String);

impl One {
    fn add(&self, by: u64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() += by;
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.add(value);
    }
    fn absolute(&self, _: u64) {}
}

impl HistogramFn for One {
    fn record(&self, _: f64) {
        self.add(1);
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        assert!(
            key.labels()
                .any(|label| (label.key(), label.value()) == ("backend", "memory"))
        );
        Counter::from_arc(Arc::new(One(self.clone(), key.name().to_owned())))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(One(self.clone(), key.name().to_owned())))
    }
}

#[test]
fn a_hold_its_renewal_its_release_and_a_loss_are_counted() {
    let seen = Seen::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&seen, || {
        runtime.block_on(async {
            let world = World::new();
            let (locks, control) = world.client_with(Settings::new().lease(seconds(3)));
            let mutex = locks.mutex("x").unwrap();
            let guard = mutex.lock().await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_none());
            tokio::time::sleep(seconds(4)).await;
            let _ = guard.release().await.unwrap();
            let guard = mutex.lock().await.unwrap();
            control.cut();
            guard.lost().await;
        });
    });
    let seen = seen.0.lock().unwrap();
    for (name, count) in [
        ("dlock_acquired_total", 2),
        ("dlock_busy_total", 1),
        ("dlock_released_total", 1),
        ("dlock_lost_expired_total", 1),
        ("dlock_wait_seconds", 2),
        ("dlock_hold_seconds", 2),
    ] {
        assert_eq!(seen.get(name), Some(&count), "{name}: {seen:?}");
    }
    assert!(seen["dlock_renewals_total"] >= 3);
    assert!(seen["dlock_renewals_failed_total"] >= 1);
}
