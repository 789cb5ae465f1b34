//! What this client knows about its own attempts: the key of each, which may still have a request under way, and which were given up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::{AttemptId, ErrorKind, Name, Request};

use crate::error::Trouble;
use crate::key::LockKeys;
use crate::slots::Slots;

/// How many abandoned attempts are remembered here, and how many locks with a queue. Only this client sends requests of its attempts.
const REMEMBERED: usize = 4096;
/// A request that arrives later than this after its attempt was abandoned is beyond belief; its mark may go.
const MARK_LASTS: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The attempts of which something is in the store, or may come there.
    seats: HashMap<AttemptId, Seat>,
    slots: Slots,
    /// Keys that a late delete could meet. Their slots stay taken as long as their lease lives.
    retired: Vec<(Instant, Seat)>,
    /// The locks that others wanted too when we asked last. Only a hint.
    wanted: HashSet<Name>,
    refused: HashSet<AttemptId>,
    refused_in_order: VecDeque<AttemptId>,
    marks: VecDeque<(Instant, i64, Vec<u8>)>,
}

/// Where an attempt's entry belongs.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) key: Vec<u8>,
    /// Whether this attempt had it before, so that the entry may be there already.
    pub(crate) again: bool,
}

/// The key of an attempt's entry. No other attempt has it until this one is over.
#[derive(Debug)]
struct Seat {
    name: Name,
    lease: i64,
    slot: u32,
    key: Vec<u8>,
    /// Whether a request of the attempt may still reach the store.
    in_doubt: bool,
    /// Whether a delete of the key may still reach the store: then nobody may have the key any more.
    deleting: bool,
}

impl Attempts {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key for the entry of an attempt: always the same one, also when it is sent again (C15). Refuses an attempt that was given up,
    /// without asking the store.
    pub(crate) fn seat(
        &self,
        request: &Request,
        lock: &LockKeys,
        lease: i64,
    ) -> Result<Seated, Trouble> {
        let attempt = request.attempt();
        let mut known = self.known();
        if known.refused.contains(&attempt) {
            return Err(abandoned());
        }
        if let Some(seat) = known.seats.get(&attempt) {
            if seat.lease != lease {
                // It may hang on a lease that is over for us; nobody may count on it.
                return Err(Trouble::session_ended().in_doubt());
            }
            return Ok(Seated {
                key: seat.key.clone(),
                again: true,
            });
        }
        let slot = known.slots.take(lease, request.name());
        let key = lock.entry(request.mode(), lease, slot);
        let seat = Seat {
            name: request.name().clone(),
            lease,
            slot,
            key: key.clone(),
            in_doubt: false,
            deleting: false,
        };
        known.seats.insert(attempt, seat);
        Ok(Seated { key, again: false })
    }

    /// A request that may put an entry goes out. It is in doubt until [`settled`](Self::settled), also if its future is dropped. Tells
    /// whether an earlier one is.
    pub(crate) fn sending(&self, attempt: AttemptId) -> bool {
        let mut known = self.known();
        let seat = known.seats.get_mut(&attempt);
        seat.is_some_and(|seat| std::mem::replace(&mut seat.in_doubt, true))
    }

    /// All requests of the attempt were answered.
    pub(crate) fn settled(&self, attempt: AttemptId) {
        if let Some(seat) = self.known().seats.get_mut(&attempt) {
            seat.in_doubt = false;
        }
    }

    /// The lease under which a late request of this attempt would put its entry.
    pub(crate) fn doubt(&self, attempt: AttemptId) -> Option<i64> {
        let known = self.known();
        let seat = known.seats.get(&attempt).filter(|seat| seat.in_doubt);
        seat.map(|seat| seat.lease)
    }

    /// The key that belongs to this attempt alone; `None` when it is over.
    pub(crate) fn key(&self, attempt: AttemptId) -> Option<Vec<u8>> {
        let known = self.known();
        known.seats.get(&attempt).map(|seat| seat.key.clone())
    }

    /// Notes whether others wanted the lock too.
    pub(crate) fn wanted(&self, name: &Name, by_others: bool) {
        let wanted = &mut self.known().wanted;
        if !by_others {
            wanted.remove(name);
            return;
        }
        if wanted.len() >= REMEMBERED {
            wanted.clear();
        }
        wanted.insert(name.clone());
    }

