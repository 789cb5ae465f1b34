//! What the protected data say: a fenced register must lose nothing, whatever became of the lock.

use std::collections::HashSet;

use crate::history::{History, Line, Op, Phase, Register};
use crate::report::{Finding, Kind};

/// Looks at both registers of every lock.
///
/// A holder reads a number and writes the next one, and the register keeps a list of what it took. So a number that comes twice is an
/// update that was lost. Lost updates of the unfenced register are findings of their own kind, since no lock can prevent all of them.
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
            for line in &took {
                let written = line.value.unwrap_or_default();
                if written != value + 1 {
                    let why = format!(
                        "{} followed {value} in the {register:?} register",
                        who(line)
                    );
                    find(lost, line.at, why);
                }
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
