//! What this client knows about its own attempts: the key of each, which may still have a request under way, and which were given up.
//!
//! An attempt has a seat from before its first request until nothing of it is in the store and nothing can come:
//!
//! ```text
//!            seat             sending
//!   (none) ───────► Settled ◄─────────► Asking          Asking: a request may be under way that puts the entry
//!     ▲               │ ▲     settled      │
//!     │ over          │ │                  │ over: the mark was committed that makes it fail, or the lease is gone
//!     ├───────────────┤ │                  │
//!     ├───────────────┼─┼──────────────────┘
//!     │        delete │ │ deleted
//!     │               ▼ │
//!     │            Deleting                             Deleting: a delete of the key may be under way that compares nothing
//!     │               │ over
//!     │               ▼
//!     └──────────  retired                              nobody gets the key until the delete can come no more
//!      late limit
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{Name, kit};

use crate::error::Trouble;
use crate::key::LockKeys;
use crate::slots::Slots;

/// A key is not used again before a delete of it could have come for so long, whatever the setting says: a late entry is only in others' way, but a late delete would
/// take away the hold that has the key by then.
const LATE_DELETES: Duration = Duration::from_secs(600);

/// How many locks with a queue are remembered.
const REMEMBERED: usize = 4096;

#[derive(Debug)]
pub(crate) struct Attempts {
    known: Mutex<Known>,
    /// No request arrives later than this after its attempt was abandoned: no connection, proxy or balancer holds one back for so long. Its
    /// mark is of no use after that, and is deleted.
    late_limit: Duration,
    /// The same for a delete, after which its key is used again.
    late_delete_limit: Duration,
}

#[derive(Debug, Default)]
struct Known {
    /// The attempts of which something is in the store, or may come there.
    seats: HashMap<AttemptId, Seat>,
    slots: Slots,
    /// Keys that a late delete could meet, and since when, the oldest first. Their slots stay taken so long.
    retired: VecDeque<(Instant, Seat)>,
    /// The locks that others wanted too when we asked last. Only a hint.
    wanted: HashSet<Name>,
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
    state: UnderWay,
    /// Whether the next who waits for a permit has not been told yet that it is the first.
    owes_ring: bool,
}

/// What may still be under way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnderWay {
    /// Nothing: every request was answered.
    Settled,
    /// A request that puts the entry.
    Asking,
    /// A delete of the key, whatever is there.
    Deleting,
}

