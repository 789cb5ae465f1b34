//! docs/costs.txt: what is counted against it, and `ci/costs --write`, which renews it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Set by `ci/costs --write`.
const WRITE: &str = "DLOCK_WRITE_COSTS";

const HEADER: &str = "\
# What is asked of each server, counted by the server; allocations for the memory backend; tasks that are spawned. ci/costs counts, ci/costs --write renews this file.
#
# cycle    commands for one lock and release, nobody else there
# turn     commands for one turn of eight clients that want the same lock; - where waiters ask again, as often as time allows
# renewal  commands to renew fifty locks of one client once
#
# Of a store's :tasks it is tasks that count and not commands: what the client spawns, its library for the store included.
#
";

/// What was counted for one store; none is not counted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) cycle: f64,
    pub(crate) turn: Option<f64>,
    pub(crate) renewal: Option<f64>,
}

impl Row {
    fn to_line(&self) -> String {
        let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        format!(
            "{:<24}{:>10}{:>10}{:>10}",
            self.name,
            cell(Some(self.cycle)),
            cell(self.turn),
            cell(self.renewal)
        )
    }

    fn of_line(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, cycle, turn, renewal] = words[..] else {
            return None;
        };
        Some(Self {
            name: name.to_owned(),
            cycle: cycle.parse().ok()?,
            turn: turn.parse().ok(),
            renewal: renewal.parse().ok(),
        })
    }

    /// What is wrong with what was counted, if this was expected.
    fn complaints(&self, counted: &Self) -> Vec<String> {
        let mut all = Vec::new();
        let mut compare = |what: &str, is_good: bool, expected: Option<f64>, now: Option<f64>| {
            if !is_good {
                let name = &self.name;
                all.push(format!("{name}: a {what} costs {now:?}, not {expected:?}"));
            }
        };
        // A word between a client and its server that belongs to no cycle is a fiftieth of one; to many servers there are more.
        let room = f64::max(0.15, self.cycle * 0.04);
        let is_less = counted.cycle < self.cycle - room;
        // What is built beside this test decides which features core has, and metrics allocate: fewer allocations are no fault.
        let same =
            counted.cycle < self.cycle + room && (!is_less || self.name.starts_with("memory"));
        compare("cycle", same, Some(self.cycle), Some(counted.cycle));
        // Who comes first in the queue, and which holds share a trip, is a matter of time: only more is wrong.
        let more =
            |factor: f64, room: f64, expected: Option<f64>, now: Option<f64>| match (expected, now)
            {
                (None, None) => true,
                (Some(expected), Some(now)) => now <= expected * factor + room,
                _ => false,
            };
        let turn = more(1.2, 0.2, self.turn, counted.turn);
        compare("turn", turn, self.turn, counted.turn);
        let renewal = more(1.2, 5.0, self.renewal, counted.renewal);
        compare("renewal", renewal, self.renewal, counted.renewal);
        all
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/costs.txt")
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(path()).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(Row::of_line)
        .collect()
}

/// Compares with the file, or puts the rows into it.
pub(crate) fn settle(counted: Vec<Row>) {
    if std::env::var_os(WRITE).is_some() {
        return write(counted);
    }
    let expected = rows();
    let mut wrong = Vec::new();
    for row in &counted {
        match expected.iter().find(|known| known.name == row.name) {
            Some(known) => wrong.extend(known.complaints(row)),
            None => wrong.push(format!("docs/costs.txt lacks {}", row.name)),
        }
    }
    let lines: Vec<_> = counted.iter().map(Row::to_line).collect();
    assert!(
        wrong.is_empty(),
        "{}\n(ci/costs --write, if it is meant)\n\ncounted:\n{}",
        wrong.join("\n"),
        lines.join("\n")
    );
}

/// Rows of the other test program stay; it may write at the same time.
fn write(counted: Vec<Row>) {
    let door = File::create(path().with_extension("lock")).expect("a lock file");
    door.lock().expect("the lock");
    let mut all = rows();
    all.retain(|known| counted.iter().all(|row| row.name != known.name));
    all.extend(counted);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = HEADER.to_owned();
    let _ = writeln!(
        text,
        "#{:<23}{:>10}{:>10}{:>10}",
        " store", "cycle", "turn", "renewal"
    );
    for row in all {
        let _ = writeln!(text, "{}", row.to_line());
    }
    fs::write(path(), text).expect("the file");
    fs::remove_file(path().with_extension("lock")).expect("the lock file");
}
