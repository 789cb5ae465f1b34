//! What is under way, and who waits to go together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::Trouble;

/// Requests under way at a time, each alone; up to here nobody waits for another.
pub(super) const AT_ONCE: usize = 8;
/// The same while there is a crowd, trips of many included. Fewer and larger ones cost less.
const IN_A_CROWD: usize = 2;
/// The server does nothing else during a trip: this is a few hundred microseconds.
pub(super) const LARGEST: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Desk {
    /// Requests that went alone and trips of many.
    pub(super) under_way: usize,
    /// The trips of many among them.
    pub(super) trips: usize,
    /// Not empty only while something is under way: whoever ends takes it along, unless there are trips enough.
    pub(super) waiting: VecDeque<Wish>,
    /// When something began or ended last.
    pub(super) moved: Option<Instant>,
    /// Raised when what is under way is given up: a runtime that nobody drives any more has it, and may have it for ever.
    pub(super) age: u64,
}

/// One request that goes with others.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(super) key: String,
    pub(super) text: Vec<u8>,
    /// For a lock to take: the time to live of its key.
    pub(super) lasts: Option<String>,
    pub(super) tell: oneshot::Sender<Result<Said, Trouble>>,
}

/// What the server said to one of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Taken(u64),
    Freed,
    /// Nothing was done: it must go alone.
    NotSoEasy,
}

impl Desk {
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

    /// What goes in the next trip: the first, and all that fit to it.
    pub(super) fn next(&mut self) -> Vec<Wish> {
        let mut now = Vec::new();
        let mut later = VecDeque::new();
        let mut lasts: Option<String> = None;
        for wish in self.waiting.drain(..) {
            if wish.tell.is_closed() {
                continue;
            }
            let fits = match (&lasts, &wish.lasts) {
                (Some(all), Some(one)) => all == one,
                _ => true,
            };
            if fits && now.len() < LARGEST {
                if lasts.is_none() {
                    lasts.clone_from(&wish.lasts);
                }
                now.push(wish);
            } else {
                later.push_back(wish);
            }
        }
        self.waiting = later;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(key: &str, lasts: Option<&str>) -> (Wish, oneshot::Receiver<Result<Said, Trouble>>) {
        let (tell, told) = oneshot::channel();
        let wish = Wish {
            key: key.to_owned(),
            text: Vec::new(),
            lasts: lasts.map(str::to_owned),
            tell,
        };
        (wish, told)
    }

    #[test]
    fn what_fits_goes_together_and_who_left_stays_behind() {
        let mut desk = Desk::default();
        let mut listeners = Vec::new();
        for (key, lasts) in [
            ("a", None),
            ("b", Some("1")),
            ("left", Some("1")),
            ("c", Some("2")),
            ("d", None),
            ("e", Some("1")),
        ] {
            let (wish, told) = wish(key, lasts);
            desk.waiting.push_back(wish);
            if key != "left" {
                listeners.push(told);
            }
        }
        let keys = |wishes: Vec<Wish>| wishes.into_iter().map(|wish| wish.key).collect::<Vec<_>>();
        assert_eq!(keys(desk.next()), ["a", "b", "d", "e"]);
        assert_eq!(keys(desk.next()), ["c"]);
        assert!(desk.next().is_empty());
    }

    #[test]
    fn a_trip_has_its_limit_and_keeps_the_order() {
        let mut desk = Desk::default();
        let mut listeners = Vec::new();
        for n in 0..=LARGEST {
            let (wish, told) = wish(&n.to_string(), None);
            desk.waiting.push_back(wish);
            listeners.push(told);
        }
        assert_eq!(desk.next().len(), LARGEST);
        assert_eq!(desk.next()[0].key, LARGEST.to_string());
    }
}
