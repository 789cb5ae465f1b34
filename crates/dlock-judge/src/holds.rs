//! Holds as their holders saw them, put together from lines.

use std::collections::{BTreeMap, HashMap};

use crate::history::{History, Line, Mode, Op, Phase};

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Released between these two moments, and the store said so.
    Released(u64, u64),
    /// In some other way: the store may have kept it a while longer.
    Other,
}

/// One hold, in the time in which its holder believed in it. Both ends are on the safe side: it begins when the holder knew, and ends when
/// it began to give the lock back, was told, was killed, or its validity passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Whose.
    pub process: u32,
    /// Which of its tasks.
    pub task: u32,
    /// Which attempt of the process.
    pub attempt: u64,
    /// On which lock.
    pub lock: String,
    /// As it was asked for.
    pub mode: Mode,
    /// When it was asked for.
    pub asked: u64,
    /// Its first moment.
    pub from: u64,
    /// Its last moment, if the history knows one.
    pub until: u64,
    /// From when on it was shared: the holder began to downgrade.
    pub shared_from: Option<u64>,
    /// Its token.
    pub token: Option<u64>,
    /// How it ended.
    pub end: End,
}

impl Hold {
    /// Its parts: from, until, mode.
    pub fn parts(&self) -> Vec<(u64, u64, Mode)> {
        match self.shared_from {
            Some(moment) if moment < self.until => vec![
                (self.from, moment, self.mode),
                (moment, self.until, Mode::Shared),
            ],
            _ => vec![(self.from, self.until, self.mode)],
        }
    }

    /// From when on it may have ended. One that was over when its holder was told of it (a process that was stopped right behind its grant) may have
    /// ended at any moment since it was asked for.
    #[must_use]
    pub fn may_end_from(&self) -> u64 {
        if self.until <= self.from {
            self.asked
        } else {
            self.until
        }
    }

    /// As findings call it.
    #[must_use]
    pub fn text(&self) -> String {
        let token = self
            .token
            .map_or(String::new(), |token| format!(" with token {token}"));
        format!(
            "process {}.{} attempt {} ({:?}{token}, {} to {})",
            self.process, self.task, self.attempt, self.mode, self.from, self.until
        )
    }
}

/// All holds of a history, in the order in which they began.
#[must_use]
pub fn holds(history: &History) -> Vec<Hold> {
    let mut killed = HashMap::new();
    let mut by_attempt: BTreeMap<(u32, u64), Vec<&Line>> = BTreeMap::new();
    for line in history.lines() {
        match line.op {
            Op::Killed => _ = killed.entry(line.process).or_insert(line.at),
            Op::Acquire | Op::Try | Op::Renew | Op::Downgrade | Op::Release | Op::Lost => {
                let key = (line.process, line.attempt);
                by_attempt.entry(key).or_default().push(line);
            }
            _ => {}
        }
    }
    let mut all: Vec<_> = by_attempt
        .into_values()
        .filter_map(|lines| hold(&lines, &killed))
        .collect();
    all.sort_by_key(|hold| (hold.from, hold.until));
    all
}

fn hold(lines: &[&Line], killed: &HashMap<u32, u64>) -> Option<Hold> {
    let asking = |line: &&&Line| matches!(line.op, Op::Acquire | Op::Try);
    let asked = lines.iter().find(asking)?.at;
    let got = lines
        .iter()
        .filter(asking)
        .find(|line| line.phase == Phase::Ok)?;
    let first = |op: Op, phase: Phase| {
        let mut found = lines.iter().filter(|line| line.op == op);
        found.find(|line| line.phase == phase).map(|line| line.at)
    };
    let believed = lines
        .iter()
        .rfind(|line| line.op == Op::Renew)
        .map_or(got.valid_until, |line| line.valid_until);
    let released = first(Op::Release, Phase::Invoke);
    let ends = [
        believed,
        released,
        first(Op::Lost, Phase::Info),
        killed.get(&got.process).copied(),
    ];
    let until = ends.into_iter().flatten().min().unwrap_or(u64::MAX);
    let end = match (released, first(Op::Release, Phase::Ok)) {
        // What was lost before may have ended before.
        (Some(begun), Some(done)) if begun <= until => End::Released(begun, done),
        _ => End::Other,
    };
    Some(Hold {
        process: got.process,
        task: got.task,
        attempt: got.attempt,
        lock: got.lock.clone(),
        mode: got.mode.unwrap_or(Mode::Exclusive),
        asked,
        from: got.at,
        // One that was over when its holder knew has no moment at all.
        until: until.max(got.at),
        shared_from: first(Op::Downgrade, Phase::Invoke),
        token: got.token,
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Script;

    #[test]
    fn a_hold_lasts_to_the_earliest_of_its_ends() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        script.renew(60, 150);
        script.release(120, 130);
        script.hold(2, "m", Mode::Exclusive, 200, 2, Some(300));
        script.hold(3, "m", Mode::Exclusive, 400, 3, None);
        script.killed(3, 450);
        let all = holds(&script.history());
        let ends: Vec<_> = all.iter().map(|hold| (hold.from, hold.until)).collect();
        assert_eq!(ends, [(10, 120), (200, 300), (400, 450)]);
        assert_eq!(all[0].end, End::Released(120, 130));
        assert_eq!(all[1].end, End::Other);
    }

    #[test]
    fn a_release_after_the_validity_is_no_clean_end() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        script.release(120, 130);
        let all = holds(&script.history());
        assert_eq!((all[0].until, all[0].end), (100, End::Other));
    }
}
