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
    /// When the store was first seen to have it in the queue.
    seen: Option<u64>,
    got: u64,
}

/// Looks at the locks that were asked for exclusively alone, by processes with one task each: several tasks of one client take turns among
/// themselves. A wait during which something went wrong is left out, since whoever was cut off may have lost its place.
///
/// Who was before whom is known in two ways: the store was seen to have the first one in its queue before the other asked ([`Op::Waits`]), or
/// one asked a second before the other.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let found = pairs(history).into_iter().filter(|pair| pair.is_overtaking);
    let mut findings: Vec<Finding> = found.map(|pair| pair.finding).collect();
    // One for each who overtook, however many it left behind.
    findings.dedup_by_key(|finding| (finding.lock.clone(), finding.at));
    findings
}

/// How many pairs of waits there are of which one had to be served before the other. A history without any says nothing about order.
#[must_use]
pub fn judged(history: &History) -> usize {
    pairs(history).len()
}

/// One who waited, and one who came after it.
struct Pair {
    is_overtaking: bool,
    finding: Finding,
}

fn pairs(history: &History) -> Vec<Pair> {
    if !history.setup().fair {
        return Vec::new();
    }
    let mut pairs = Vec::new();
    let troubles = Troubles::of(history);
    for name in history.locks() {
        let Some(waits) = waits(history, name) else {
            continue;
        };
        for later in &waits {
            for first in waits.iter().filter(|one| one.process != later.process) {
                let seen = first.seen.filter(|seen| *seen < later.asked);
                let known = match seen {
                    Some(seen) if troubles.are_over(first.process, seen, first.got) => {
                        "was seen to wait"
                    }
                    _ if first.asked + SURELY < later.asked
                        && troubles.have_not_begun(first.asked, first.got) =>
                    {
                        "waited"
                    }
                    _ => continue,
                };
                // Who had it before the other asked shows nothing.
                if first.got < later.asked {
                    continue;
                }
                let why = format!(
                    "process {} asked at {} and {known} when process {} asked at {}, and the second was first",
                    first.process, first.asked, later.process, later.asked
                );
                pairs.push(Pair {
                    is_overtaking: later.got < first.got,
                    finding: Finding::new(Kind::OutOfOrder, name, later.got, why),
                });
            }
        }
    }
    pairs
}

/// The attempt that a process is at.
struct Asking {
    attempt: u64,
    asked: u64,
    seen: Option<u64>,
    /// What it asked before has ended for certain, so a place in the queue is this attempt's.
    is_alone: bool,
}

/// All waits that ended well, unless the lock is one that this checker leaves alone.
fn waits(history: &History, name: &str) -> Option<Vec<Waited>> {
    let mut tasks: HashMap<u32, HashSet<u32>> = HashMap::new();
    let mut asking: HashMap<u32, Asking> = HashMap::new();
    let mut in_doubt: HashSet<u32> = HashSet::new();
    let mut waits = Vec::new();
    for line in history.lines().iter().filter(|line| line.lock == name) {
        if line.mode.is_some_and(|mode| mode != Mode::Exclusive) {
            return None;
        }
        if line.op == Op::Waits {
            let now = asking.get_mut(&line.process);
            // The store was asked after the attempt had begun. It has not ended yet, or there would be another one or none.
            let of_it = |now: &&mut Asking| now.is_alone && line.value > Some(now.asked);
            if let Some(now) = now.filter(of_it) {
                now.seen = now.seen.or(Some(line.at));
            }
            continue;
        }
        if !matches!(line.op, Op::Acquire | Op::Try) {
            continue;
        }
        let of = tasks.entry(line.process).or_default();
        of.insert(line.task);
        if of.len() > 1 {
            return None;
        }
        if line.phase == Phase::Invoke {
            let now = Asking {
                attempt: line.attempt,
                asked: line.at,
                seen: None,
                is_alone: !in_doubt.remove(&line.process),
            };
            asking.insert(line.process, now);
            continue;
        }
        if line.phase == Phase::Unknown {
            in_doubt.insert(line.process);
        }
        let ended = asking.remove(&line.process);
        let ended = ended.filter(|it| it.attempt == line.attempt && line.phase == Phase::Ok);
        waits.extend(ended.filter(|_| line.op == Op::Acquire).map(|it| Waited {
            process: line.process,
            asked: it.asked,
            seen: it.seen,
            got: line.at,
        }));
    }
    Some(waits)
}

