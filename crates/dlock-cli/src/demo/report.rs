//! What was sold, and how long it took: as a load tester reports it.

use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::demo::{DemoArgs, lost_worker};
use crate::exit::Failure;
use crate::show;

const LONGEST_MICROS: u64 = 3_600_000_000;

/// What some workers did.
pub(crate) struct Tally {
    sold: u64,
    errors: u64,
    times: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            sold: 0,
            errors: 0,
            times: Histogram::new_with_bounds(1, LONGEST_MICROS, 3).map_err(|e| lost_worker(&e))?,
        })
    }

    pub(crate) fn count(&mut self, outcome: &Result<bool, Failure>, time: Duration) {
        match outcome {
            Ok(true) => self.sold += 1,
            Ok(false) => {}
            Err(_) => self.errors += 1,
        }
        self.times
            .saturating_record(u64::try_from(time.as_micros()).unwrap_or(LONGEST_MICROS));
    }

    pub(crate) fn samples(&self) -> u64 {
        self.times.len()
    }

    /// For another process.
    pub(crate) fn to_line(&self) -> String {
        let times: Vec<(u64, u64)> = self
            .times
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect();
        json!({ "sold": self.sold, "errors": self.errors, "times": times }).to_string()
    }

    /// Adds what another process said.
    pub(crate) fn add(&mut self, line: &str) -> Result<(), Failure> {
        let said: Value = serde_json::from_str(line).map_err(|error| lost_worker(&error))?;
        let number = |key: &str| said.get(key).and_then(Value::as_u64);
        let (Some(sold), Some(errors), Some(times)) = (
            number("sold"),
            number("errors"),
            said.get("times").and_then(Value::as_array),
        ) else {
            return Err(lost_worker(&line));
        };
        self.sold += sold;
        self.errors += errors;
        for pair in times {
            let part = |index| pair.get(index).and_then(Value::as_u64).unwrap_or_default();
            self.times.saturating_record_n(part(0), part(1));
        }
        Ok(())
    }
}

/// One run of the sale.
pub(crate) struct Report {
    pub(crate) backend: String,
    pub(crate) args: DemoArgs,
    pub(crate) with_lock: bool,
    pub(crate) remaining: u64,
    pub(crate) time: Duration,
    pub(crate) tally: Tally,
}

impl Report {
    /// As tables and pictures name it.
    pub(crate) fn run(&self) -> &'static str {
        if self.with_lock {
            "with a lock"
        } else {
            "without a lock"
        }
    }

    pub(crate) fn sold(&self) -> u64 {
        self.tally.sold
    }

    /// How many items were sold more often than the stock went down.
    pub(crate) fn oversold(&self) -> u64 {
        let gone = self.args.stock.saturating_sub(self.remaining);
        self.tally.sold.saturating_sub(gone)
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.args.stock.checked_sub(self.tally.sold) == Some(self.remaining)
            && self.tally.errors == 0
    }

    fn throughput(&self) -> f64 {
        self.tally.samples() as f64 / self.time.as_secs_f64().max(1e-9)
    }

    pub(crate) fn sentence(&self) -> String {
        let how = if self.with_lock {
            "With a lock:   "
        } else {
            "Without a lock:"
        };
        let verdict = match self.oversold() {
            0 if self.is_exact() => "exact.".to_owned(),
            0 => "not exact!".to_owned(),
            n => format!("{n} items sold that were not there."),
        };
        format!(
            "{how} {} of {} sold, and {} left in stock: {verdict}",
            self.tally.sold, self.args.stock, self.remaining
        )
    }

    pub(crate) fn as_json(&self) -> Value {
        let at = |quantile| self.tally.times.value_at_quantile(quantile);
        json!({
            "backend": self.backend,
            "workers": self.args.workers,
            "processes": self.args.processes,
            "loops": self.args.loops,
            "stock": self.args.stock,
            "sold": self.tally.sold,
            "remaining": self.remaining,
            "oversold": self.oversold(),
            "errors": self.tally.errors,
            "seconds": (self.time.as_secs_f64() * 1e3).round() / 1e3,
            "throughput_per_s": (self.throughput() * 10.0).round() / 10.0,
            "latency_us": {
                "mean": self.tally.times.mean().round(),
                "p50": at(0.5),
                "p90": at(0.9),
                "p95": at(0.95),
                "p99": at(0.99),
                "min": self.tally.times.min(),
                "max": self.tally.times.max(),
            },
        })
    }
}

pub(crate) fn table(reports: &[&Report]) -> Table {
    let mut table = show::table(&[
        "run",
        "samples",
        "mean",
        "median",
        "p90",
        "p95",
        "p99",
        "min",
        "max",
        "errors",
        "per second",
    ]);
    for report in reports {
        let times = &report.tally.times;
        let at = |quantile| show::micros(times.value_at_quantile(quantile));
        let cells = [
            report.tally.samples().to_string(),
            show::micros(times.mean() as u64),
            at(0.5),
            at(0.9),
            at(0.95),
            at(0.99),
            show::micros(times.min()),
            show::micros(times.max()),
            report.tally.errors.to_string(),
            format!("{:.0}", report.throughput()),
        ];
        let mut row = vec![show::coloured(
            report.run(),
            report.with_lock && report.is_exact(),
        )];
        row.extend(
            cells
                .iter()
                .map(|text| Cell::new(text).set_alignment(CellAlignment::Right)),
        );
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_says_another_adds() {
        let mut first = Tally::new().expect("bounds");
        first.count(&Ok(true), Duration::from_micros(100));
        first.count(&Ok(false), Duration::from_micros(200));
        first.count(&Err(lost_worker(&"x")), Duration::from_micros(300));
        let mut all = Tally::new().expect("bounds");
        all.add(&first.to_line()).expect("its own words");
        all.add(&first.to_line()).expect("its own words");
        assert_eq!((all.sold, all.errors, all.samples()), (2, 2, 6));
        assert_eq!(all.times.min(), 100);
        assert!(all.add("nonsense").is_err());
    }
}
