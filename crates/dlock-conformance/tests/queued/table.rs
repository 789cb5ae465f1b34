//! The server of the store with a queue: holders and waiters by name, with one thing wrong.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{Clock, Mode, Moment, Name, SystemClock, kit};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::flaws::Flaw;

/// Microseconds.
pub(crate) type Time = i64;

pub(crate) const TURNS: u64 = 64;
pub(crate) const TOMBSTONE: Time = 60_000_000;

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) flaw: Flaw,
    started: Instant,
    /// By how many seconds the store's time of day is wrong.
    pub(crate) ahead: i64,
    pub(crate) rows: BTreeMap<String, Row>,
    pub(crate) tombs: HashMap<AttemptId, (String, Time)>,
    pub(crate) counter: u64,
    /// For the flaws that keep a number with something else.
    pub(crate) numbers: HashMap<String, u64>,
    pub(crate) seen: HashSet<String>,
    /// Names that were given back.
    pub(crate) used: Vec<Name>,
    pub(crate) left: u64,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: Name,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: VecDeque<Waiter>,
}

#[derive(Debug, Clone)]
pub(crate) struct Holder {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    pub(crate) token: u64,
    pub(crate) label: String,
    pub(crate) lease: Duration,
    pub(crate) ends: Time,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    pub(crate) label: String,
    pub(crate) client: usize,
    pub(crate) lease: Duration,
    pub(crate) since: Time,
    pub(crate) word: oneshot::Sender<Grant>,
}

impl Waiter {
    /// Whether nobody listens any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.word.is_closed()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) from: Moment,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Held(Grant),
    Busy,
    Queued(oneshot::Receiver<Grant>),
}

/// How the attempt is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Try,
    Queue,
    /// After a look that found the lock free.
    Unchecked,
}

pub(crate) fn micros(time: Duration) -> Time {
    Time::try_from(time.as_micros()).unwrap_or(Time::MAX / 4)
}

