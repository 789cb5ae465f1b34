//! The benchmark as a user runs it, with rounds that are too short to say anything.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::BTreeSet;

use common::World;
use serde_json::Value;

const SHORT: [&str; 16] = [
    "bench",
    "--rounds",
    "2",
    "--time",
    "100ms",
    "--warm-up",
    "2ms",
    "--watch",
    "100ms",
    "--contenders",
    "1,4",
    "--held",
    "50",
    "--waiters",
    "20",
    "--json",
];

fn kinds(report: &Value) -> BTreeSet<&str> {
    let figures = report["figures"].as_array().unwrap();
    let kinds = figures
        .iter()
        .map(|figure| figure["scenario"].as_str().unwrap());
    kinds.collect()
}

fn every_figure_is_whole(report: &Value) {
    for figure in report["figures"].as_array().unwrap() {
        assert_eq!(figure["rounds"].as_array().unwrap().len(), 2, "{figure}");
        let scenario = figure["scenario"].as_str().unwrap();
        // Processes and a crowd may not get to it in so short a round of a busy machine.
        if ["cycle", "sale", "held"].contains(&scenario) {
            assert!(figure["middle"].as_f64().unwrap() > 0.0, "{figure}");
            assert!(figure["cycles"].as_u64().unwrap() > 0, "{figure}");
        }
        for key in [
            "size", "what", "subject", "unit", "least", "most", "times_us", "notes",
        ] {
            assert!(!figure[key].is_null(), "{key}: {figure}");
        }
        for part in ["p50", "p90", "p99", "max"] {
            assert!(figure["times_us"][part].is_number(), "{figure}");
        }
    }
}

#[test]
fn files_are_measured_in_every_way() {
    let report = World::new().json(&SHORT);
    every_figure_is_whole(&report);
    let all = [
        "cycle",
        "sale",
        "clients",
        "processes",
        "process-clients",
        "names",
        "hand-off",
        "held",
        "waiters",
    ];
    assert_eq!(kinds(&report), BTreeSet::from(all));
    assert_eq!(report["left_out"].as_array().unwrap().len(), 0);
    assert!(report["backend"].as_str().unwrap().starts_with("file:"));
    for key in [
        "seed",
        "version",
        "rounds",
        "round_ms",
        "warm_up_ms",
        "watch_ms",
    ] {
        assert!(!report[key].is_null(), "{key}: {report}");
    }
}

#[test]
fn memory_says_what_it_leaves_out() {
    let mut args = SHORT.to_vec();
    args.extend(["--only", "cycle,sale,hand-off"]);
    let report = World::of("memory:").json(&args);
    every_figure_is_whole(&report);
    assert_eq!(kinds(&report), BTreeSet::from(["cycle", "sale"]));
    let left_out = report["left_out"].as_array().unwrap();
    assert_eq!(left_out[0], "hand-off to another process");
}

#[test]
fn people_get_a_table() {
    let args = [
        "bench", "--only", "cycle", "--rounds", "1", "--time", "10ms",
    ];
    let output = World::new().run(&args);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("lock and release"), "{text}");
}

#[test]
fn a_store_that_is_not_there_is_told_at_once() {
    let output = World::of("file:/proc/nothing").run(&["bench", "--only", "cycle"]);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
}
