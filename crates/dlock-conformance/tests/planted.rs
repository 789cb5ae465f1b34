//! How much the suite catches: bugs planted in a small backend, one at a time, and the case that must fail for each.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its table"
)]

mod docs;
mod stranger;
mod threads;

use dlock_conformance::{Case, CaseResult, cases, check};
use stranger::{BUGS, Bug, Planted};
use threads::at_once;

#[test]
fn without_a_bug_everything_passes() {
    let store = Planted::harness(Bug::None);
    let all: Vec<&Case> = cases().collect();
    let outcomes = at_once(&all, |case| check(&store, case.name));
    let failed: Vec<String> = all
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| outcome.is_failed())
        .map(|(case, outcome)| format!("{case:?}: {outcome:?}"))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_planted_bug_is_caught_by_its_case() {
    let caught: Vec<_> = BUGS.iter().filter(|(.., case)| !case.is_empty()).collect();
    let outcomes = at_once(&caught, |(bug, _, case)| {
        check(&Planted::harness(*bug), case)
    });
    let missed: Vec<String> = caught
        .iter()
        .zip(&outcomes)
        .filter(|(_, outcome)| !outcome.is_failed())
        .map(|((bug, _, case), outcome)| format!("{bug:?} passes {case}: {outcome:?}"))
        .collect();
    // A failure says what was expected, what came, and what usually causes it.
    for (outcome, (bug, ..)) in outcomes.iter().zip(&caught) {
        if let CaseResult::Failed(text) = outcome {
            let told = ["expected: ", "came: ", "cause, usually: "];
            assert!(
                told.iter().all(|part| text.contains(part)),
                "{bug:?}: {text}"
            );
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

/// The table in docs/conformance.md, and the share that we promise.
#[test]
fn the_table_of_planted_bugs_is_current() {
    let mut table = "| planted bug | caught by |\n|---|---|\n".to_owned();
    let mut caught = 0;
    for (_, what, case) in BUGS {
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
    table += &format!("\n{caught} of {} are caught.\n", BUGS.len());
    println!("{table}");
    assert!(BUGS.len() >= 37 && caught * 100 >= BUGS.len() * 95);
    docs::write("planted bugs", &table);
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
