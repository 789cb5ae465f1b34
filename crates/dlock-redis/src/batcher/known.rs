//! Which locks a client has taken a moment ago: their keys exist, so whoever takes one again need not name its other keys.
//!
//! A guess. When it is wrong (the key was evicted, the server restarted) the script does nothing, and the request goes alone with all keys.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Of more locks than this some are forgotten early.
const PLACES: usize = 4096;

/// A table of fixed size: each place has room for the lock that came there last.
#[derive(Debug)]
pub(super) struct KnownLocks {
    /// Made when the first lock is noted: most clients never have a crowd.
    places: Vec<Option<(u64, Instant)>>,
    hasher: RandomState,
    memory: Duration,
}

/// What stands for a lock here.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownLock {
    pub(super) hash: u64,
    pub(super) known: bool,
}

impl KnownLocks {
    pub(super) fn new(memory: Duration) -> Self {
        Self {
            places: Vec::new(),
            hasher: RandomState::new(),
            memory,
        }
    }

    pub(super) fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(super) fn look(&self, hash: u64, now: Instant) -> KnownLock {
        let known = matches!(
            self.places.get(place(hash)),
            Some(Some((noted, when)))
                if *noted == hash && now.saturating_duration_since(*when) < self.memory
        );
        KnownLock { hash, known }
    }

    pub(super) fn note(&mut self, mark: KnownLock, now: Instant) {
        if self.places.is_empty() {
            self.places = vec![None; PLACES];
        }
        if let Some(place) = self.places.get_mut(place(mark.hash)) {
            *place = Some((mark.hash, now));
        }
    }
}

fn place(hash: u64) -> usize {
    (hash % PLACES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_known_for_a_while_after_it_was_taken() {
        let mut known = KnownLocks::new(Duration::from_secs(300));
        let start = Instant::now();
        let (a, b) = (known.hash("a"), known.hash("b"));
        let mark = known.look(a, start);
        assert!(!mark.known);
        known.note(mark, start);
        assert!(known.look(a, start + Duration::from_secs(299)).known);
        assert!(!known.look(a, start + Duration::from_secs(300)).known);
        assert!(!known.look(b, start).known);
    }

    #[test]
    fn where_counters_are_not_kept_no_lock_is_known() {
        let mut known = KnownLocks::new(Duration::ZERO);
        let now = Instant::now();
        let a = known.hash("a");
        let mark = known.look(a, now);
        known.note(mark, now);
        assert!(!known.look(a, now).known);
    }
}
