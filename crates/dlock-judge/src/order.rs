//! C18: first come, first served, where the store declares it and nothing disturbs.

use std::collections::{HashMap, HashSet};

use crate::history::{History, Mode, Op, Phase};
use crate::report::{Finding, Kind};

/// Who asks this much later is surely behind: the question of the first had time to reach the store.
const SURELY: u64 = 1_000_000_000;

/// One who waited and got the lock.
struct Waited {
    process: u32,
    asked: u64,
    got: u64,
}

/// Looks at the locks that were asked for exclusively alone, by processes with one task each: several tasks of one client take turns among
/// themselves. A wait during which something went wrong is left out, since whoever was cut off may have lost its place.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    if !history.setup().fair {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for name in history.locks() {
        let Some(waits) = waits(history, name) else {
            continue;
        };
        for later in &waits {
            let overtaken = waits.iter().find(|first| {
                first.process != later.process
                    && first.asked + SURELY < later.asked
                    && later.got < first.got
                    && is_calm(history, first.asked, first.got)
            });
            if let Some(first) = overtaken {
                let why = format!(
                    "process {} asked at {} and process {} at {}, and the second was first",
                    first.process, first.asked, later.process, later.asked
                );
                findings.push(Finding::new(Kind::OutOfOrder, name, later.got, why));
            }
        }
    }
    findings
}

/// All waits that ended well, unless the lock is one that this checker leaves alone.
fn waits(history: &History, name: &str) -> Option<Vec<Waited>> {
    let mut tasks: HashMap<u32, HashSet<u32>> = HashMap::new();
    let mut asked = HashMap::new();
    let mut waits = Vec::new();
    for line in history.lines().iter().filter(|line| line.lock == name) {
        if line.mode.is_some_and(|mode| mode != Mode::Exclusive) {
            return None;
        }
        if line.op != Op::Acquire {
            continue;
        }
        let of = tasks.entry(line.process).or_default();
        of.insert(line.task);
        if of.len() > 1 {
            return None;
        }
        let key = (line.process, line.attempt);
        match line.phase {
            Phase::Invoke => _ = asked.insert(key, line.at),
            Phase::Ok => {
                if let Some(asked) = asked.remove(&key) {
                    waits.push(Waited {
                        process: line.process,
                        asked,
                        got: line.at,
                    });
                }
            }
            _ => {}
        }
    }
    Some(waits)
}

/// Whether nothing was wrong in this time nor before: a client may need long to find its way back, and has no place until then.
fn is_calm(history: &History, from: u64, to: u64) -> bool {
    !history.lines().iter().any(|line| match line.op {
        Op::Fault => line.at <= to && line.note != "none",
        Op::Killed | Op::Stopped => line.at <= to,
        // Whoever got an error was disturbed, whatever by. Not so who lost patience.
        Op::Acquire | Op::Try => {
            let error = line.phase == Phase::Unknown && !line.note.contains("dropped");
            error && line.at >= from && line.at <= to
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;

    const SECOND: u64 = 1_000_000_000;

    fn overtaking(fair: bool, fault: Option<u64>) -> Vec<Kind> {
        let mut script = Script::new();
        script.setup(true, fair);
        if let Some(at) = fault {
            script.info(Op::Fault, at);
        }
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, SECOND);
        script.answer(9 * SECOND, Phase::Ok, Some(2), None);
        script.ask(2, Op::Acquire, "m", Mode::Exclusive, 3 * SECOND);
        script.answer(5 * SECOND, Phase::Ok, Some(1), None);
        let found = check(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn overtaking_is_found_where_order_is_declared() {
        assert_eq!(overtaking(true, None), [Kind::OutOfOrder]);
        assert_eq!(overtaking(false, None), []);
    }

    #[test]
    fn whoever_was_disturbed_may_be_overtaken() {
        assert_eq!(overtaking(true, Some(4 * SECOND)), []);
        assert_eq!(overtaking(true, Some(20 * SECOND)), [Kind::OutOfOrder]);
    }

    #[test]
    fn waiters_served_in_turn_are_good() {
        let mut script = Script::new();
        script.setup(true, true);
        for process in 1..=3 {
            let at = u64::from(process) * 2 * SECOND;
            script.ask(process, Op::Acquire, "m", Mode::Exclusive, at);
            script.answer(at + 5 * SECOND, Phase::Ok, Some(u64::from(process)), None);
        }
        assert_eq!(check(&script.history()), []);
    }
}
