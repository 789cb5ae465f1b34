//! The test program: all cases of all harnesses as trials.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::run::run;
use crate::{CaseResult, Harness, Line, Report, cases, process, worker};

/// Most cases wait most of the time, so more of them run at once than there are processors.
const AT_ONCE: usize = 12;

/// Runs every case against one harness: the `main` of a test with `harness = false`.
///
/// It takes the arguments of `cargo test` (a filter, `--list`, `--test-threads`), prints one line for each case and a summary by
/// clause, and writes a JSON report to the path in `DLOCK_CONFORMANCE_REPORT` if that is set.
pub fn main(harness: impl Harness) -> ExitCode {
    all(vec![Arc::new(harness)], false)
}

/// Runs every case against each of several harnesses, whose names come before those of the cases.
pub fn main_all(harnesses: Vec<Arc<dyn Harness>>) -> ExitCode {
    all(harnesses, true)
}

fn all(harnesses: Vec<Arc<dyn Harness>>, prefix: bool) -> ExitCode {
    if let Some(code) = process::serve_harness(&harnesses) {
        return code;
    }
    worker::can_start_myself();
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let report = Arc::<Mutex<Report>>::default();
    let mut trials = Vec::new();
    for harness in &harnesses {
        for case in cases() {
            let name = if prefix {
                format!("{}::{}", harness.name(), case.name)
            } else {
                case.name.to_owned()
            };
            let (harness, report) = (harness.clone(), report.clone());
            let trial = Trial::ignorable_test(name, move || {
                let (outcome, time) = run(&harness, case);
                report
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .lines
                    .push(Line {
                        harness: harness.name().to_owned(),
                        clause: case.clause,
                        case: case.name,
                        outcome: outcome.clone(),
                        time,
                    });
                match outcome {
                    CaseResult::Passed => Ok(Completion::Completed),
                    CaseResult::Skipped(reason) => Ok(Completion::ignored_with(reason)),
                    CaseResult::Failed(text) => {
                        Err(Failed::from(format!("{}: {text}", case.clause)))
                    }
                }
            });
            trials.push(trial.with_kind(case.clause.to_string()));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
    report.sort();
    if !arguments.list && !report.lines.is_empty() {
        println!("{report}");
    }
    if let Some(path) = std::env::var_os("DLOCK_CONFORMANCE_REPORT")
        && let Err(error) = std::fs::write(&path, report.to_json())
    {
        eprintln!("the report cannot be written to {path:?}: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
