//! Evidence that a lock is busy. A time limit that passes is "busy" only if it is known that others hold the lock; a store that
//! says nothing looks the same from outside, and is an error ([C5](crate::contract#c5), decision 2).
//!
//! The tasks of one client that want the same name share what they know: evidence goes along their line.

use std::time::Duration;

use crate::Moment;

/// What the tasks of one client know about one lock.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// When it was last certain that somebody had the lock: the store said so, or a task of this client did.
    busy_at: Option<Moment>,
    /// Since when a question has had no answer, whoever asked it.
    silent_since: Option<Moment>,
    /// When the first of the failures came that no answer has followed yet.
    trouble_since: Option<Moment>,
}

impl Evidence {
    /// The store is asked.
    pub(crate) fn asked(&mut self, now: Moment) {
        self.silent_since.get_or_insert(now);
    }

    /// It is certain that somebody has the lock at `now`, which also shows that the store answers.
    pub(crate) fn busy(&mut self, now: Moment) {
        self.busy_at = Some(now);
        self.silent_since = None;
        self.trouble_since = None;
    }

    /// The store could not be asked, or did not confirm a release. Returns since when it has been in trouble.
    pub(crate) fn failed(&mut self, now: Moment) -> Moment {
        *self.trouble_since.get_or_insert(now)
    }

    /// Since when nothing but failures has come; `None` while the store answers.
    pub(crate) fn trouble_since(&self) -> Option<Moment> {
        self.trouble_since
    }

    /// Whether one who waits since `arrived` knows that the lock was busy to the end of the wait: somebody had it
    /// meanwhile, nothing has failed since then, and no question is open for longer than a trip may take.
    pub(crate) fn says_busy(&self, arrived: Moment, now: Moment, trip: Duration) -> bool {
        self.busy_at.is_some_and(|at| at >= arrived)
            && self.trouble_since.is_none()
            && self.silent_since.is_none_or(|since| now < since + trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_secs(5);

    fn at(second: u64) -> Moment {
        Moment::from_nanos(second * 1_000_000_000)
    }

    #[test]
    fn a_silent_store_is_not_busy() {
        let mut evidence = Evidence::default();
        assert!(!evidence.says_busy(at(1), at(2), TRIP));
        evidence.asked(at(1));
        assert!(!evidence.says_busy(at(1), at(2), TRIP));
    }

    #[test]
    fn what_was_known_before_one_came_does_not_count() {
        let mut evidence = Evidence::default();
        evidence.busy(at(1));
        assert!(evidence.says_busy(at(1), at(2), TRIP));
        assert!(!evidence.says_busy(at(2), at(3), TRIP));
    }

    #[test]
    fn a_failure_or_a_long_silence_takes_the_evidence_away() {
        let mut evidence = Evidence::default();
        evidence.busy(at(1));
        evidence.asked(at(2));
        assert!(evidence.says_busy(at(1), at(6), TRIP));
        assert!(!evidence.says_busy(at(1), at(7), TRIP));
        assert_eq!(evidence.failed(at(3)), at(3));
        assert_eq!(evidence.failed(at(4)), at(3), "the first counts");
        assert_eq!(evidence.trouble_since(), Some(at(3)));
        assert!(!evidence.says_busy(at(1), at(4), TRIP));
        evidence.busy(at(5));
        assert!(evidence.says_busy(at(1), at(6), TRIP));
        assert_eq!(evidence.trouble_since(), None);
    }
}
