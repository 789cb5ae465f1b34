//! C12, C13 and C16: after all is well again somebody gets in, every call ends, and nothing is left.

use std::collections::{HashMap, HashSet};

use crate::history::{History, Line, Op, Phase};
use crate::holds::holds;
use crate::report::{Finding, Kind};

/// Looks at what came after the last fault was over.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(after_healing(history));
    findings.extend(starved(history));
    findings.extend(unanswered(history));
    for line in history.lines().iter().filter(|line| line.op == Op::Left) {
        if line.value != Some(0) {
            let why = format!("{:?} holders and waiters: {}", line.value, line.note);
            findings.push(Finding::new(Kind::LeftBehind, &line.lock, line.at, why));
        }
    }
    findings
}

/// The next grant on each lock that somebody wants, within the lease and the bound.
fn after_healing(history: &History) -> Vec<Finding> {
    let moment = |op| {
        let mut lines = history.lines().iter().rev();
        lines.find(|line| line.op == op).map(|line| line.at)
    };
    let (Some(healed), Some(end)) = (moment(Op::Healed), moment(Op::Stopping)) else {
        return Vec::new();
    };
    let setup = history.setup();
    let limit = healed.saturating_add((setup.lease + setup.bound).saturating_mul(1_000_000));
    let mut findings = Vec::new();
    for name in history.locks() {
        let asks =
            |line: &&crate::Line| line.lock == name && matches!(line.op, Op::Acquire | Op::Try);
        let lines = || history.lines().iter().filter(asks);
        // Somebody was waiting when all was well again, or came soon after.
        let wanted = lines().any(|line| match line.phase {
            Phase::Invoke => line.at >= healed && line.at <= limit,
            _ => line.at >= healed,
        });
        let next = lines().find(|line| line.phase == Phase::Ok && line.at >= healed);
        let late = next.map_or(end >= limit, |line| line.at > limit);
        if wanted && late {
            let when = next.map_or("never".to_owned(), |line| {
                format!("{} ms after it", (line.at - healed) / 1_000_000)
            });
            let why = format!("healed at {healed}, next grant {when}");
            findings.push(Finding::new(Kind::Stuck, name, limit, why));
        }
    }
    findings
}

/// Who waits must be served in time, and not somebody alone: one waiter that nobody wakes is not seen by the grants of the others. A wait counts from the moment from which
/// all was well, and to the end of the run if it has no other. Where no order is declared, one may have bad luck for twice the bound.
fn starved(history: &History) -> Vec<Finding> {
    let moment = |op| {
        let mut lines = history.lines().iter().rev();
        lines.find(|line| line.op == op).map(|line| line.at)
    };
    let (Some(healed), Some(end)) = (moment(Op::Healed), moment(Op::Stopping)) else {
        return Vec::new();
    };
    let setup = history.setup();
    let bounds = if setup.fair { 1 } else { 2 };
    let limit = (setup.lease + bounds * setup.bound).saturating_mul(1_000_000);
    let mut ends = HashMap::new();
    for line in history.lines() {
        match (line.op, line.phase) {
            (Op::Acquire, Phase::Invoke) => {}
            (Op::Acquire, _) => _ = ends.entry((line.process, line.attempt)).or_insert(line.at),
            _ => {}
        }
    }
    let lines = history.lines().iter();
    let killed: HashSet<_> = lines
        .filter(|line| line.op == Op::Killed)
        .map(|line| line.process)
        .collect();
    let mut findings = Vec::new();
    let asked = |line: &&Line| (line.op, line.phase) == (Op::Acquire, Phase::Invoke);
    let waits = history.lines().iter().filter(asked);
    for wait in waits.filter(|wait| !killed.contains(&wait.process)) {
        let from = wait.at.max(healed);
        let until = ends.get(&(wait.process, wait.attempt));
        let until = until.map_or(end, |until| end.min(*until));
        if until.saturating_sub(from) <= limit {
            continue;
        }
        // Others came later and were served meanwhile. If nobody was, that is found of all.
        let served = holds(history)
            .iter()
            .filter(|hold| hold.lock == wait.lock && hold.process != wait.process)
            .filter(|hold| hold.asked > from && hold.from < until)
            .count();
        if served > 0 {
            let why = format!(
                "process {} waited from {} and for {} ms since all was well, while {served} who came later were served",
                wait.process,
                wait.at,
                (until - from) / 1_000_000
            );
            findings.push(Finding::new(Kind::Stuck, &wait.lock, from, why));
        }
    }
    findings
}

