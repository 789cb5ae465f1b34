//! The cases of the conformance suite about rights that are taken away and clocks that are wrong, for stores whose users and time of day a test has
//! in its hand.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock_conformance::{Ability, CaseResult, Fault, Harness, Need, async_trait, cases, check};
use dlock_core::{Error, ErrorKind, Result};

/// The cases have runtimes of their own; what the servers need outlives them here.
pub(crate) static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

pub(crate) fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own server: {error}"))
}

/// What one client may do at its store.
#[async_trait]
pub(crate) trait Rights: Send + Sync + 'static {
    async fn take_away(&self) -> Result<()>;

    async fn give_back(&self) -> Result<()>;
}

/// The other faults are not named among the abilities, and never asked for.
pub(crate) struct Denial<R>(pub(crate) R);

#[async_trait]
impl<R: Rights> Fault for Denial<R> {
    async fn deny(&self) {
        self.0.take_away().await.expect("rights are taken away");
    }

    async fn heal(&self) {
        self.0.give_back().await.expect("rights are given back");
    }

    async fn cut(&self) {}

    async fn hang(&self) {}

    async fn lose_reply(&self) {}

    async fn delay_replies(&self, _: Duration) {}
}

/// Every case that needs the ability, and whose other needs the store has, passes; at least `least` of them. But for those that are named as
/// what this store cannot be asked, with the reason in words that the suite's failure has.
pub(crate) fn all_pass(
    store: &Arc<dyn Harness>,
    of: Ability,
    least: usize,
    not_asked: &[(&str, &str)],
) {
    let named: Vec<_> = cases()
        .filter(|case| case.needs.contains(&Need::Able(of)))
        .collect();
    let mut passed = 0;
    let mut wrong = Vec::new();
    for case in named {
        let outcome = check(store, case.name);
        println!("{}: {outcome:?}", case.name);
        let hole = not_asked.iter().find(|(name, _)| *name == case.name);
        match (&outcome, hole) {
            (CaseResult::Passed, None) => passed += 1,
            (CaseResult::Skipped(_), None) => {}
            (CaseResult::Failed(text), Some((_, words))) if text.contains(words) => {}
            _ => wrong.push((case.name, outcome)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(passed >= least, "{passed} cases were asked, of {least}");
}
