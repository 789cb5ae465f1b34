//! One case from start to end: gate, runtime, watchdog, panics.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::{Case, Harness, Need, World, cases};

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaseResult {
    /// The property holds.
    Passed,
    /// It could not be tested, and why.
    Skipped(String),
    /// It does not hold, and what was seen.
    Failed(String),
}

impl CaseResult {
    /// Whether the property holds.
    pub fn is_passed(&self) -> bool {
        *self == Self::Passed
    }

    /// Whether it does not.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

/// Runs one case, from outside of a runtime.
///
/// [`main`](crate::main()) runs them all; this is for those who want one of them in a test of their own.
///
/// # Panics
///
/// When there is no case of that name.
pub fn check(harness: &Arc<dyn Harness>, case: &str) -> CaseResult {
    let case = cases()
        .find(|known| known.name == case)
        .unwrap_or_else(|| panic!("there is no case {case:?}: see dlock_conformance::cases()"));
    run(harness, case).0
}

/// Longer than any case should take to stop after it was told to.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(crate) fn run(harness: &Arc<dyn Harness>, case: &'static Case) -> (CaseResult, Duration) {
    catch_panics();
    let _shared;
    let _alone;
    if case.needs.contains(&Need::Alone) {
        _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    } else {
        _shared = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    }
    let started = Instant::now();
    let limit = harness.timings().case_limit;
    let thread = format!("{THREADS}{}", uuid::Uuid::new_v4());
    let (tell, told) = mpsc::channel();
    let spawned = std::thread::Builder::new().name(thread.clone()).spawn({
        let (harness, thread) = (harness.clone(), thread.clone());
        move || {
            // The receiver may have given up.
            let _ = tell.send(in_runtime(&harness, case, thread, limit));
        }
    });
    let outcome = match spawned {
        Err(error) => CaseResult::Failed(format!("no thread for the case: {error}")),
        Ok(_) => match told.recv_timeout(limit + LAST_WORDS) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                CaseResult::Failed(format!("hangs: a thread is blocked, still after {limit:?}"))
            }
            Err(RecvTimeoutError::Disconnected) => CaseResult::Failed(String::new()),
        },
    };
    let outcome = explained(with_panics(outcome, &thread), case);
    (outcome, started.elapsed())
}

/// Held alone by cases that must not be disturbed by others of this program.
static ALONE: RwLock<()> = RwLock::new(());

fn in_runtime(
    harness: &Arc<dyn Harness>,
    case: &'static Case,
    thread: String,
    limit: Duration,
) -> CaseResult {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(thread)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return CaseResult::Failed(format!("no runtime for the case: {error}")),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            tokio::time::timeout(limit, attempt(harness.clone(), case))
                .await
                .unwrap_or_else(|_| CaseResult::Failed(format!("hangs: not done after {limit:?}")))
        })
    }));
    runtime.shutdown_timeout(Duration::from_millis(500));
    outcome.unwrap_or_else(|_| CaseResult::Failed(String::new()))
}

async fn attempt(harness: Arc<dyn Harness>, case: &'static Case) -> CaseResult {
    let probe = match harness.connect().await {
        Ok(probe) => probe,
        Err(error) => return CaseResult::Failed(format!("no connection to the store: {error}")),
    };
    let capabilities = probe.capabilities().clone();
    let identity = probe.identity().to_owned();
    if let Err(error) = probe.close().await {
        return CaseResult::Failed(format!("a client without locks cannot be closed: {error}"));
    }
    drop(probe);
    if let Some(reason) = case.missing(&capabilities, harness.as_ref()) {
        return CaseResult::Skipped(reason);
    }
    let world = World::new(harness, capabilities, identity);
    match (case.run)(world).await {
        Ok(()) => CaseResult::Passed,
        Err(error) => CaseResult::Failed(format!("unexpected error: {error}")),
    }
}

/// The words of a panic that belongs to a case.
pub(crate) const ON_PURPOSE: &str = "a panic on purpose";
const THREADS: &str = "dlock-case-";

/// What panicked in which case, with the place.
fn panics() -> &'static Mutex<HashMap<String, Vec<String>>> {
    static PANICS: OnceLock<Mutex<HashMap<String, Vec<String>>>> = OnceLock::new();
    PANICS.get_or_init(Mutex::default)
}

/// Keeps the panics of cases, so that they are told with their case and not in the middle of the others' output.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            match thread.name() {
                Some(name) if name.starts_with(THREADS) => panics()
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .entry(name.to_owned())
                    .or_default()
                    .push(panic.to_string()),
                _ => before(panic),
            }
        }));
    });
}

/// What was expected, what came, and where to look.
fn explained(outcome: CaseResult, case: &Case) -> CaseResult {
    match outcome {
        CaseResult::Failed(came) => CaseResult::Failed(format!(
            "expected: {}\n    came: {came}\n   cause, usually: {}",
            case.name.replace('_', " "),
            case.cause
        )),
        other => other,
    }
}

fn with_panics(outcome: CaseResult, thread: &str) -> CaseResult {
    let seen = panics()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(thread)
        .unwrap_or_default();
    let first = seen.iter().find(|panic| !panic.contains(ON_PURPOSE));
    match (outcome, first) {
        // The first panic is the cause of those that follow.
        (CaseResult::Failed(text), Some(first)) if text.is_empty() => {
            CaseResult::Failed(first.clone())
        }
        (CaseResult::Failed(text), Some(first)) => CaseResult::Failed(format!("{text}\n{first}")),
        (outcome, _) => outcome,
    }
}
