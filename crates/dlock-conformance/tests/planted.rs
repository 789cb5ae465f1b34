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
mod blind;
mod docs;
mod queued;
mod stranger;
mod threads;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blind::{ADDED, BLIND, LIST};
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
    expect_in_docs(what, &table);
}

fn expect_in_docs(what: &str, table: &str) {
    docs::write(what, table);
    if let Some(text) = docs::read()
        && std::env::var_os(docs::UPDATE).is_none()
    {
        assert!(
            text.contains(table),
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

#[test]
fn every_mistake_of_the_blind_list_is_caught_by_its_case() {
    let hurried = Timings::default()
        .settle(Duration::from_secs(2))
        .case_limit(Duration::from_secs(30));
    let caught: Vec<_> = BLIND
        .iter()
        .filter(|mistake| !mistake.now.is_empty())
        .collect();
    let outcomes = at_once(&caught, |mistake| {
        check(&mistake.harness(hurried), mistake.now)
    });
    let missed: Vec<_> = caught
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| !outcome.is_failed())
        .map(|(mistake, outcome)| format!("{} passes {}: {outcome:?}", mistake.name, mistake.now))
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

#[test]
fn the_table_of_the_blind_list_is_current() {
    let by = |case: &str| match case {
        "" => "nothing".to_owned(),
        case => {
            assert!(cases().any(|known| known.name == case), "no case {case}");
            format!("`{case}`")
        }
    };
    let mut table = "| mistake | caught at first by | and now by |\n|---|---|---|\n".to_owned();
    assert_eq!(BLIND.len(), LIST.len());
    for (mistake, (name, what)) in BLIND.iter().zip(LIST) {
        assert_eq!(mistake.name, name);
        assert!(!ADDED.contains(&mistake.at_first), "{name}: written later");
        let (first, now) = (by(mistake.at_first), by(mistake.now));
        table += &format!("| {what} | {first} | {now} |\n");
    }
    let all = BLIND.len();
    let first = |mistake: &&blind::Mistake| !mistake.at_first.is_empty();
    let new: Vec<_> = BLIND.iter().filter(|m| !m.was_known()).collect();
    let (of_all, of_new) = (
        BLIND.iter().filter(first).count(),
        new.iter().copied().filter(first).count(),
    );
    let now = BLIND.iter().filter(|m| !m.now.is_empty()).count();
    table += &format!(
        "\nAt first {of_all} of {all} were caught; of the {} that are not among the mistakes above, {of_new}. Now {now} of {all} are.\n",
        new.len()
    );
    expect_in_docs("blind list", &table);
}

/// The first of the cases as they were before [`ADDED`] that is found to fail, for each mistake of the blind list and each flaw that one of the
/// added cases catches: `cargo test --test planted -- --ignored before`. Names in `DLOCK_MISTAKES` are looked at alone. It takes minutes.
#[test]
#[ignore = "a measurement, of some minutes"]
fn what_was_caught_before_cases_were_added() {
    let hurried = Timings::default()
        .settle(Duration::from_secs(2))
        .case_limit(Duration::from_secs(15));
    let listed = BLIND
        .iter()
        .map(|mistake| (mistake.name.to_owned(), mistake.harness(hurried)));
    let flaws = FLAWS.iter().filter(|(.., case)| ADDED.contains(case));
    let flaws = flaws.map(|(flaw, ..)| (format!("{flaw:?}"), queued::harness(*flaw, hurried)));
    let asked = std::env::var("DLOCK_MISTAKES").ok();
    for (name, store) in listed.chain(flaws) {
        if asked
            .as_ref()
            .is_some_and(|asked| asked.split(',').all(|one| one != name))
        {
            continue;
        }
        let all: Vec<&Case> = cases().filter(|case| !ADDED.contains(&case.name)).collect();
        let is_caught = AtomicBool::new(false);
        let outcomes = at_once(&all, |case| {
            if is_caught.load(Ordering::Relaxed) {
                return false;
            }
            let failed = check(&store, case.name).is_failed();
            is_caught.fetch_or(failed, Ordering::Relaxed);
            failed
        });
        let failed: Vec<&str> = all
            .iter()
            .zip(outcomes)
            .filter(|(_, failed)| *failed)
            .map(|(case, _)| case.name)
            .collect();
        println!("{name}: {failed:?}");
    }
}
