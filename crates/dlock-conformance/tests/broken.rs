//! The suite itself under test: stores with one defect each, and the clause that must catch it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its table"
)]

mod defects;
mod docs;
mod threads;

use std::sync::Arc;

use defects::*;
use dlock_conformance::{Case, CaseResult, Clause, Harness, Timings, cases, check};
use threads::at_once;

struct Broken {
    what: &'static str,
    clause: Clause,
    store: fn() -> Arc<dyn Harness>,
}

macro_rules! broken {
    ($($clause:ident $defect:ty, $what:literal;)*) => {
        &[$(Broken { what: $what, clause: Clause::$clause, store: store::<$defect> },)*]
    };
}

const BROKEN: &[Broken] = broken! {
    C1 TwoHolders, "two holders";
    C2 ReentersByClient, "a client that holds gets in again";
    C3 Changed<LowerCase>, "names without case";
    C3 Changed<TrimEnd>, "names without trailing spaces";
    C3 Changed<Cut64>, "names cut at 64 bytes";
    C3 SecondFreesFirst, "a second lock frees the first";
    C3 ReleaseFreesOthers, "a release ends the other holds of the client";
    C4 TryWaits, "a try waits for the holder";
    C4 IgnoresTimeLimit, "the time limit is ignored";
    C5 UnreachableIsBusy, "unreachable is reported as busy";
    C6 ReleasesAnyone, "release without owner check";
    C6 AbandonsAnyone, "undo without owner check";
    C6 RevivesHolds, "renewal revives a hold that is gone";
    C6 AlwaysFreed, "release of a lost hold says freed";
    C7 ValidFromReply, "validity counted from the reply";
    C8 RenewsWithoutStore, "renewal without the store's word";
    C9 LossOnRelease, "a release is reported as a loss";
    C10 FailedRenewalIsLoss, "a failed renewal is taken for a loss";
    C10 RenewalStops, "renewal stops at the first failure";
    C11 SameToken, "repeating token";
    C11 TokenGoesBack, "token that goes back";
    C11 TokenPerClient, "each client counts its own tokens";
    C12 Changed<NeverExpires>, "holds of the dead never end";
    C13 AbandonDoesNothing, "leak on cancel";
    C13 AbandonIsForgotten, "an abandoned attempt takes effect later";
    C14 ReleaseDoesNothing, "release does nothing";
    C15 NotIdempotent, "an attempt that is sent twice is in its own way";
    C15 RepeatsRelease, "a release whose reply was lost says lost";
    C16 LeavesRows, "a row is left for every acquire";
    C17 WakesHerd, "a release wakes the herd";
    C17 SleepsOver, "a waiter wakes late";
    C18 LastComeFirstServed, "last come, first served";
    C18 DeadWaiterStalls, "a dead waiter stalls the queue";
    C19 StarvesWriters, "readers starve a writer";
    C19 PermitOverrun, "more permits than the limit";
    C19 LimitMismatchIsBusy, "another limit goes unnoticed";
    C19 DowngradeDoesNothing, "downgrade does nothing";
    C19 DowngradeHasAGap, "downgrade with a gap";
    C20 OwnWatchdog, "a watchdog that outlives the release";
    C21 TokensNotSetAside, "tokens of a client's turns are given to others too";
    C21 LeaseEndsAllTheSame, "a hold that lingers is not renewed, and said to be";
    C21 ReleaseLeavesTheHold, "what has lingered is not given back, and said to be";
    C21 SilentThoughItTells, "a store says that it tells of others, and is silent";
    C21 CallsAlways, "a hold never lingers, since others are always said to wait";
    C21 ExtendsWhatIsGone, "a hold that was lost while it lingered is said to be extended";
    C22 GrantsBeforeTheWrite, "a grant that the store has refused";
    C23 TellsNobody, "holders never hear that others wait";
    C23 TellsOfNewcomers, "holders hear of those alone who come after they listen";
    C23 CriesWolf, "holders hear of others when there are none";
};

#[test]
fn every_broken_backend_is_caught_by_its_clause() {
    let jobs: Vec<(&Broken, &Case)> = BROKEN
        .iter()
        .flat_map(|broken| {
            let cases = cases().filter(|case| case.clause == broken.clause);
            cases.map(move |case| (broken, case))
        })
        .collect();
    let outcomes = at_once(&jobs, |(broken, case)| check(&(broken.store)(), case.name));
    let mut table = "| broken backend | clause | caught by |\n|---|---|---|\n".to_owned();
    let mut missed = Vec::new();
    for broken in BROKEN {
        let caught: Vec<String> = jobs
            .iter()
            .zip(&outcomes)
            .filter(|((of, _), outcome)| of.what == broken.what && outcome.is_failed())
            .map(|((_, case), _)| format!("`{}`", case.name))
            .collect();
        table += &format!(
            "| {} | {} | {} |\n",
            broken.what,
            broken.clause,
            caught.join(", ")
        );
        if caught.is_empty() {
            missed.push(broken.what);
        }
    }
    println!("{table}");
    docs::write("broken backends", &table);
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn the_table_of_cases_is_current() {
    let mut table = "| clause | cases |\n|---|---|\n".to_owned();
    for clause in Clause::ALL {
        let of_clause = cases().filter(|case| case.clause == *clause);
        let names: Vec<String> = of_clause.map(|case| format!("`{}`", case.name)).collect();
        let summary = clause.summary();
        table += &format!("| {clause} {summary} | {} |\n", names.join(", "));
    }
    docs::write("cases", &table);
    if let Some(text) = docs::read()
        && std::env::var_os(docs::UPDATE).is_none()
    {
        assert!(
            text.contains(&table),
            "docs/conformance.md is out of date: run this test with {}=1",
            docs::UPDATE
        );
        for broken in BROKEN {
            let row = format!("| {} | {} |", broken.what, broken.clause);
            assert!(text.contains(&row), "docs/conformance.md lacks {row}");
        }
    }
}

#[test]
fn the_wrapper_without_a_defect_passes_everything() {
    let store = store_with::<NoDefect>(Timings::default());
    let all: Vec<&Case> = cases().collect();
    let outcomes = at_once(&all, |case| check(&store, case.name));
    let failed: Vec<String> = all
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| match outcome {
            CaseResult::Passed => false,
            CaseResult::Skipped(reason) => !reason.contains("a process has one clock"),
            CaseResult::Failed(_) => true,
        })
        .map(|(case, outcome)| format!("{case:?}: {outcome:?}"))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Every clause that a backend can break has a broken backend.
#[test]
fn every_clause_has_a_broken_backend() {
    for clause in Clause::ALL {
        let found = BROKEN.iter().any(|broken| broken.clause == *clause);
        assert!(found, "{clause} catches nothing");
    }
}