    pub(crate) fn is_wanted(&self, name: &Name) -> bool {
        self.known().wanted.contains(name)
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

    /// Whether the key may be deleted without a look at what is there: it is this attempt's, and no request of it is in doubt. Until
    /// [`deleted`](Self::deleted), also if the future of the delete is dropped, it counts as under way.
    pub(crate) fn delete(&self, attempt: AttemptId) -> bool {
        let mut known = self.known();
        let seat = known.seats.get_mut(&attempt);
        seat.is_some_and(|seat| !seat.in_doubt && !std::mem::replace(&mut seat.deleting, true))
    }

    /// The delete was answered, and was sent once.
    pub(crate) fn deleted(&self, attempt: AttemptId) {
        if let Some(seat) = self.known().seats.get_mut(&attempt) {
            seat.deleting = false;
        }
    }

    /// Nothing of the attempt is in the store, and nothing will come: its key is free for another, unless a late delete could meet that.
    pub(crate) fn over(&self, attempt: AttemptId) {
        let mut known = self.known();
        let Some(seat) = known.seats.remove(&attempt) else {
            return;
        };
        if seat.deleting {
            known.retire(seat);
        } else {
            known.slots.give_back(seat.lease, &seat.name, seat.slot);
        }
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

impl Known {
    /// Of other leases than this seat's, which have most likely ended, what was retired long ago is forgotten.
    fn retire(&mut self, seat: Seat) {
        let of_now = seat.lease;
        let old = |(since, seat): &mut (Instant, Seat)| {
            seat.lease != of_now && since.elapsed() >= MARK_LASTS
        };
        for (_, seat) in self.retired.extract_if(.., old) {
            self.slots.give_back(seat.lease, &seat.name, seat.slot);
        }
        self.retired.push((Instant::now(), seat));
    }
}

pub(crate) fn abandoned() -> Trouble {
    Trouble::new(
        ErrorKind::Store,
        "this attempt was abandoned: make a new one",
    )
    .unsent()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dlock_core::{Mode, SystemClock};

    use super::*;
    use crate::key::Keys;

    fn request() -> Request {
        let name = Name::new("a").expect("a name");
        Request::new(name, Mode::Exclusive, Arc::new(SystemClock))
    }

    fn seat(attempts: &Attempts, request: &Request, lease: i64) -> Result<Vec<u8>, Trouble> {
        let lock = Keys::new("p").lock(request.name());
        attempts
            .seat(request, &lock, lease)
            .map(|seated| seated.key)
    }

    #[test]
    fn abandoned_attempts_are_refused_and_forgotten_in_order() {
        let attempts = Attempts::default();
        let first = request();
        attempts.refuse(first.attempt());
        assert!(seat(&attempts, &first, 1).is_err());
        for _ in 0..REMEMBERED {
            attempts.refuse(AttemptId::new());
        }
        assert!(seat(&attempts, &first, 1).is_ok());
        assert_eq!(attempts.known().refused.len(), REMEMBERED);
    }

    #[test]
    fn locks_that_others_want_are_remembered_and_not_without_end() {
        let attempts = Attempts::default();
        let name = |n: usize| Name::new(n.to_string()).expect("a name");
        attempts.wanted(&name(0), true);
        assert!(attempts.is_wanted(&name(0)) && !attempts.is_wanted(&name(1)));
        attempts.wanted(&name(0), false);
        assert!(!attempts.is_wanted(&name(0)));
        for n in 0..=REMEMBERED {
            attempts.wanted(&name(n), true);
        }
        assert!(attempts.known().wanted.len() <= REMEMBERED);
        assert!(attempts.is_wanted(&name(REMEMBERED)));
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
        let (attempts, request) = (Attempts::default(), request());
        let id = request.attempt();
        seat(&attempts, &request, 7).expect("a seat");
        assert!(!attempts.sending(id));
        assert!(attempts.sending(id));
        assert_eq!(attempts.doubt(id), Some(7));
        attempts.settled(id);
        assert_eq!(attempts.doubt(id), None);
    }

    #[test]
    fn a_key_is_used_again_when_its_attempt_is_over_and_not_before() {
        let attempts = Attempts::default();
        let (first, second, third) = (request(), request(), request());
        let key = seat(&attempts, &first, 7).expect("a seat");
        assert_eq!(seat(&attempts, &first, 7).expect("the same"), key);
        let other = seat(&attempts, &second, 7).expect("a seat");
        assert_ne!(other, key);
        attempts.over(first.attempt());
        assert_eq!(attempts.key(first.attempt()), None);
        assert_eq!(seat(&attempts, &third, 7).expect("a seat"), key);
        // A word from the past changes nothing.
        attempts.over(first.attempt());
        assert_eq!(attempts.key(third.attempt()), Some(key));
        attempts.over(second.attempt());
        attempts.over(third.attempt());
        assert!(attempts.known().seats.is_empty() && attempts.known().slots.is_empty());
    }

    #[test]
    fn a_key_that_a_late_delete_could_meet_is_given_to_nobody() {
        let attempts = Attempts::default();
        let (first, second, third) = (request(), request(), request());
        let key = seat(&attempts, &first, 7).expect("a seat");
        attempts.sending(first.attempt());
        assert!(!attempts.delete(first.attempt()), "it is in doubt");
        attempts.settled(first.attempt());
        assert!(attempts.delete(first.attempt()));
        assert!(!attempts.delete(first.attempt()), "one may be under way");
        attempts.over(first.attempt());
        assert!(!attempts.delete(first.attempt()), "it is over");
        let other = seat(&attempts, &second, 7).expect("a seat");
        assert_ne!(other, key);
        // Answered, so the next one may have it.
        assert!(attempts.delete(second.attempt()));
        attempts.deleted(second.attempt());
        attempts.over(second.attempt());
        assert_eq!(seat(&attempts, &third, 7).expect("a seat"), other);
        attempts.over(third.attempt());
    }

    #[test]
    fn a_thread_that_comes_late_with_an_old_lease_frees_no_key_of_the_new_one() {
        let attempts = Attempts::default();
        let (holds, retired, stale, next) = (request(), request(), request(), request());
        let held = seat(&attempts, &holds, 8).expect("a seat");
        let given_up = seat(&attempts, &retired, 8).expect("a seat");
        assert!(attempts.delete(retired.attempt()));
        attempts.over(retired.attempt());
        // It asked for a session before the new one was there.
        seat(&attempts, &stale, 7).expect("a seat");
        let next = seat(&attempts, &next, 8).expect("a seat");
        assert!(next != held && next != given_up);
    }

    #[test]
    fn an_attempt_never_has_entries_under_two_leases() {
        let (attempts, request) = (Attempts::default(), request());
        seat(&attempts, &request, 7).expect("a seat");
        let trouble = seat(&attempts, &request, 8).expect_err("another lease");
        assert!(trouble.sent, "the first entry may be there");
        attempts.over(request.attempt());
        assert!(seat(&attempts, &request, 8).is_ok());
    }
}
