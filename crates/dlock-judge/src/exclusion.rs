//! C1 and C19, going by what holders believed: nobody beside whom the lock excludes.

use crate::history::{History, Mode};
use crate::holds::{Hold, holds};
use crate::report::{Finding, Kind};

/// Looks at every moment of every lock.
///
/// Two holders count only while both believed: from the moment the later one knew to the moment the first one's validity passed, or it
/// was told or gave the lock back. So a finding here is a broken promise, whatever the machine was doing.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let all = holds(history);
    let mut findings = Vec::new();
    for name in history.locks() {
        let mut parts: Vec<(u64, u64, Mode, &Hold)> = all
            .iter()
            .filter(|hold| hold.lock == name)
            .flat_map(|hold| {
                let parts = hold.parts().into_iter();
                parts.map(move |(from, until, mode)| (from, until, mode, hold))
            })
            .collect();
        parts.sort_by_key(|part| part.0);
        let mut now: Vec<(u64, u64, Mode, &Hold)> = Vec::new();
        for part in parts {
            now.retain(|other| other.1 > part.0 && !same(other.3, part.3));
            now.push(part);
            // A part without a moment disturbs nobody.
            if part.1 > part.0
                && let Some(why) = misfit(&now)
            {
                findings.push(Finding::new(Kind::TwoHolders, name, part.0, why));
            }
        }
    }
    findings
}

fn same(a: &Hold, b: &Hold) -> bool {
    (a.process, a.attempt) == (b.process, b.attempt)
}

/// Why these do not fit together, the last of whom came last.
fn misfit(now: &[(u64, u64, Mode, &Hold)]) -> Option<String> {
    if now.len() < 2 {
        return None;
    }
    let permits = now.iter().map(|part| match part.2 {
        Mode::Permit(limit) => Some(limit),
        _ => None,
    });
    let limit = permits.collect::<Option<Vec<u32>>>();
    let fits = match limit.as_deref() {
        // Whoever believes in the lowest limit is right to be surprised.
        Some(limits) => limits
            .iter()
            .min()
            .is_some_and(|limit| now.len() <= usize::try_from(*limit).unwrap_or(usize::MAX)),
        None => now.iter().all(|part| part.2 == Mode::Shared),
    };
    if fits {
        return None;
    }
    let texts: Vec<_> = now.iter().map(|part| part.3.text()).collect();
    Some(texts.join(" beside "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Op;
    use crate::testing::Script;

    fn kinds(script: &Script) -> Vec<Kind> {
        let found = check(&script.history());
        found.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn one_after_the_other_is_good_also_when_the_first_one_only_expired() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        script.hold(2, "m", Mode::Exclusive, 100, 2, Some(200));
        script.release(150, 151);
        script.hold(3, "m", Mode::Exclusive, 151, 3, Some(300));
        script.hold(1, "other", Mode::Exclusive, 160, 1, Some(300));
        assert_eq!(kinds(&script), []);
    }

    #[test]
    fn two_at_once_are_found_and_also_for_a_moment() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        script.hold(2, "m", Mode::Exclusive, 99, 2, Some(200));
        let found = check(&script.history());
        assert_eq!(found.len(), 1);
        assert!(found[0].detail.contains("process 1.0"), "{}", found[0]);
        assert!(found[0].detail.contains("process 2.0"), "{}", found[0]);
    }

    #[test]
    fn a_hold_that_was_renewed_after_it_passed_on_is_found() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, Some(100));
        script.renew(90, 190);
        script.hold(2, "m", Mode::Exclusive, 120, 2, Some(200));
        assert_eq!(kinds(&script), [Kind::TwoHolders]);
    }

    #[test]
    fn readers_share_and_a_writer_beside_them_is_found() {
        let mut script = Script::new();
        script.hold(1, "r", Mode::Shared, 10, 1, Some(100));
        script.hold(2, "r", Mode::Shared, 20, 2, Some(100));
        assert_eq!(kinds(&script), []);
        script.hold(3, "r", Mode::Exclusive, 30, 3, Some(100));
        assert_eq!(kinds(&script), [Kind::TwoHolders]);
    }

    #[test]
    fn a_reader_beside_one_who_downgrades_is_good_and_before_is_not() {
        let mut script = Script::new();
        script.hold(1, "r", Mode::Exclusive, 10, 1, Some(100));
        script.pair(Op::Downgrade, 40, 50);
        script.hold(2, "r", Mode::Shared, 45, 2, Some(100));
        assert_eq!(kinds(&script), []);
        script.hold(3, "r", Mode::Shared, 30, 3, Some(35));
        assert_eq!(kinds(&script), [Kind::TwoHolders]);
    }

    #[test]
    fn permits_over_the_limit_are_found() {
        let mut script = Script::new();
        for process in 1..=2 {
            script.hold(
                process,
                "p",
                Mode::Permit(2),
                10,
                u64::from(process),
                Some(100),
            );
        }
        assert_eq!(kinds(&script), []);
        script.hold(3, "p", Mode::Permit(2), 99, 3, Some(200));
        assert_eq!(kinds(&script), [Kind::TwoHolders]);
    }

    #[test]
    fn a_dead_process_holds_nothing() {
        let mut script = Script::new();
        script.hold(1, "m", Mode::Exclusive, 10, 1, None);
        script.killed(1, 50);
        script.hold(2, "m", Mode::Exclusive, 50, 2, None);
        assert_eq!(kinds(&script), []);
    }
}
