//! Stores that offer little: what the suite cannot test there it skips with a reason, and the rest holds.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::{CaseResult, Harness, Timings, async_trait, cases, check};
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capabilities, Liveness, Reach, Released, Result, WakeUp};
use dlock_memory::MemoryBackend;

/// What a backend must write, and nothing else: core waits by asking again.
#[derive(Debug)]
struct Minimal {
    store: MemoryBackend,
    capabilities: Capabilities,
}

#[async_trait]
impl Backend for Minimal {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        self.store.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let attempt = self.store.try_acquire(request).await?;
        Ok(match attempt {
            Outcome::Held(lease) => Outcome::Held(Lease::new(request, lease.counted_from())),
            busy => busy,
        })
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.store.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.store.abandon(request).await
    }
}

struct Poor {
    store: MemoryBackend,
    liveness: Liveness,
    reach: Reach,
}

#[async_trait]
impl Harness for Poor {
    fn name(&self) -> &str {
        "poor"
    }

    fn timings(&self) -> Timings {
        Timings::default().lease(Duration::from_millis(800))
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        let mut capabilities = Capabilities::new("poor");
        capabilities.liveness = self.liveness;
        capabilities.reach = self.reach;
        capabilities.wake_up = WakeUp::Poll {
            longest: Duration::from_millis(20),
        };
        Ok(Arc::new(Minimal {
            store: self.store.another_client(),
            capabilities,
        }))
    }
}

/// The outcomes of all cases, and none of them a failure.
fn run(liveness: Liveness, reach: Reach) -> Vec<(&'static str, CaseResult)> {
    let poor: Arc<dyn Harness> = Arc::new(Poor {
        store: MemoryBackend::new(),
        liveness,
        reach,
    });
    let all: Vec<&str> = cases().map(|case| case.name).collect();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .chunks(12)
            .map(|names| {
                let poor = &poor;
                scope.spawn(move || {
                    let run = names.iter().map(|name| (*name, check(poor, name)));
                    run.collect::<Vec<_>>()
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect()
    });
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.is_failed())
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    outcomes
}

fn reason(outcomes: &[(&'static str, CaseResult)], case: &str) -> String {
    let (_, outcome) = outcomes.iter().find(|(name, _)| *name == case).unwrap();
    match outcome {
        CaseResult::Skipped(reason) => reason.clone(),
        other => panic!("{case}: {other:?}"),
    }
}

#[test]
fn a_minimal_backend_passes_what_it_offers() {
    let outcomes = run(Liveness::Lease, Reach::Process);
    let passed = outcomes.iter().filter(|(_, o)| o.is_passed()).count();
    assert!(passed > 60, "only {passed} passed");
    assert_eq!(
        reason(&outcomes, "tokens_increase_from_holder_to_holder"),
        "the store does not offer fencing tokens"
    );
    assert_eq!(
        reason(&outcomes, "lost_reply_to_a_downgrade_does_not_leak"),
        "the harness cannot lose a reply; the store does not offer downgrade from write to read"
    );
}

#[test]
fn a_session_store_passes_by_the_time_of_its_session() {
    let ttl = Duration::from_secs(1);
    let outcomes = run(Liveness::Session { ttl }, Reach::Process);
    assert_eq!(
        reason(&outcomes, "old_holder_is_invalid_before_the_next_one_holds"),
        "holds have no lease of their own"
    );
    assert_eq!(
        reason(&outcomes, "ended_hold_cannot_be_renewed"),
        "the harness cannot expire a hold, and nothing else ends one"
    );
}

#[test]
fn a_test_without_our_main_cannot_start_helpers() {
    let far: Arc<dyn Harness> = Arc::new(Poor {
        store: MemoryBackend::new(),
        liveness: Liveness::Lease,
        reach: Reach::Network,
    });
    let outcome = check(&far, "holder_killed_frees_lock_within_lease");
    let CaseResult::Skipped(reason) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(reason.contains("dlock_conformance::main"), "{reason}");
}
