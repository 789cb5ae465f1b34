//! What is under way, and who waits to go together.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::known::{KnownLock, KnownLocks};
use crate::error::Trouble;

/// Requests under way at a time, each alone; up to here nobody waits for another.
pub(super) const AT_ONCE: usize = 8;
/// The same while there is a crowd, trips of many included. Fewer and larger ones cost less.
const IN_A_CROWD: usize = 2;
/// The server does nothing else during a trip: this is a few hundred microseconds.
pub(super) const LARGEST: usize = 64;
/// As many that do not fit are passed over for those behind them.
const PASSED_OVER: usize = 256;

#[derive(Debug)]
pub(super) struct BatchState {
    /// Requests that went alone and trips of many.
    pub(super) under_way: usize,
    /// The trips of many among them.
    pub(super) trips: usize,
    /// Not empty only while something is under way: whoever ends takes it along, unless there are trips enough.
    waiting: VecDeque<BatchItem>,
    /// The locks that are to be taken by one of those who wait, with no release behind it; and the number of that one.
    wanted: HashMap<u64, u64>,
    /// How many have waited so far.
    entered: u64,
    /// When something began or ended last.
    pub(super) moved: Option<Instant>,
    /// Raised when what is under way is given up: a runtime that nobody drives any more has it, and may have it for ever.
    pub(super) age: u64,
    known: KnownLocks,
}

/// One request that goes with others.
#[derive(Debug)]
pub(crate) struct BatchItem {
    pub(super) key: String,
    pub(super) text: Vec<u8>,
    /// For a lock to take: the time to live of its key.
    pub(super) lasts: Option<u64>,
    /// What is known of the lock, as far as it has been looked up.
    pub(super) mark: KnownLock,
    /// Which of those who have waited it is.
    number: u64,
    pub(super) tell: oneshot::Sender<Result<BatchOutcome, Trouble>>,
}

impl BatchItem {
    pub(super) fn new(
        key: String,
        text: Vec<u8>,
        lasts: Option<u64>,
        tell: oneshot::Sender<Result<BatchOutcome, Trouble>>,
    ) -> Self {
        Self {
            key,
            text,
            lasts,
            mark: KnownLock::default(),
            number: 0,
            tell,
        }
    }

    /// Whether it is to take a lock whose key may not exist, so that its other keys must be looked at.
    pub(super) fn is_strange(&self) -> bool {
        self.lasts.is_some() && !self.mark.known
    }
}

/// What the server said to one of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    Taken(u64),
    Freed,
    /// Nothing was done: it must go alone.
    NeedsFullScript,
}

impl BatchState {
    /// `memory`: how long a lock that was taken is known.
    pub(super) fn new(memory: Duration) -> Self {
        Self {
            under_way: 0,
            trips: 0,
            waiting: VecDeque::new(),
            wanted: HashMap::new(),
            entered: 0,
            moved: None,
            age: 0,
            known: KnownLocks::new(memory),
        }
    }

    /// Locks that were taken just now.
    pub(super) fn note(&mut self, marks: impl Iterator<Item = KnownLock>) {
        let now = Instant::now();
        for mark in marks {
            self.known.note(mark, now);
        }
    }

    pub(super) fn at_once(&self) -> usize {
        if self.trips == 0 { AT_ONCE } else { IN_A_CROWD }
    }

    /// Whether nothing has begun or ended for longer than any answer takes.
    pub(super) fn stands_still(&self, limit: Duration) -> bool {
        self.moved.is_some_and(|moved| moved.elapsed() > 2 * limit)
    }

    pub(super) fn trip_ended(&mut self) {
        self.trips = self.trips.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(1);
    }

    pub(super) fn waits(&self) -> usize {
        self.waiting.len()
    }

    /// Lets it wait; `false` when it is to go alone, at once.
    ///
    /// That is when somebody waits already who wants the same lock: of all of them one at most finds it simply free. The others were in vain here,
    /// and each a trip later than the one before, since a lock goes once in a trip.
    pub(super) fn wait(&mut self, mut wish: BatchItem) -> bool {
        let hash = self.known.hash(&wish.key);
        wish.mark.hash = hash;
        self.entered += 1;
        wish.number = self.entered;
        if wish.lasts.is_none() {
            self.wanted.remove(&hash);
        } else {
            match self.wanted.entry(hash) {
                Entry::Occupied(_) => return false,
                Entry::Vacant(first) => _ = first.insert(wish.number),
            }
        }
        self.waiting.push_back(wish);
        true
    }

    /// Takes all who wait.
    pub(super) fn leave_nobody(&mut self) -> VecDeque<BatchItem> {
        self.wanted.clear();
        std::mem::take(&mut self.waiting)
    }

