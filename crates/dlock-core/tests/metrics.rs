//! Counters and histograms reach the program's metrics recorder.
#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{World, seconds};
use dlock_core::Settings;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
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

impl GaugeFn for One {
    fn increment(&self, value: f64) {
        self.add(value as u64);
    }
    fn decrement(&self, value: f64) {
        *self.0.0.lock().unwrap().entry(self.1.clone()).or_default() -= value as u64;
    }
    fn set(&self, _: f64) {}
}

impl Seen {
    /// The name, and the labels but for the backend, which all have.
    fn one(&self, key: &Key) -> Arc<One> {
        let mut labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        labels.sort();
        assert_eq!(labels.remove(0), "backend=memory");
        let labels = labels.join(",");
        Arc::new(One(self.clone(), format!("{}{{{labels}}}", key.name())))
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.0
            .lock()
            .unwrap()
            .insert(format!("help {}", name.as_str()), help.len() as u64);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe_counter(name, unit, help);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe_counter(name, unit, help);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one(key))
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
    let get = |name: &str| {
        let seen = seen.0.lock().unwrap();
        *seen.get(name).unwrap_or_else(|| panic!("{name}: {seen:?}"))
    };
    metrics::with_local_recorder(&seen, || {
        runtime.block_on(async {
            let world = World::new();
            let settings = Settings::new().lease(seconds(3)).group("shop");
            let (locks, control) = world.client_with(settings);
            assert_eq!(
                get("dlock_losses_total{group=,reason=expired}"),
                0,
                "from the start"
            );
            assert_eq!(
                get("dlock_losses_total{group=,reason=gone}"),
                0,
                "from the start"
            );
            let mutex = locks.mutex("x").unwrap();
            let guard = mutex.lock().await.unwrap();
            assert!(mutex.try_lock().await.unwrap().is_none());
            let limit = seconds(1);
            assert!(mutex.lock_within(limit).await.unwrap().is_none());
            let waits = tokio::spawn({
                let mutex = mutex.clone();
                async move { mutex.lock().await.unwrap() }
            });
            tokio::time::sleep(seconds(4)).await;
            assert_eq!(get("dlock_held{}"), 1);
            assert_eq!(get("dlock_waiting{}"), 1);
            let _ = guard.release().await.unwrap();
            let guard = waits.await.unwrap();
            control.cut();
            guard.lost().await;
        });
    });
    for (name, count) in [
        ("dlock_acquires_total{group=shop,outcome=acquired}", 2),
        ("dlock_acquires_total{group=shop,outcome=busy}", 1),
        ("dlock_acquires_total{group=shop,outcome=gave_up}", 1),
        ("dlock_releases_total{group=shop}", 1),
        ("dlock_losses_total{group=shop,reason=expired}", 1),
        ("dlock_wait_seconds{group=shop,outcome=acquired}", 2),
        ("dlock_wait_seconds{group=shop,outcome=gave_up}", 1),
        ("dlock_hold_seconds{}", 2),
        ("dlock_held{}", 0),
        ("dlock_waiting{}", 0),
    ] {
        assert_eq!(get(name), count, "{name}");
    }
    assert!(get("dlock_renewals_total{group=shop,outcome=extended}") >= 3);
    assert!(get("dlock_renewals_total{group=shop,outcome=failed}") >= 1);
    // Every metric has a help text, and a line in the documentation.
    let table = include_str!("../../../docs/metrics.md");
    let seen = seen.0.lock().unwrap();
    let names = seen.keys().filter_map(|key| key.split_once('{'));
    for (name, _) in names {
        assert!(seen[&format!("help {name}")] > 0, "{name}");
        assert!(
            table.contains(&format!("| `{name}` |")),
            "{name} is not in docs/metrics.md"
        );
    }
}