/// Questions that were never answered by processes that lived to their end.
fn unanswered(history: &History) -> Vec<Finding> {
    let lines = history.lines();
    if !lines.iter().any(|line| line.op == Op::Stopping) {
        return Vec::new();
    }
    let (mut open, mut killed) = (HashMap::new(), HashSet::new());
    for line in lines {
        let key = (line.process, line.attempt, line.op as u8);
        match (line.op, line.phase) {
            (Op::Killed, _) => _ = killed.insert(line.process),
            (Op::Acquire | Op::Try | Op::Release | Op::Downgrade, Phase::Invoke) => {
                open.insert(key, line);
            }
            (Op::Acquire | Op::Try | Op::Release | Op::Downgrade, _) => _ = open.remove(&key),
            _ => {}
        }
    }
    // Also what it asked after that was written down: the kill comes a moment later.
    let living = open.into_iter().filter(|(key, _)| !killed.contains(&key.0));
    let mut open: Vec<_> = living.map(|(_, line)| line).collect();
    open.sort_by_key(|line| line.at);
    open.iter()
        .map(|line| {
            let why = format!("process {}: {:?} did not end", line.process, line.op);
            Finding::new(Kind::Stuck, &line.lock, line.at, why)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Mode;
    use crate::testing::Script;

    const SECOND: u64 = 1_000_000_000;

    /// Healed at one second, with a lease and a bound of one second each.
    fn next_grant(at: Option<u64>) -> Vec<Kind> {
        let mut script = Script::new();
        script.setup(true, false);
        script.info(Op::Healed, SECOND);
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, SECOND / 2);
        if let Some(at) = at {
            script.answer(at, Phase::Ok, Some(1), None);
        } else {
            script.answer(10 * SECOND, Phase::Unknown, None, None);
        }
        script.info(Op::Stopping, 9 * SECOND);
        let found = check(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn the_next_waiter_is_in_within_the_bound_or_that_is_found() {
        assert_eq!(next_grant(Some(2 * SECOND)), []);
        assert_eq!(next_grant(Some(4 * SECOND)), [Kind::Stuck]);
        assert_eq!(next_grant(None), [Kind::Stuck]);
    }

    /// One waits from before the healing until it is told to stop after so many seconds, beside others who are served once a second.
    fn one_waits(fair: bool, seconds: u64, others: bool) -> Vec<Kind> {
        let mut script = Script::new();
        script.setup(true, fair);
        script.info(Op::Healed, SECOND);
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, SECOND / 2);
        let end = (1 + seconds) * SECOND;
        script.answer(end + 1, Phase::Unknown, None, None);
        // All was well: at its start somebody is served who asked before.
        script.ask(2, Op::Acquire, "m", Mode::Exclusive, SECOND / 2);
        script.answer(SECOND + 1, Phase::Ok, Some(1), None);
        script.release(SECOND + 2, SECOND + 3);
        for turn in (1..seconds).filter(|_| others) {
            let at = (1 + turn) * SECOND;
            script.hold(2, "m", Mode::Exclusive, at, turn + 1, None);
            script.release(at + 10, at + 20);
        }
        script.info(Op::Stopping, end);
        let found = starved(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn one_waiter_that_is_not_served_while_others_are_is_found() {
        assert_eq!(one_waits(true, 2, true), []);
        assert_eq!(one_waits(true, 4, true), [Kind::Stuck]);
        // Without an order there is twice the bound.
        assert_eq!(one_waits(false, 3, true), []);
        assert_eq!(one_waits(false, 5, true), [Kind::Stuck]);
        // Nobody else came: that nobody is served is found elsewhere.
        assert_eq!(one_waits(true, 4, false), []);
    }

    #[test]
    fn who_died_or_was_served_late_is_told_apart() {
        let mut script = Script::new();
        script.setup(true, true);
        script.info(Op::Healed, SECOND);
        for turn in 2..9 {
            script.hold(2, "m", Mode::Exclusive, turn * SECOND, turn, None);
            script.release(turn * SECOND + 10, turn * SECOND + 20);
        }
        script.ask(1, Op::Acquire, "m", Mode::Exclusive, 2 * SECOND);
        script.answer(8 * SECOND + 30, Phase::Ok, Some(20), None);
        script.info(Op::Stopping, 9 * SECOND);
        assert_eq!(starved(&script.history()).len(), 1);
        script.killed(1, 9 * SECOND);
        assert_eq!(starved(&script.history()), []);
    }

    #[test]
    fn a_call_that_does_not_end_is_found_unless_its_process_died() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, None);
        script.release(20, 21);
        script.ask(2, Op::Acquire, "m", Mode::Exclusive, 30);
        script.info(Op::Stopping, 40);
        let kinds: Vec<_> = check(&script.history())
            .iter()
            .map(|one| one.kind)
            .collect();
        assert_eq!(kinds, [Kind::Stuck]);
        for killed in [35, 29] {
            script.lines_mut().retain(|line| line.op != Op::Killed);
            script.killed(2, killed);
            assert_eq!(check(&script.history()), []);
        }
    }

    #[test]
    fn what_is_left_in_the_store_is_found() {
        let mut script = Script::new();
        let mut line = Line::new(5, 0, Op::Left, Phase::Info);
        line.lock = "m".to_owned();
        line.value = Some(0);
        script.push(line.clone());
        assert_eq!(check(&script.history()), []);
        line.value = Some(1);
        script.push(line);
        assert_eq!(check(&script.history()).len(), 1);
    }
}