    /// What goes in the next trip: the first, and all that fit to it. A lock goes once in a trip, so that the script need not remember what it
    /// has changed; which of two requests for it goes first stays as it was.
    pub(super) fn next(&mut self) -> Vec<BatchItem> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut now = Vec::with_capacity(waiting.len().min(LARGEST));
        let mut later = VecDeque::new();
        // Those that stay behind count too: what comes after one for the same lock must not overtake it.
        let mut locks = Vec::with_capacity(waiting.len().min(LARGEST));
        let mut lasts: Option<u64> = None;
        let moment = Instant::now();
        while now.len() < LARGEST && later.len() < PASSED_OVER {
            let Some(mut wish) = waiting.pop_front() else {
                break;
            };
            if wish.tell.is_closed() {
                self.waits_no_more(&wish);
                continue;
            }
            let fits = match (lasts, wish.lasts) {
                (Some(all), Some(one)) => all == one,
                _ => true,
            };
            wish.mark = self.known.look(wish.mark.hash, moment);
            let is_first = !locks.contains(&wish.mark.hash);
            locks.push(wish.mark.hash);
            if fits && is_first {
                lasts = lasts.or(wish.lasts);
                self.waits_no_more(&wish);
                now.push(wish);
            } else {
                later.push_back(wish);
            }
        }
        later.append(&mut waiting);
        self.waiting = later;
        now
    }

    fn waits_no_more(&mut self, wish: &BatchItem) {
        if self.wanted.get(&wish.mark.hash) == Some(&wish.number) {
            self.wanted.remove(&wish.mark.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desk() -> BatchState {
        BatchState::new(Duration::from_secs(300))
    }

    fn wish(
        key: &str,
        lasts: Option<u64>,
    ) -> (BatchItem, oneshot::Receiver<Result<BatchOutcome, Trouble>>) {
        let (tell, told) = oneshot::channel();
        let wish = BatchItem::new(key.to_owned(), Vec::new(), lasts, tell);
        (wish, told)
    }

    #[test]
    fn what_fits_goes_together_and_who_left_stays_behind() {
        let mut desk = desk();
        let mut listeners = Vec::new();
        for (key, lasts) in [
            ("a", None),
            ("b", Some(1)),
            ("left", Some(1)),
            ("c", Some(2)),
            ("d", None),
            ("e", Some(1)),
        ] {
            let (wish, told) = wish(key, lasts);
            assert!(desk.wait(wish));
            if key != "left" {
                listeners.push(told);
            }
        }
        let keys =
            |wishes: Vec<BatchItem>| wishes.into_iter().map(|wish| wish.key).collect::<Vec<_>>();
        assert_eq!(keys(desk.next()), ["a", "b", "d", "e"]);
        assert_eq!(keys(desk.next()), ["c"]);
        assert!(desk.next().is_empty());
    }

    #[test]
    fn a_lock_goes_once_in_a_trip_and_its_requests_keep_their_order() {
        let mut desk = desk();
        let mut listeners = Vec::new();
        for (key, lasts) in [("a", None), ("a", Some(1)), ("b", None), ("a", None)] {
            let (wish, told) = wish(key, lasts);
            assert!(desk.wait(wish));
            listeners.push(told);
        }
        let mut next = || {
            let wishes = desk.next().into_iter();
            wishes
                .map(|wish| (wish.key, wish.lasts))
                .collect::<Vec<_>>()
        };
        assert_eq!(next(), [("a".to_owned(), None), ("b".to_owned(), None)]);
        assert_eq!(next(), [("a".to_owned(), Some(1))]);
        assert_eq!(next(), [("a".to_owned(), None)]);
        assert!(next().is_empty());
    }

    #[test]
    fn a_trip_has_its_limit_and_keeps_the_order() {
        let mut desk = desk();
        let mut listeners = Vec::new();
        for n in 0..=LARGEST {
            let (wish, told) = wish(&n.to_string(), None);
            assert!(desk.wait(wish));
            listeners.push(told);
        }
        assert_eq!(desk.next().len(), LARGEST);
        assert_eq!(desk.next()[0].key, LARGEST.to_string());
    }

    #[test]
    fn of_those_who_want_the_same_lock_one_waits_with_others() {
        let mut desk = desk();
        let mut listeners = Vec::new();
        let mut waits = |desk: &mut BatchState, lasts| {
            let (wish, told) = wish("a", lasts);
            listeners.push(told);
            desk.wait(wish)
        };
        assert!(waits(&mut desk, Some(1)));
        assert!(!waits(&mut desk, Some(1)));
        // Behind a release it may be free again.
        assert!(waits(&mut desk, None));
        assert!(waits(&mut desk, Some(1)));
        assert!(!waits(&mut desk, Some(1)));
        // The first goes, and the last still waits.
        assert_eq!(desk.next().len(), 1);
        assert!(!waits(&mut desk, Some(1)));
        assert_eq!(desk.next().len(), 1);
        assert!(!waits(&mut desk, Some(1)));
        assert_eq!(desk.next().len(), 1);
        assert!(waits(&mut desk, Some(1)));
        // Nor does one stand in the way whose future was dropped.
        let (dropped, told) = wish("b", Some(1));
        drop(told);
        assert!(desk.wait(dropped));
        assert_eq!(desk.next().len(), 1);
        assert_eq!((desk.waits(), desk.wanted.len()), (0, 0));
    }
}
