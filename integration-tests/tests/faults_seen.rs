//! The judge can see: mistakes that a backend is made to have are found, each by the checker that is there for it.
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use std::path::PathBuf;

use dlock_judge::Kind;
use integration_tests::judge::{Fault, Form, Plant, RoundReport, Scenario, Site, Store};

async fn planted(plant: Option<Plant>, seed: u64) -> RoundReport {
    let scenario = Scenario {
        store: Store::Redis,
        faults: vec![Fault::None],
        seed,
        program: env!("CARGO_BIN_EXE_judge").into(),
        folder: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("judge-seen"),
        passed_on: None,
        plant,
        form: Form::Share,
    };
    scenario.run(None).await.expect("it runs")
}

#[track_caller]
fn sees(outcome: &RoundReport, kind: Kind) {
    assert!(outcome.kinds().contains_key(&kind), "{}", outcome.text());
}

#[tokio::test]
async fn without_a_mistake_nothing_is_found() {
    let outcome = planted(None, 11).await;
    assert!(outcome.findings.is_empty(), "{}", outcome.text());
    assert!(outcome.holds > 20, "{}", outcome.text());
    assert!(outcome.ordered > 0, "{} pairs", outcome.ordered);
}

#[tokio::test]
async fn an_expired_hold_that_is_told_as_held_is_seen() {
    let outcome = planted(Some(Plant::RenewsInWordsOnly), 12).await;
    sees(&outcome, Kind::TwoHolders);
    sees(&outcome, Kind::NotLinearizable);
}

#[tokio::test]
async fn a_grant_of_what_is_busy_is_seen() {
    let outcome = planted(Some(Plant::GrantsWhatIsBusy), 13).await;
    sees(&outcome, Kind::TwoHolders);
    sees(&outcome, Kind::NotLinearizable);
    sees(&outcome, Kind::TokenTwice);
}

#[tokio::test]
async fn tokens_that_do_not_increase_are_seen() {
    let outcome = planted(Some(Plant::OneToken), 14).await;
    sees(&outcome, Kind::TokenTwice);
}

#[tokio::test]
async fn a_release_that_is_not_sent_is_seen() {
    let outcome = planted(Some(Plant::ReleasesInWordsOnly), 15).await;
    sees(&outcome, Kind::NotLinearizable);
}

#[tokio::test]
async fn a_waiter_that_is_passed_over_is_seen() {
    let outcome = planted(Some(Plant::PassesOver), 16).await;
    sees(&outcome, Kind::OutOfOrder);
}

/// The others go on, so each lock goes round; both the run and the judge of its history must miss the one who is left out.
#[tokio::test]
async fn a_waiter_that_is_never_woken_is_seen() {
    let outcome = planted(Some(Plant::NeverWakesOne), 17).await;
    let stuck = outcome.findings.iter();
    let stuck = stuck.filter(|finding| finding.kind == Kind::Stuck);
    let details: Vec<_> = stuck.map(|finding| finding.detail.as_str()).collect();
    for part in ["worker 1 did not get it", "process 1 waited"] {
        let is_there = details.iter().any(|detail| detail.contains(part));
        assert!(is_there, "{part}: {details:?}");
    }
    let of_others =
        |detail: &&&str| !detail.contains("worker 1 ") && !detail.contains("process 1 ");
    assert_eq!(details.iter().find(of_others), None, "{details:?}");
}

/// A clock that is moved in words only would make a store safe that nobody has put to anything.
#[tokio::test]
async fn a_server_that_does_not_go_by_the_clock_is_no_verdict() {
    for store in [Store::Redis, Store::MysqlLease] {
        let site = Site::start(store, None).await.expect("it runs");
        site.shows_time(0).await.expect("the right time");
        let error = site.shows_time(3600).await;
        assert!(error.is_err(), "its clock was not moved");
    }
    let site = Site::start(Store::Etcd, None).await.expect("it runs");
    assert!(site.shows_time(0).await.is_err(), "it does not tell");
}

/// What is excused by servers that stand still is not excused where they work, nor where it is not seen that they do not.
#[tokio::test]
async fn servers_that_work_excuse_nobody() {
    let site = Site::start(Store::ZkEnsemble, None).await;
    let site = site.expect("the ensemble runs");
    assert!(!site.commits_nothing().await, "it works");
    let other = Site::start(Store::Redis, None).await.expect("Redis runs");
    assert!(!other.commits_nothing().await, "nobody knows");
}
