//! What the protected data say: a fenced register must lose nothing, whatever became of the lock.

use std::collections::HashSet;

use crate::history::{History, Line, Op, Phase, Register};
use crate::report::{Finding, Kind};

/// Looks at both registers of every lock.
///
/// A holder reads a number and writes the next one, and the register keeps a list of what it took. So a number that comes twice is an
/// update that was lost. Lost updates of the unfenced register are findings of two kinds of their own: no lock can prevent those of a holder that writes late
/// since it stood still ([`Kind::LateWrite`]); any other shows that two worked at once ([`Kind::LostUpdate`]).
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in history.locks() {
        let of = |register, op, phase| {
            history
                .lines()
                .iter()
                .filter(move |line| line.lock == name && line.register == Some(register))
                .filter(move |line| line.op == op && line.phase == phase)
        };
        for register in [Register::Fenced, Register::Unfenced] {
            let took: Vec<&Line> = of(register, Op::Took, Phase::Info).collect();
            let (lost, stale) = match register {
                Register::Fenced => (Kind::LostWrite, Some(Kind::StaleWrite)),
                Register::Unfenced => (Kind::LostUpdate, None),
            };
            let mut find = |kind, at, why: String| findings.push(Finding::new(kind, name, at, why));
            let mut value = 0;
            let mut highest = None;
            let mut before: Option<&Line> = None;
            for line in &took {
                let written = line.value.unwrap_or_default();
                if written != value + 1 {
                    let why = format!(
                        "{} followed {value} in the {register:?} register",
                        who(line)
                    );
                    // Either of the two may be the late one.
                    let mut both = [Some(*line), before].into_iter().flatten();
                    let kind = match register {
                        Register::Unfenced if both.any(|one| wrote_late(history, one)) => {
                            Kind::LateWrite
                        }
                        _ => lost,
                    };
                    find(kind, line.at, why);
                }
                before = Some(line);
                value = written;
                if let Some(kind) = stale
                    && line.token < highest
                {
                    let why = format!("{} was taken after token {highest:?}", who(line));
                    find(kind, line.at, why);
                }
                highest = highest.max(line.token);
            }
            let there: HashSet<_> = took.iter().map(|line| key(line)).collect();
            // Only once the register's list is in the history.
            if took.is_empty() && register == Register::Unfenced {
                continue;
            }
            for line in of(register, Op::Write, Phase::Ok) {
                if !there.contains(&key(line)) {
                    let why = format!("{} was acknowledged and is not there", who(line));
                    find(Kind::LostWrite, line.at, why);
                }
            }
        }
    }
    findings
}

/// Whether the one who wrote this stood still while it held, or its write was under way when its validity passed.
fn wrote_late(history: &History, took: &Line) -> bool {
    let of_process = |line: &&Line| line.process == took.process;
    let lines = || history.lines().iter().filter(of_process);
    let own = || lines().filter(|line| line.attempt == took.attempt && line.lock == took.lock);
    let got =
        own().find(|line| line.phase == Phase::Ok && matches!(line.op, Op::Acquire | Op::Try));
    let written = |phase| {
        let mut writes = own().filter(|line| line.op == Op::Write && line.phase == phase);
        let write = writes.find(|line| line.register == Some(Register::Unfenced));
        write.map(|line| line.at)
    };
    let (Some(got), Some(sent)) = (got, written(Phase::Invoke)) else {
        return false;
    };
    // One that was killed meanwhile never heard of it.
    let done = written(Phase::Ok).unwrap_or(u64::MAX);
    let mut renewed = own().filter(|line| line.op == Op::Renew && line.at <= sent);
    let believed = renewed.next_back().unwrap_or(got).valid_until;
    if believed.is_some_and(|until| sent <= until && until < done) {
        return true;
    }
    let within = |from: u64, to: u64| from < done && to > got.at;
    let mut stopped = None;
    for line in lines() {
        match line.op {
            Op::StoodStill if within(line.value.unwrap_or(line.at), line.at) => return true,
            Op::Stopped => stopped = Some(line.at),
            Op::Continued if stopped.take().is_some_and(|from| within(from, line.at)) => {
                return true;
            }
            _ => {}
        }
    }
    stopped.is_some_and(|from| within(from, u64::MAX))
}

fn key(line: &Line) -> (u32, u64, Option<u64>) {
    (line.process, line.attempt, line.value)
}

