//! The flash sale as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::BTreeSet;

use common::{World, complaint, text};

const SMALL: [&str; 8] = [
    "--stock",
    "400",
    "--workers",
    "16",
    "--loops",
    "25",
    "--processes",
    "4",
];

fn demo<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["demo"];
    args.extend(SMALL);
    args.extend(more);
    args
}

fn keys(value: &serde_json::Value) -> BTreeSet<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn with_a_lock_the_sale_is_exact() {
    let world = World::new();
    let report = world.json(&demo(&["--json"]));
    let expected = [
        "backend",
        "workers",
        "processes",
        "loops",
        "stock",
        "sold",
        "remaining",
        "oversold",
        "errors",
        "seconds",
        "throughput_per_s",
        "latency_us",
    ];
    assert_eq!(keys(&report), BTreeSet::from(expected));
    let latency = ["mean", "p50", "p90", "p95", "p99", "min", "max"];
    assert_eq!(keys(&report["latency_us"]), BTreeSet::from(latency));
    for (key, value) in [
        ("sold", 400),
        ("remaining", 0),
        ("oversold", 0),
        ("errors", 0),
        ("workers", 16),
    ] {
        assert_eq!(report[key], value, "{key} in {report}");
    }
    assert_eq!(report["backend"], world.url());
    assert!(world.json(&["ls", "--json"]).as_array().unwrap().is_empty());
}

#[test]
fn without_a_lock_more_is_sold_than_there_is() {
    let world = World::new();
    let report = world.json(&demo(&["--json", "--no-lock"]));
    assert!(report["oversold"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["errors"], 0);
}

#[test]
fn a_stock_that_runs_out_is_not_oversold_with_a_lock() {
    let world = World::new();
    let args = [
        "demo",
        "--json",
        "--stock",
        "50",
        "--workers",
        "8",
        "--loops",
        "20",
        "--processes",
        "2",
    ];
    let report = world.json(&args);
    assert_eq!(
        (&report["sold"], &report["remaining"]),
        (&50.into(), &0.into())
    );
}

#[test]
fn a_lock_of_one_process_helps_one_process_only() {
    let world = World::new();
    let alone = world.run(&[
        "demo",
        "--backend",
        "memory:",
        "--json",
        "--stock",
        "100",
        "--workers",
        "4",
        "--loops",
        "25",
        "--processes",
        "1",
    ]);
    assert_eq!(alone.status.code(), Some(0), "{}", text(&alone.stderr));
    let several = world.run(&demo(&["--backend", "memory:", "--json"]));
    assert_eq!(several.status.code(), Some(1), "{}", text(&several.stdout));
}

#[test]
fn people_see_both_runs_and_a_table() {
    let world = World::new();
    let output = world.run(&demo(&[]));
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    for expected in [
        "Without a lock:",
        "With a lock:",
        "400 of 400 sold, and 0 left",
        "exact",
        "░  oversold by ",
        "████████████████████████████████████████  exact\n",
        "MEDIAN",
        "P99",
        "PER SECOND",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    assert_eq!(text(&output.stderr), "", "no bar without a terminal");
    assert!(!shown.contains('\x1b'), "no colours without a terminal");
}

#[test]
fn wrong_sales_are_refused() {
    let world = World::new();
    let (code, line) = complaint(&world.run(&["demo", "--workers", "2", "--processes", "3"]));
    assert_eq!(code, 64);
    assert!(line.contains("--processes 3"), "{line}");
    let (code, _) = complaint(&world.run(&["demo", "--backend", "nonsense"]));
    assert_eq!(code, 64);
}
