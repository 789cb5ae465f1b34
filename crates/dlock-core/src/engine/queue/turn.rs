//! The turn: one task of a client talks to the store about a name, or has the lock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Company, Heir, Hold, Line, Queue};
use crate::backend::Request;
use crate::lock::settings::ResolvedSettings;
use crate::sync::locked;
use crate::{Error, Moment, Name};

/// The right of this client's task to talk to the store about a name. Dropping it lets the next one go.
#[derive(Debug)]
pub(crate) struct Turn<H: Hold> {
    queue: Arc<Queue<H>>,
    name: Name,
    passed: u32,
    granted: bool,
}

impl<H: Hold> Turn<H> {
    pub(super) fn new(queue: Arc<Queue<H>>, name: Name, passed: u32) -> Self {
        Self {
            queue,
            name,
            passed,
            granted: false,
        }
    }

    /// How often it has gone from one local task to the next, since others last had a chance.
    pub(crate) fn passed(&self) -> u32 {
        self.passed
    }

    /// Others have had, or now get, their chance.
    pub(crate) fn counts_anew(&self) {
        self.change(|line| line.passed = 0);
    }

    /// Lets those who wait for their turn see whether the store has answered.
    pub(crate) fn asks(&self, request: &Arc<Request>, now: Moment) {
        self.change(|line| {
            line.asks = Arc::downgrade(request);
            line.evidence.asked(now);
        });
    }

    /// The lock was granted: those who wait know that it is held, and `try_lock` sees it without a trip.
    pub(crate) fn held_by(&mut self, hold: &Arc<H>, now: Moment) {
        self.granted = true;
        self.change(|line| {
            if line.company == Company::Alone {
                line.holder = Arc::downgrade(hold);
                // The request was answered, so nobody looks at it any more; a weak reference would keep its memory from being freed.
                line.asks = Weak::new();
            }
            line.evidence.busy(now);
        });
    }

    /// Takes the first who waits out of the line, if it can have the hold as it is.
    pub(crate) fn heir(&self, settings: &Arc<ResolvedSettings>, now: Moment) -> Option<Heir<H>> {
        let mut lines = locked(&self.queue.lines);
        let line = lines.get_mut(&self.name)?;
        let first = line.waiting.first_entry()?;
        let inherits = first.get().inherits.as_ref()?;
        if !Arc::ptr_eq(&inherits.settings, settings) {
            return None;
        }
        let heir = first.remove().inherits()?;
        line.passed = line.passed.saturating_add(1);
        line.evidence.busy(now);
        Some(heir)
    }

    /// The hold rests from now on, and whoever comes finds it. `false` when somebody waits already.
    pub(crate) fn rests(&self, hold: &Arc<H>) -> bool {
        let mut lines = locked(&self.queue.lines);
        let asks_past_it = self.queue.past.has_any(&self.name);
        match lines.get_mut(&self.name) {
            Some(line) if line.waiting.is_empty() && !asks_past_it => {
                line.resting = Arc::downgrade(hold);
                true
            }
            _ => false,
        }
    }

    /// The release of the hold is under way.
    pub(crate) fn gives_back(&self, now: Moment) {
        self.change(|line| {
            line.evidence.busy(now);
            line.evidence.asked(now);
        });
    }

    /// The store has said that others hold the lock.
    pub(crate) fn busy(&self, now: Moment) {
        self.change(|line| line.evidence.busy(now));
    }

    /// Whether what is known along this line says "busy" to one who waits since `arrived`.
    pub(crate) fn says_busy(&self, arrived: Moment, now: Moment, trip: Duration) -> bool {
        locked(&self.queue.lines)
            .get(&self.name)
            .is_some_and(|line| line.evidence.says_busy(arrived, now, trip))
    }

    /// What was asked has failed, and may be asked again. Returns since when the store has been in trouble.
    ///
    /// The line shares one patience: those whose own has run out by now are told, wherever they stand.
    pub(crate) fn failed(&self, error: &Error, now: Moment) -> Moment {
        let mut since = now;
        self.change(|line| {
            since = line.evidence.failed(now);
            // What it was told before the failure is no evidence for those who wait (C5).
            line.asks = Weak::new();
            let impatient: Vec<u64> = line
                .waiting
                .iter()
                .filter(|(_, place)| place.has_lost_patience(since, now))
                .map(|(arrival, _)| *arrival)
                .collect();
            for arrival in impatient {
                if let Some(place) = line.waiting.remove(&arrival) {
                    place.gives_up(error);
                }
            }
        });
        since
    }

    fn change(&self, change: impl FnOnce(&mut Line<H>)) {
        if let Some(line) = locked(&self.queue.lines).get_mut(&self.name) {
            change(line);
        }
    }
}

impl<H: Hold> Drop for Turn<H> {
    fn drop(&mut self) {
        self.queue.pass(&self.name, self.granted);
    }
}
