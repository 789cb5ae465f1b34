use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::json;

use crate::{CaseResult, Clause};

/// How the cases ended, for people (`Display`) and for programs ([`Report::to_json`]).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// One line for each case that ran.
    pub lines: Vec<Line>,
}

/// How one case ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Line {
    /// The harness.
    pub harness: String,
    /// The clause.
    pub clause: Clause,
    /// The case.
    pub case: &'static str,
    /// How it ended.
    pub outcome: CaseResult,
    /// How long it took.
    pub time: Duration,
}

#[derive(Default)]
struct Counts {
    passed: usize,
    skipped: usize,
    failed: usize,
}

impl Counts {
    fn add(&mut self, outcome: &CaseResult) {
        match outcome {
            CaseResult::Passed => self.passed += 1,
            CaseResult::Skipped(_) => self.skipped += 1,
            CaseResult::Failed(_) => self.failed += 1,
        }
    }
}

impl Report {
    pub(crate) fn sort(&mut self) {
        self.lines
            .sort_by(|a, b| (&a.harness, a.clause, a.case).cmp(&(&b.harness, b.clause, b.case)));
    }

    /// The report as JSON: `{"cases": [{"harness", "clause", "case", "outcome", "detail", "millis"}], "passed", ...}`.
    pub fn to_json(&self) -> String {
        let mut counts = Counts::default();
        let cases: Vec<_> = self
            .lines
            .iter()
            .map(|line| {
                counts.add(&line.outcome);
                let (outcome, detail) = match &line.outcome {
                    CaseResult::Passed => ("passed", None),
                    CaseResult::Skipped(reason) => ("skipped", Some(reason)),
                    CaseResult::Failed(text) => ("failed", Some(text)),
                };
                json!({
                    "harness": line.harness,
                    "clause": line.clause.to_string(),
                    "case": line.case,
                    "outcome": outcome,
                    "detail": detail,
                    "millis": u64::try_from(line.time.as_millis()).unwrap_or(u64::MAX),
                })
            })
            .collect();
        let whole = json!({
            "cases": cases,
            "passed": counts.passed,
            "skipped": counts.skipped,
            "failed": counts.failed,
        });
        format!("{whole:#}\n")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut harnesses: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
        for line in &self.lines {
            harnesses.entry(&line.harness).or_default().push(line);
        }
        for (harness, lines) in harnesses {
            let mut clauses: BTreeMap<Clause, Counts> = BTreeMap::new();
            let mut total = Counts::default();
            for line in &lines {
                clauses.entry(line.clause).or_default().add(&line.outcome);
                total.add(&line.outcome);
            }
            writeln!(f, "conformance of {harness}")?;
            writeln!(f, "  clause  passed  skipped  failed")?;
            for (clause, counts) in &clauses {
                let Counts {
                    passed,
                    skipped,
                    failed,
                } = counts;
                let summary = clause.summary();
                writeln!(
                    f,
                    "  {:<6}  {passed:>6}  {skipped:>7}  {failed:>6}  {summary}",
                    clause.to_string()
                )?;
            }
            writeln!(
                f,
                "  total   {:>6}  {:>7}  {:>6}",
                total.passed, total.skipped, total.failed
            )?;
            let mut skipped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for line in &lines {
                if let CaseResult::Skipped(reason) = &line.outcome {
                    skipped.entry(reason).or_default().push(line.case);
                }
            }
            for (reason, cases) in skipped {
                writeln!(f, "  skipped {}: {reason}", cases.len())?;
                for case in cases {
                    writeln!(f, "    {case}")?;
                }
            }
            for line in &lines {
                if line.outcome.is_failed() {
                    writeln!(f, "  FAILED  {} {}", line.clause, line.case)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(clause: Clause, case: &'static str, outcome: CaseResult) -> Line {
        Line {
            harness: "toy".to_owned(),
            clause,
            case,
            outcome,
            time: Duration::from_millis(7),
        }
    }

    fn report() -> Report {
        let mut report = Report {
            lines: vec![
                line(Clause::C10, "late", CaseResult::Failed("why".to_owned())),
                line(Clause::C2, "good", CaseResult::Passed),
                line(Clause::C2, "gone", CaseResult::Skipped("no way".to_owned())),
            ],
        };
        report.sort();
        report
    }

    #[test]
    fn the_summary_counts_by_clause_and_gives_reasons() {
        let text = report().to_string();
        let clauses: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|word| word.starts_with('C'))
            .collect();
        assert_eq!(clauses, ["C2", "C10"], "in order");
        assert!(text.contains("skipped 1: no way\n    gone\n"), "{text}");
        assert!(text.contains("FAILED  C10 late\n"), "{text}");
    }

    #[test]
    fn the_report_is_json() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).expect("JSON");
        assert_eq!(json["passed"], 1);
        assert_eq!(json["skipped"], 1);
        assert_eq!(json["failed"], 1);
        assert_eq!(json["cases"][0]["case"], "gone");
        assert_eq!(json["cases"][2]["detail"], "why");
        assert_eq!(json["cases"][2]["millis"], 7);
    }
}