impl Table {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self {
            flaw,
            started: Instant::now(),
            ahead: 0,
            rows: BTreeMap::new(),
            tombs: HashMap::new(),
            counter: 0,
            numbers: HashMap::new(),
            seen: HashSet::new(),
            used: Vec::new(),
            left: 0,
        }
    }

    fn right_time(&self) -> Time {
        micros(self.started.elapsed())
    }

    pub(crate) fn now(&self) -> Time {
        match self.flaw {
            Flaw::ClientClock => self.right_time() + self.ahead * 1_000_000,
            _ => self.right_time(),
        }
    }

    pub(crate) fn end(&self, lease: Duration) -> Time {
        let lease = micros(lease);
        match self.flaw {
            Flaw::ClientClock => self.right_time() + lease,
            Flaw::LeaseInWholeSeconds => self.now() + (lease / 1_000_000).max(1) * 1_000_000,
            Flaw::LeaseIsFixed => self.now() + 30_000_000,
            Flaw::LeaseNeverUnderAMinute => self.now() + lease.max(60_000_000),
            Flaw::ExpiryInWholeSeconds => (self.now() + lease) / 1_000_000 * 1_000_000,
            Flaw::EndsEarly => self.now() + lease * 9 / 10,
            _ => self.now() + lease,
        }
    }

    /// Removes what has ended, and lets in who waits for it.
    pub(crate) fn sweep(&mut self, key: &str) {
        let (now, flaw) = (self.now(), self.flaw);
        let Some(row) = self.rows.get_mut(key) else {
            return;
        };
        let has_ended = |holder: &Holder| {
            let counted =
                flaw == Flaw::DeadPermitsCount && matches!(holder.mode, Mode::Permit { .. });
            holder.ends <= now && !counted
        };
        let ended: Vec<Holder> = row
            .holders
            .iter()
            .filter(|h| has_ended(h))
            .cloned()
            .collect();
        row.holders.retain(|holder| !has_ended(holder));
        if let Some(last) = ended.last() {
            self.numbers.insert(format!("ended {key}"), last.token);
            if flaw == Flaw::ReadersEndTogether && last.mode == Mode::Shared {
                row.holders.retain(|holder| holder.mode != Mode::Shared);
            }
        }
        if flaw == Flaw::PlaceEnds
            && row
                .waiters
                .front()
                .is_some_and(|waiter| waiter.since + 1_000_000 < now)
            && let Some(mut waiter) = row.waiters.pop_front()
        {
            waiter.since = now;
            row.waiters.push_back(waiter);
        }
        match flaw {
            Flaw::EndWakesNobody => {}
            // Who waits looks only now and then.
            Flaw::TakeOverPassesTheQueue => self.forget_if_unused(key),
            _ => self.settle(key),
        }
    }

    /// Whether nobody holds the lock because a lease is over, and those who wait have not seen it yet.
    pub(crate) fn is_over(&self, key: &str) -> bool {
        self.rows
            .get(key)
            .is_some_and(|row| row.holders.is_empty() && !row.waiters.is_empty())
    }

    /// Puts one who waits behind all others.
    pub(crate) fn goes_to_the_end(&mut self, key: &str, attempt: AttemptId) {
        let Some(row) = self.rows.get_mut(key) else {
            return;
        };
        let is_it = |waiter: &Waiter| waiter.attempt == attempt;
        if let Some(waiter) = row
            .waiters
            .iter()
            .position(is_it)
            .and_then(|at| row.waiters.remove(at))
        {
            row.waiters.push_back(waiter);
        }
    }

    pub(crate) fn next_token(&mut self, key: &str, client: usize, waited: bool) -> u64 {
        self.counter += TURNS;
        let counter = self.counter;
        let mut count = |key: String, step: u64| {
            let number = self.numbers.entry(key).or_default();
            *number += step;
            *number
        };
        let token = match self.flaw {
            Flaw::TokenGoesWithTheRow => count(format!("row {key}"), TURNS),
            Flaw::TokenOfTheClient => count(format!("client {client}"), TURNS),
            Flaw::TokenIgnoresTurns => count("turn".into(), 1),
            Flaw::TokenIsATime => u64::try_from(self.right_time() / 1000).unwrap_or(0),
            Flaw::TokenWraps => counter % (256 * TURNS),
            Flaw::TokenByText => {
                let highest = self.numbers.entry("text".into()).or_default();
                let next = *highest + TURNS;
                if next.to_string() > highest.to_string() {
                    *highest = next;
                }
                next
            }
            _ => counter,
        };
        let before = format!("last {key}");
        let token = match self.flaw {
            Flaw::TokenOfTheEnded => self
                .numbers
                .remove(&format!("ended {key}"))
                .unwrap_or(token),
            Flaw::TokenOfThePredecessor if waited => *self.numbers.get(&before).unwrap_or(&token),
            _ => token,
        };
        self.numbers.insert(before, token);
        token
    }

    pub(crate) fn admits(&self, holders: &[Holder], mode: Mode) -> bool {
        let mut modes = holders.iter().map(|holder| holder.mode);
        let is_permit = |mode| matches!(mode, Mode::Permit { .. });
        match (self.flaw, mode) {
            (Flaw::ReaderBesideWriter, Mode::Shared) => true,
            (Flaw::WriterBesideReaders, Mode::Exclusive) => modes.all(|mode| mode == Mode::Shared),
            (Flaw::ReadersExclude, Mode::Shared) => holders.is_empty(),
            (Flaw::OnePermitTooMany, Mode::Permit { limit }) => {
                modes.clone().all(is_permit) && holders.len() <= limit as usize
            }
            (Flaw::OnePermitTooFew, Mode::Permit { limit }) => {
                modes.clone().all(is_permit) && holders.len() + 1 < (limit as usize).max(2)
            }
            (Flaw::OtherLimitIsTaken, Mode::Permit { limit }) => {
                modes.clone().all(is_permit) && holders.len() < limit as usize
            }
            (Flaw::PermitsBesideExclusive, Mode::Permit { .. }) => {
                kit::admits(modes.filter(|mode| is_permit(*mode)), mode)
            }
            (Flaw::PermitsBesideExclusive, mode) => {
                kit::admits(modes.filter(|mode| !is_permit(*mode)), mode)
            }
            _ => kit::admits(modes, mode),
        }
    }

    /// Which waiter is next.
    fn next(&self, key: &str) -> Option<usize> {
        let row = self.rows.get(key)?;
        let fits = |waiter: &Waiter| self.admits(&row.holders, waiter.mode);
        let at = match self.flaw {
            Flaw::LastComeFirst => row.waiters.len().checked_sub(1)?,
            Flaw::WakesAllToRace => (self.counter / TURNS) as usize * 7 % row.waiters.len().max(1),
            Flaw::ReadersBarge => row.waiters.iter().position(fits)?,
            _ => 0,
        };
        let waiter = row.waiters.get(at)?;
        let waits_for_all = self.flaw == Flaw::PermitsWakeWhenAllAreFree && !row.holders.is_empty();
        (self.is_dead(waiter) || fits(waiter) && !waits_for_all).then_some(at)
    }

    /// Whether the waiter is gone, and the store knows.
    fn is_dead(&self, waiter: &Waiter) -> bool {
        let stays = [
            Flaw::AbandonLeavesThePlace,
            Flaw::TryLeavesAPlace,
            Flaw::BusyLeavesThePlace,
            Flaw::RepeatQueuesTwice,
        ];
        waiter.word.is_closed() && !stays.contains(&self.flaw)
    }

    /// Lets in the waiters whose turn it is, and forgets a name that nobody uses.
    pub(crate) fn settle(&mut self, key: &str) {
        let flaw = self.flaw;
        while let Some(at) = self.next(key) {
            let Some(waiter) = self
                .rows
                .get_mut(key)
                .and_then(|row| row.waiters.remove(at))
            else {
                return;
            };
            if self.is_dead(&waiter) {
                continue;
            }
            let token = self.next_token(key, waiter.client, true);
            let lease = match flaw {
                Flaw::LeaseOfThePredecessor => {
                    let before = self.numbers.get(&format!("lease {key}"));
                    before.map_or(waiter.lease, |lease| Duration::from_micros(*lease))
                }
                _ => waiter.lease,
            };
            let ends = match flaw {
                Flaw::LeaseFromQueueing => waiter.since + micros(lease),
                _ => self.end(lease),
            };
            let _ = waiter.word.send(Grant {
                token,
                from: SystemClock.now(),
            });
            if let Some(row) = self.rows.get_mut(key) {
                row.holders.push(Holder {
                    attempt: waiter.attempt,
                    mode: waiter.mode,
                    token,
                    label: waiter.label,
                    lease,
                    ends,
                });
            }
            if flaw == Flaw::OneReaderIsWoken {
                break;
            }
        }
        self.forget_if_unused(key);
    }

    fn forget_if_unused(&mut self, key: &str) {
        let is_used = |row: &Row| !row.holders.is_empty() || !row.waiters.is_empty();
        if self.rows.get(key).is_some_and(|row| !is_used(row)) {
            self.used.extend(self.rows.remove(key).map(|row| row.name));
            self.numbers.remove(&format!("row {key}"));
        }
    }

    /// Removes a hold and lets in the next; whether it was there.
    pub(crate) fn drop_holder(
        &mut self,
        key: &str,
        is_meant: impl Fn(&Holder) -> bool,
        wakes: bool,
    ) -> bool {
        let Some(row) = self.rows.get_mut(key) else {
            return false;
        };
        let before = row.holders.len();
        if let Some(holder) = row.holders.iter().find(|holder| is_meant(holder)) {
            let lease = u64::try_from(holder.lease.as_micros()).unwrap_or(0);
            self.numbers.insert(format!("lease {key}"), lease);
        }
        row.holders.retain(|holder| !is_meant(holder));
        let found = row.holders.len() < before;
        if wakes {
            self.settle(key);
        } else {
            self.forget_if_unused(key);
        }
        found
    }
}
