//! How much the suite catches: bugs planted in a small backend, one at a time, and the case that must fail for each.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its table"
)]

#[macro_use]
mod bugs;
mod docs;
mod queued;
mod stranger;
mod threads;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::{Case, CaseResult, Harness, Timings, cases, check};
use queued::{FLAWS, Flaw};
use stranger::{BUGS, Bug, Planted};
use threads::at_once;

/// Cases that fail for a store in which nothing is wrong.
fn failures(store: &Arc<dyn Harness>) -> Vec<String> {
    let all: Vec<&Case> = cases().collect();
    let outcomes = at_once(&all, |case| check(store, case.name));
    all.iter()
        .zip(outcomes)
        .filter(|(_, outcome)| outcome.is_failed())
        .map(|(case, outcome)| format!("{case:?}: {outcome:?}"))
        .collect()
}

#[test]
fn without_a_bug_everything_passes() {
    let failed = failures(&Planted::harness(Bug::None));
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn without_a_flaw_everything_passes() {
    let failed = failures(&queued::harness(Flaw::None, Timings::default()));
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Each bug's own case must fail, and say what was expected, what came, and what usually causes it.
fn expect_all_caught<B: Copy + Debug + Sync>(
    bugs: &[(B, &str, &str)],
    harness: impl Fn(B) -> Arc<dyn Harness> + Sync,
) {
    let caught: Vec<_> = bugs.iter().filter(|(.., case)| !case.is_empty()).collect();
    let outcomes = at_once(&caught, |(bug, _, case)| check(&harness(*bug), case));
    let mut missed = Vec::new();
    for ((bug, _, case), outcome) in caught.iter().zip(outcomes) {
        match outcome {
            CaseResult::Failed(text) => {
                let told = ["expected: ", "came: ", "cause, usually: "];
                assert!(
                    told.iter().all(|part| text.contains(part)),
                    "{bug:?}: {text}"
                );
            }
            outcome => missed.push(format!("{bug:?} passes {case}: {outcome:?}")),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

#[test]
fn every_planted_bug_is_caught_by_its_case() {
    expect_all_caught(BUGS, Planted::harness);
}

#[test]
fn every_flaw_of_the_store_with_a_queue_is_caught_by_its_case() {
    // A case that waits for what never comes need not wait long.
    let hurried = Timings::default()
        .settle(Duration::from_secs(2))
        .case_limit(Duration::from_secs(15));
    expect_all_caught(FLAWS, |flaw| queued::harness(flaw, hurried));
}

/// One of the tables in docs/conformance.md, and the share that we promise.
fn expect_current<B>(what: &str, bugs: &[(B, &str, &str)]) {
    let mut table = "| planted bug | caught by |\n|---|---|\n".to_owned();
    let mut caught = 0;
    for (_, what, case) in bugs {
        let by = match *case {
            "" => "nothing: see below".to_owned(),
            case => {
                caught += 1;
                assert!(cases().any(|known| known.name == case), "no case {case}");
                format!("`{case}`")
            }
        };
        table += &format!("| {what} | {by} |\n");
    }
    table += &format!("\n{caught} of {} are caught.\n", bugs.len());
    println!("{table}");
    assert!(bugs.len() >= 37 && caught * 100 >= bugs.len() * 95);
    docs::write(what, &table);
    if let Some(text) = docs::read()
        && std::env::var_os(docs::UPDATE).is_none()
    {
        assert!(
            text.contains(&table),
            "docs/conformance.md is out of date: run this test with {}=1",
            docs::UPDATE
        );
    }
}

#[test]
fn the_tables_of_planted_bugs_are_current() {
    expect_current("planted bugs", BUGS);
    expect_current("flaws of a store with a queue", FLAWS);
}

/// Which cases fail for each bug, all of them: `cargo test --test planted -- --ignored`. It takes minutes.
#[test]
#[ignore = "a measurement, of some minutes"]
fn all_that_each_bug_breaks() {
    for (bug, what, case) in BUGS {
        let store = Planted::harness(*bug);
        let all: Vec<&Case> = cases().collect();
        let outcomes = at_once(&all, |case| check(&store, case.name));
        let failed: Vec<&str> = all
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_failed())
            .map(|(case, _)| case.name)
            .collect();
        println!("{bug:?} ({what}), said to be caught by {case:?}: {failed:?}");
    }
}