fn who(line: &Line) -> String {
    let value = line.value.unwrap_or_default();
    let token = line
        .token
        .map_or(String::new(), |token| format!(", token {token}"));
    format!(
        "{value} (process {}, attempt {}{token})",
        line.process, line.attempt
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Mode;
    use crate::testing::Script;

    fn kinds(script: &Script) -> Vec<Kind> {
        let found = check(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    fn write(script: &mut Script, register: Register, process: u32, token: u64, value: u64) {
        script.hold(process, "m", Mode::Exclusive, token * 10, token, None);
        script.wrote(token * 10 + 5, register, token, value);
        script.took(register, token, value);
    }

    #[test]
    fn one_write_after_the_other_is_good() {
        for register in [Register::Fenced, Register::Unfenced] {
            let mut script = Script::new();
            for n in 1..=3 {
                write(&mut script, register, n, u64::from(n), u64::from(n));
            }
            assert_eq!(kinds(&script), []);
        }
    }

    #[test]
    fn a_number_that_comes_twice_is_a_lost_write_or_a_lost_update() {
        for (register, kind) in [
            (Register::Fenced, Kind::LostWrite),
            (Register::Unfenced, Kind::LostUpdate),
        ] {
            let mut script = Script::new();
            write(&mut script, register, 1, 1, 1);
            write(&mut script, register, 2, 2, 2);
            write(&mut script, register, 3, 3, 2);
            assert_eq!(kinds(&script), [kind]);
        }
    }

    /// Two read the same number, and both write the next one. The first of them was told that it holds until 100, wrote at this time, and heard of it at that.
    fn one_of_two_writes(sent: u64, done: u64, more: impl FnOnce(&mut Script)) -> Vec<Kind> {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        for (at, phase) in [(sent, Phase::Invoke), (done, Phase::Ok)] {
            script.wrote(at, Register::Unfenced, 1, 1);
            script.lines_mut().last_mut().unwrap().phase = phase;
        }
        let of_first = script.lines_mut().last().unwrap().clone();
        more(&mut script);
        write(&mut script, Register::Unfenced, 2, 5, 1);
        let mut took = of_first;
        (took.op, took.phase, took.at) = (Op::Took, Phase::Info, u64::MAX);
        script.push(took);
        kinds(&script)
    }

    #[test]
    fn a_lost_update_is_told_apart_from_a_late_write() {
        let nothing = |_: &mut Script| {};
        // Within its validity: two were at work at once.
        assert_eq!(one_of_two_writes(60, 62, nothing), [Kind::LostUpdate]);
        // After it, and nobody stood still: it was told that it holds when it did not.
        assert_eq!(one_of_two_writes(120, 122, nothing), [Kind::LostUpdate]);
        assert_eq!(one_of_two_writes(99, 103, nothing), [Kind::LateWrite]);
        let still = |process, from: u64, to| {
            move |script: &mut Script| {
                let mut line = Line::new(to, process, Op::StoodStill, Phase::Info);
                line.value = Some(from);
                script.push(line);
            }
        };
        assert_eq!(
            one_of_two_writes(120, 122, still(1, 50, 119)),
            [Kind::LateWrite]
        );
        assert_eq!(
            one_of_two_writes(120, 122, still(3, 50, 119)),
            [Kind::LostUpdate]
        );
        assert_eq!(
            one_of_two_writes(120, 122, still(1, 2, 9)),
            [Kind::LostUpdate]
        );
        let stopped = |script: &mut Script| {
            for (op, at) in [(Op::Stopped, 50), (Op::Continued, 119)] {
                script.push(Line::new(at, 1, op, Phase::Info));
            }
        };
        assert_eq!(one_of_two_writes(120, 122, stopped), [Kind::LateWrite]);
    }

    #[test]
    fn a_stale_token_that_was_taken_is_found_in_the_fenced_one_alone() {
        for (register, found) in [
            (Register::Fenced, vec![Kind::StaleWrite]),
            (Register::Unfenced, vec![]),
        ] {
            let mut script = Script::new();
            write(&mut script, register, 1, 2, 1);
            write(&mut script, register, 2, 1, 2);
            assert_eq!(kinds(&script), found);
        }
    }

    #[test]
    fn an_acknowledged_write_that_is_not_there_is_found() {
        let mut script = Script::new();
        write(&mut script, Register::Fenced, 1, 1, 1);
        script.hold(2, "m", Mode::Exclusive, 20, 2, None);
        script.wrote(25, Register::Fenced, 2, 2);
        assert_eq!(kinds(&script), [Kind::LostWrite]);
    }
}