impl Attempts {
    pub(crate) fn new(late_limit: Duration) -> Self {
        Self {
            known: Mutex::default(),
            late_limit,
            late_delete_limit: late_limit.max(LATE_DELETES),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key for the entry of an attempt: always the same one, also when it is sent again ([C15](dlock_core::contract#c15)). Refuses an attempt
    /// that was given up, without asking the store.
    pub(crate) fn seat(
        &self,
        request: &Request,
        lock: &LockKeys,
        lease: i64,
    ) -> Result<Seated, Trouble> {
        let attempt = request.attempt();
        let mut known = self.known();
        kit::refuse_abandoned(attempt)?;
        if let Some(seat) = known.seats.get(&attempt) {
            if seat.state == UnderWay::Deleting {
                return Err(kit::abandoned().into());
            }
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
            state: UnderWay::Settled,
            owes_ring: false,
        };
        known.seats.insert(attempt, seat);
        Ok(Seated { key, again: false })
    }

    /// A request that may put an entry goes out. It is in doubt until [`settled`](Self::settled), also if its future is dropped. Tells
    /// whether an earlier one is.
    pub(crate) fn sending(&self, attempt: AttemptId) -> bool {
        let mut known = self.known();
        let seat = known.seats.get_mut(&attempt);
        seat.is_some_and(|seat| {
            std::mem::replace(&mut seat.state, UnderWay::Asking) == UnderWay::Asking
        })
    }

    /// All requests of the attempt were answered.
    pub(crate) fn settled(&self, attempt: AttemptId) {
        if let Some(seat) = self.known().seats.get_mut(&attempt) {
            seat.state = UnderWay::Settled;
        }
    }

    /// The lease under which a late request of this attempt would put its entry.
    pub(crate) fn doubt(&self, attempt: AttemptId) -> Option<i64> {
        let known = self.known();
        let seat = known
            .seats
            .get(&attempt)
            .filter(|seat| seat.state == UnderWay::Asking);
        seat.map(|seat| seat.lease)
    }

    /// The key that belongs to this attempt alone; `None` when it is over.
    pub(crate) fn key(&self, attempt: AttemptId) -> Option<Vec<u8>> {
        let known = self.known();
        known.seats.get(&attempt).map(|seat| seat.key.clone())
    }

    /// How many entries of ours hang on a lease, or may.
    pub(crate) fn count(&self, lease: i64) -> usize {
        let known = self.known();
        let seats = known.seats.values().filter(|seat| seat.lease == lease);
        seats.count()
    }

    /// Those of these keys that no attempt of ours has.
    pub(crate) fn unknown(&self, lease: i64, keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let known = self.known();
        let seats = known.seats.values().filter(|seat| seat.lease == lease);
        let ours: HashSet<&[u8]> = seats.map(|seat| seat.key.as_slice()).collect();
        let mut keys = keys;
        keys.retain(|key| !ours.contains(key.as_slice()));
        keys
    }

    /// The next who waits for a permit must be told that this attempt holds.
    pub(crate) fn owe_ring(&self, attempt: AttemptId) {
        if let Some(seat) = self.known().seats.get_mut(&attempt) {
            seat.owes_ring = true;
        }
    }

    pub(crate) fn rung(&self, attempt: AttemptId) {
        if let Some(seat) = self.known().seats.get_mut(&attempt) {
            seat.owes_ring = false;
        }
    }

    pub(crate) fn owes_ring(&self, attempt: AttemptId) -> bool {
        let known = self.known();
        known.seats.get(&attempt).is_some_and(|seat| seat.owes_ring)
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

    /// Whether the key may be deleted without a look at what is there: it is this attempt's, and no request of it is in doubt. Until
    /// [`deleted`](Self::deleted), also if the future of the delete is dropped, it counts as under way.
    pub(crate) fn delete(&self, attempt: AttemptId) -> bool {
        let mut known = self.known();
        let seat = known.seats.get_mut(&attempt);
        let seat = seat.filter(|seat| seat.state == UnderWay::Settled);
        seat.map(|seat| seat.state = UnderWay::Deleting).is_some()
    }

    /// The delete was answered, and was sent once.
    pub(crate) fn deleted(&self, attempt: AttemptId) {
        if let Some(seat) = self.known().seats.get_mut(&attempt) {
            seat.state = UnderWay::Settled;
        }
    }

    /// Nothing of the attempt is in the store, and nothing will come: its key is free for another, unless a late delete could meet that.
    pub(crate) fn over(&self, attempt: AttemptId) {
        let mut known = self.known();
        let Some(seat) = known.seats.remove(&attempt) else {
            return;
        };
        if seat.state == UnderWay::Deleting {
            known.retire(seat, self.late_delete_limit);
        } else {
            known.slots.give_back(seat.lease, &seat.name, seat.slot);
        }
    }

    /// A mark was put under this lease.
    pub(crate) fn marked(&self, lease: i64, mark: Vec<u8>) {
        self.known().marks.push_back((Instant::now(), lease, mark));
    }

    /// Old marks under this lease, `most` of them: they can go. Those of other leases went or go with them.
    pub(crate) fn old_marks(&self, current_lease: i64, most: usize) -> Vec<Vec<u8>> {
        let mut known = self.known();
        known.marks.retain(|(_, lease, _)| *lease == current_lease);
        let old = known.marks.iter();
        let old = old.take_while(|(since, ..)| since.elapsed() >= self.late_limit);
        old.take(most).map(|(.., mark)| mark.clone()).collect()
    }

    /// These marks are gone.
    pub(crate) fn unmarked(&self, gone: &[Vec<u8>]) {
        self.known().marks.retain(|(.., mark)| !gone.contains(mark));
    }
}

impl Known {
    /// What was retired so long ago that its delete can come no more is given back: otherwise a client whose releases are cut off now and then, and whose lease
    /// lives on, would use more and more keys.
    fn retire(&mut self, seat: Seat, limit: Duration) {
        // The first is the oldest.
        while let Some((since, _)) = self.retired.front()
            && since.elapsed() >= limit
            && let Some((_, old)) = self.retired.pop_front()
        {
            self.slots.give_back(old.lease, &old.name, old.slot);
        }
        self.retired.push_back((Instant::now(), seat));
    }
}

#[cfg(test)]
mod tests;