/// What went wrong, and when.
struct Troubles {
    /// From the beginning of each fault until those whom it hit have their places again.
    faults: Vec<(u64, u64)>,
    /// Whose, and when.
    errors: Vec<(u32, u64)>,
}

impl Troubles {
    fn of(history: &History) -> Self {
        // Whoever was cut off has asked again by then, and what it had before has ended.
        let settles = history.setup().lease.saturating_mul(2_000_000);
        let mut faults: Vec<(u64, u64)> = Vec::new();
        let mut errors = Vec::new();
        for line in history.lines() {
            match line.op {
                Op::Fault if line.note != "none" => faults.push((line.at, u64::MAX)),
                Op::Healed if line.note != "none" => {
                    let ends = line.at.saturating_add(settles);
                    let open = faults.iter_mut().filter(|(_, end)| *end == u64::MAX);
                    open.for_each(|(_, end)| *end = ends);
                }
                Op::Killed | Op::Stopped | Op::Continued => {
                    faults.push((line.at, line.at.saturating_add(settles)));
                }
                // It may have been taken for dead, and so may they whom the store heard late. Who is seen to wait after that is not.
                Op::StoodStill => {
                    let begin = line.value.unwrap_or(line.at);
                    faults.push((begin, line.at.saturating_add(SURELY / 4)));
                }
                // Whoever got an error was disturbed, whatever by. Not so who lost patience.
                Op::Acquire | Op::Try
                    if line.phase == Phase::Unknown && !line.note.contains("dropped") =>
                {
                    errors.push((line.process, line.at));
                }
                _ => {}
            }
        }
        Self { faults, errors }
    }

    /// Whether nothing was wrong in this time, nor so shortly before that it may have been felt, and this process had no error.
    fn are_over(&self, process: u32, from: u64, to: u64) -> bool {
        let mut faults = self.faults.iter();
        let mut errors = self.errors.iter();
        !faults.any(|(begin, end)| *begin <= to && *end >= from)
            && !errors.any(|(whose, at)| *whose == process && (from..=to).contains(at))
    }

