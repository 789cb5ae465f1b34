//! Every scenario of one process, on the memory backend.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_bench::{Bench, Dlock, Scenario};

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_of_one_process_has_a_figure() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let bench = Bench::new()
        .rounds(2)
        .round(Duration::from_millis(100))
        .warm_up(Duration::from_millis(5))
        .watch(Duration::from_millis(100))
        .tell(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    let (one, other) = (Dlock::new("memory:"), Dlock::new("memory:").named("again"));
    let scenarios = [
        Scenario::Cycle,
        Scenario::Sale { contenders: 8 },
        Scenario::Names {
            tasks: 4,
            names: 10,
        },
        Scenario::Names {
            tasks: 1,
            names: 10,
        },
        Scenario::Held { locks: 100 },
    ];
    for scenario in scenarios {
        let figures = bench.run(scenario, &[&one, &other]).await.expect("figures");
        let names: Vec<_> = figures
            .iter()
            .map(|figure| figure.subject.as_str())
            .collect();
        assert_eq!(names, ["dlock", "again"]);
        for figure in &figures {
            assert_eq!(figure.rounds.len(), 2, "{scenario}");
            assert!(figure.middle() > 0.0, "{scenario}");
            assert!(figure.cycles > 0, "{scenario}");
        }
        assert!(figures[0].ratio_to(&figures[1]).middle > 0.0);
    }
    assert_eq!(told.load(Ordering::Relaxed), 2 * 2 * scenarios.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_one_process_are_not_measured_over_several() {
    let bench = Bench::new().rounds(1).round(Duration::from_millis(10));
    let memory = Dlock::new("memory:");
    assert!(!memory.is_between_processes().await.expect("an answer"));
    let error = bench.run(Scenario::HandOff, &[&memory]).await;
    let error = error.expect_err("no figure").to_string();
    assert!(error.contains("do not reach"), "{error}");
}
