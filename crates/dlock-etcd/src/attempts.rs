//! What this client knows about its own attempts: which may still have a request under way, and which were given up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::{AttemptId, ErrorKind};

use crate::error::Trouble;

/// How many abandoned attempts are remembered here. Only this client sends requests of its attempts.
const REMEMBERED: usize = 4096;
/// A request that arrives later than this after its attempt was abandoned is beyond belief; its mark may go.
const MARK_LASTS: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Attempts of which a request may still reach the store, and the lease it would put their entry under.
    in_doubt: HashMap<AttemptId, i64>,
    refused: HashSet<AttemptId>,
    refused_in_order: VecDeque<AttemptId>,
    /// Writers that became readers: their key still says writer.
    downgraded: HashSet<AttemptId>,
    marks: VecDeque<(Instant, i64, Vec<u8>)>,
}

impl Attempts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses an attempt that was given up, without asking the store.
    pub(crate) fn check(&self, attempt: AttemptId) -> Result<(), Trouble> {
        if self.known().refused.contains(&attempt) {
            return Err(Trouble::new(
                ErrorKind::Store,
                "this attempt was abandoned: make a new one",
            )
            .unsent());
        }
        Ok(())
    }

    /// A request that may put an entry goes out. It is in doubt until [`settled`](Self::settled), also if its future is dropped.
    pub(crate) fn sending(&self, attempt: AttemptId, lease: i64) {
        self.known().in_doubt.insert(attempt, lease);
    }

    /// All requests of the attempt were answered.
    pub(crate) fn settled(&self, attempt: AttemptId) {
        self.known().in_doubt.remove(&attempt);
    }

    /// The lease under which a late request of this attempt would put its entry.
    pub(crate) fn doubt(&self, attempt: AttemptId) -> Option<i64> {
        self.known().in_doubt.get(&attempt).copied()
    }

    pub(crate) fn refuse(&self, attempt: AttemptId) {
        let mut known = self.known();
        if !known.refused.insert(attempt) {
            return;
        }
        known.refused_in_order.push_back(attempt);
        if known.refused_in_order.len() > REMEMBERED
            && let Some(oldest) = known.refused_in_order.pop_front()
        {
            known.refused.remove(&oldest);
        }
    }

    pub(crate) fn downgraded(&self, attempt: AttemptId) {
        self.known().downgraded.insert(attempt);
    }

    pub(crate) fn was_downgraded(&self, attempt: AttemptId) -> bool {
        self.known().downgraded.contains(&attempt)
    }

    /// Nothing of the attempt is in the store, and nothing will come.
    pub(crate) fn over(&self, attempt: AttemptId) {
        let mut known = self.known();
        known.in_doubt.remove(&attempt);
        known.downgraded.remove(&attempt);
    }

    /// A mark was put under this lease.
    pub(crate) fn marked(&self, lease: i64, mark: Vec<u8>) {
        self.known().marks.push_back((Instant::now(), lease, mark));
    }

    /// An old mark that can go with the next trip; the lease takes the others with it.
    pub(crate) fn old_mark(&self, current_lease: i64) -> Option<Vec<u8>> {
        let mut known = self.known();
        while let Some((since, lease, mark)) = known.marks.pop_front() {
            if lease != current_lease {
                continue;
            }
            if since.elapsed() >= MARK_LASTS {
                return Some(mark);
            }
            known.marks.push_front((since, lease, mark));
            break;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_attempts_are_refused_and_forgotten_in_order() {
        let attempts = Attempts::default();
        let first = AttemptId::new();
        attempts.refuse(first);
        assert!(attempts.check(first).is_err());
        for _ in 0..REMEMBERED {
            attempts.refuse(AttemptId::new());
        }
        assert!(attempts.check(first).is_ok());
        assert_eq!(attempts.known().refused.len(), REMEMBERED);
    }

    #[test]
    fn marks_of_past_leases_are_forgotten_and_young_ones_stay() {
        let attempts = Attempts::default();
        attempts.marked(1, b"a".to_vec());
        attempts.marked(2, b"b".to_vec());
        assert_eq!(attempts.old_mark(2), None);
        assert_eq!(attempts.known().marks.len(), 1);
    }

    #[test]
    fn doubt_lasts_until_it_is_settled() {
        let (attempts, id) = (Attempts::default(), AttemptId::new());
        attempts.sending(id, 7);
        assert_eq!(attempts.doubt(id), Some(7));
        attempts.settled(id);
        assert_eq!(attempts.doubt(id), None);
    }
}