    /// Whether nothing was wrong in this time nor before: a client may need long to find its way back, and has no place until then.
    fn have_not_begun(&self, from: u64, to: u64) -> bool {
        let mut errors = self.errors.iter();
        !self.faults.iter().any(|(begin, _)| *begin <= to)
            && !errors.any(|(_, at)| (from..=to).contains(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Line;
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

    /// The second asks 20 ms after the first, which the store was seen to have in its queue (or not), and is served first.
    fn overtaking_of_one_who_was_seen(
        looked: Option<(u64, u64)>,
        fault: Option<(u64, u64)>,
    ) -> Vec<Kind> {
        const MILLI: u64 = 1_000_000;
        let mut script = Script::new();
        script.setup(true, true);
        if let Some((begin, end)) = fault {
            script.info(Op::Fault, begin);
            script.info(Op::Healed, end);
        }
        let begin = 100 * SECOND;
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, begin);
        script.answer(begin + 90 * MILLI, Phase::Ok, Some(2), None);
        if let Some((asked, answered)) = looked {
            script.waits(1, "m", begin + asked * MILLI, begin + answered * MILLI);
        }
        script.ask(2, Op::Acquire, "m", Mode::Exclusive, begin + 20 * MILLI);
        script.answer(begin + 60 * MILLI, Phase::Ok, Some(1), None);
        let found = check(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn overtaking_of_one_who_was_seen_in_the_queue_is_found() {
        let found = [Kind::OutOfOrder];
        assert_eq!(overtaking_of_one_who_was_seen(Some((5, 10)), None), found);
        assert_eq!(overtaking_of_one_who_was_seen(None, None), []);
        // The store answered when the second had asked already.
        assert_eq!(overtaking_of_one_who_was_seen(Some((5, 21)), None), []);
        // Long after a fault it counts again; while it lasts, and shortly after it, it does not.
        let long_ago = Some((SECOND, 2 * SECOND));
        assert_eq!(
            overtaking_of_one_who_was_seen(Some((5, 10)), long_ago),
            found
        );
        for fault in [(99 * SECOND, 101 * SECOND), (98 * SECOND, 99 * SECOND)] {
            assert_eq!(
                overtaking_of_one_who_was_seen(Some((5, 10)), Some(fault)),
                []
            );
        }
    }

    #[test]
    fn one_who_got_no_processor_may_be_overtaken() {
        for (from, to, found) in [(30, 50, 0), (1, 9, 0), (95, 99, 1)] {
            let mut script = Script::new();
            script.setup(true, true);
            script.ask(1, Op::Acquire, "m", Mode::Exclusive, 10);
            script.answer(90, Phase::Ok, Some(2), None);
            script.waits(1, "m", 11, 12);
            script.ask(2, Op::Acquire, "m", Mode::Exclusive, 20);
            script.answer(60, Phase::Ok, Some(1), None);
            let mut line = Line::new(to, 1, Op::StoodStill, Phase::Info);
            line.value = Some(from);
            script.push(line);
            assert_eq!(check(&script.history()).len(), found, "{from} to {to}");
        }
    }

    #[test]
    fn an_error_disturbs_the_process_that_has_it() {
        for (process, found) in [(1, 0), (2, 1)] {
            let mut script = Script::new();
            script.setup(true, true);
            script.ask(1, Op::Acquire, "m", Mode::Exclusive, 10);
            script.answer(90, Phase::Ok, Some(2), None);
            script.waits(1, "m", 11, 12);
            script.ask(2, Op::Acquire, "m", Mode::Exclusive, 20);
            script.answer(60, Phase::Ok, Some(1), None);
            script.ask(process, Op::Acquire, "another", Mode::Exclusive, 30);
            script.answer(40, Phase::Unknown, None, None);
            assert_eq!(check(&script.history()).len(), found, "process {process}");
        }
    }

    #[test]
    fn a_place_that_an_older_attempt_left_is_nobodys() {
        for (phase, kinds) in [
            (Phase::Unknown, vec![]),
            (Phase::Fail, vec![Kind::OutOfOrder]),
        ] {
            let mut script = Script::new();
            script.setup(true, true);
            // It lost patience, and what it asked may still stand in the queue.
            script.ask(1, Op::Acquire, "m", Mode::Exclusive, 10);
            script.answer(20, phase, None, None);
            for line in script.lines_mut() {
                line.note = "the future was dropped".to_owned();
            }
            script.ask(1, Op::Acquire, "m", Mode::Exclusive, 30);
            script.answer(90, Phase::Ok, Some(2), None);
            script.waits(1, "m", 35, 40);
            script.ask(2, Op::Acquire, "m", Mode::Exclusive, 50);
            script.answer(60, Phase::Ok, Some(1), None);
            let found: Vec<_> = check(&script.history())
                .iter()
                .map(|one| one.kind)
                .collect();
            assert_eq!(found, kinds, "{phase:?}");
        }
    }

    #[test]
    fn those_who_were_seen_and_served_in_turn_are_good_and_counted() {
        let mut script = Script::new();
        script.setup(true, true);
        for process in 1..=3_u32 {
            let at = u64::from(process) * 10;
            script.ask(process, Op::Acquire, "m", Mode::Exclusive, at);
            script.answer(at + 100, Phase::Ok, Some(u64::from(process)), None);
            script.waits(process, "m", at + 1, at + 2);
        }
        assert_eq!(check(&script.history()), []);
        assert_eq!(judged(&script.history()), 3);
        // Where it is not seen who waits, nothing is known.
        script.lines_mut().retain(|line| line.op != Op::Waits);
        assert_eq!(judged(&script.history()), 0);
    }
}
