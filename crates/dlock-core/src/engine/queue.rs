//! The local queue: of all the tasks of one client that want the same name, only the first talks to the store; those that can
//! hold it together talk to it side by side.
//!
//! Here is the line of each name; what a task has of it is in [`turn`] (it talks to the store, or holds the lock) and in [`waiter`]
//! (it stands behind others). Those who ask the store without standing in line are counted in [`past`].

mod past;
mod turn;
mod waiter;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub(crate) use self::past::PastTheLine;
use self::past::PastTheLines;
pub(crate) use self::turn::Turn;
use self::waiter::Place;
pub(crate) use self::waiter::{Heir, Inherits, Waited, Waiter};
use super::evidence::Evidence;
use crate::backend::Request;
use crate::lock::settings::ResolvedSettings;
use crate::sync::locked;
use crate::{Mode, Moment, Name};

/// How many tasks of one client ask for the same name at once, where the lock has room for all of them.
const SIDE_BY_SIDE: u32 = 256;

/// What the queue has to know of a hold: who waits behind it, and who may have it next.
pub(crate) trait Hold: Debug {
    /// What the task has in its hands that is in the hold. Dropping it leaves the hold.
    type Guard: Debug;

    /// A hold goes to those alone who would have asked the store for the same.
    fn settings(&self) -> &Arc<ResolvedSettings>;

    /// Whether it is good at `now`.
    fn is_held(&self, now: Moment) -> bool;

    /// Somebody waits for it from now on.
    fn others_came(&self);
}

#[derive(Debug)]
pub(crate) struct Queue<H: Hold> {
    /// A line exists while somebody has the turn, so an idle name costs nothing ([C16](crate::contract#c16)).
    lines: Mutex<HashMap<Name, Line<H>>>,
    /// The tasks that ask the store past the lines. Locked after them.
    past: PastTheLines,
}

impl<H: Hold> Default for Queue<H> {
    fn default() -> Self {
        Self {
            lines: Mutex::default(),
            past: PastTheLines::default(),
        }
    }
}

/// Whether two holders exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    Alone,
    Together,
}

impl From<Mode> for Company {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Alone,
            _ => Self::Together,
        }
    }
}

#[derive(Debug)]
struct Line<H: Hold> {
    /// Of those who have the turn now, and how many they are: one, unless they go together.
    company: Company,
    turns: u32,
    /// By arrival, so that the first is the next, and one that gives up leaves at once wherever it stands.
    waiting: BTreeMap<u64, Place<H>>,
    arrivals: u64,
    /// How often the turn or the hold went from one local task to the next, since others last had a chance.
    passed: u32,
    holder: Weak<H>,
    /// The hold that has the turn while no task is in it: whoever comes has it, or ends its rest.
    resting: Weak<H>,
    /// What a task that has the turn asks the store; of several, the last.
    asks: Weak<Request>,
    evidence: Evidence,
}

/// What a task finds that comes to the line.
#[derive(Debug)]
pub(crate) enum Entered<H: Hold> {
    /// To ask the store.
    Turn(Turn<H>),
    /// A hold of this client that rests, and that the task may have as it is. Nobody else is offered it meanwhile.
    Resting(Arc<H>),
    /// A place in the line. If a hold rests that this task cannot use, it has to end.
    Waiter(Waiter<H>, Option<Arc<H>>),
}

impl<H: Hold> Line<H> {
    fn new(company: Company) -> Self {
        Self {
            company,
            turns: 1,
            waiting: BTreeMap::new(),
            arrivals: 0,
            passed: 0,
            holder: Weak::new(),
            resting: Weak::new(),
            asks: Weak::new(),
            evidence: Evidence::default(),
        }
    }

    /// Whether one more may go beside those who have the turn. Not once one of them was told to wait: then the others would wait at
    /// the store too.
    fn has_room_for(&self, company: Company) -> bool {
        company == Company::Together
            && self.company == Company::Together
            && self.turns < SIDE_BY_SIDE
            && self.waiting.is_empty()
            && !self
                .asks
                .upgrade()
                .is_some_and(|request| request.is_contended())
    }

    /// Gives the turn to the next, and with it to those right behind who can go together.
    fn admit(&mut self, at_most: u32) {
        for _ in 0..at_most {
            let Some(next) = self.waiting.first_entry() else {
                return;
            };
            let company = next.get().company;
            let fits = self.turns == 0
                || company == Company::Together
                    && self.company == Company::Together
                    && self.turns < SIDE_BY_SIDE;
            if !fits {
                return;
            }
            let place = next.remove();
            self.company = company;
            self.turns += 1;
            self.passed = self.passed.saturating_add(1);
            place.admit();
        }
    }
}

impl<H: Hold> Queue<H> {
    /// The turn, if nobody of this client has it, or it can be shared.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &Name, company: Company) -> Option<Turn<H>> {
        let mut lines = locked(&self.lines);
        match lines.get_mut(name) {
            None => {
                lines.insert(name.clone(), Line::new(company));
            }
            Some(line) if line.has_room_for(company) => line.turns += 1,
            Some(_) => return None,
        }
        Some(self.turn(name, 0))
    }

    /// The hold of this client that rests, which nobody is offered any more after this.
    pub(crate) fn resting(&self, name: &Name) -> Option<Arc<H>> {
        let mut lines = locked(&self.lines);
        let resting = std::mem::take(&mut lines.get_mut(name)?.resting);
        drop(lines);
        resting.upgrade()
    }

    /// The turn, a hold that rests, or a place in the line: first come, first served.
    pub(crate) fn enter(
        self: &Arc<Self>,
        name: &Name,
        company: Company,
        patience: Duration,
        inherits: Option<Inherits>,
        joins: bool,
        now: Moment,
    ) -> Entered<H> {
        let mut lines = locked(&self.lines);
        let Some(line) = lines.get_mut(name) else {
            lines.insert(name.clone(), Line::new(company));
            return Entered::Turn(self.turn(name, 0));
        };
        // One that may join waits for the answer of the one that asks.
        if !joins && line.has_room_for(company) {
            line.turns += 1;
            return Entered::Turn(self.turn(name, 0));
        }
        // Out of the lock before it is dropped, as in `holder`.
        let resting = std::mem::take(&mut line.resting).upgrade();
        let is_the_same = |hold: &Arc<H>| {
            let settings = inherits.as_ref().map(|inherits| &inherits.settings);
            settings.is_some_and(|settings| Arc::ptr_eq(settings, hold.settings()))
        };
        let unusable = match resting {
            Some(hold) if is_the_same(&hold) => {
                line.passed = line.passed.saturating_add(1);
                line.evidence.busy(now);
                return Entered::Resting(hold);
            }
            unusable => unusable,
        };
        line.arrivals += 1;
        let (place, told) = Place::new(company, patience, inherits);
        let is_first = line.waiting.is_empty();
        line.waiting.insert(line.arrivals, place);
        let mut waiter = Waiter::new(self.clone(), name.clone(), line.arrivals, now, told);
        waiter.is_first = is_first;
        let holder = is_first.then(|| line.holder.upgrade()).flatten();
        drop(lines);
        if let Some(holder) = holder {
            holder.others_came();
        }
        Entered::Waiter(waiter, unusable)
    }

    /// Whether a reader may join a hold: not when a writer of this client has the turn, is next in line, or asks in strict order.
    pub(crate) fn readers_may_join(&self, name: &Name) -> bool {
        let lines = locked(&self.lines);
        if self.past.has_any(name) {
            return false;
        }
        let Some(line) = lines.get(name) else {
            return true;
        };
        let next = line
            .waiting
            .first_key_value()
            .map(|(_, place)| place.company);
        line.company == Company::Together && next != Some(Company::Alone)
    }

    /// Whether a task of this client waits for what another one holds: for its turn, or at the store past the line.
    pub(crate) fn is_waited_for(&self, name: &Name, held: Mode) -> bool {
        let lines = locked(&self.lines);
        let in_line = lines.get(name).is_some_and(|line| !line.waiting.is_empty());
        in_line || self.past.waits(name, held.into())
    }

    /// The hold of this client that excludes everybody else at `now`: every other try is in vain.
    pub(crate) fn holder(&self, name: &Name, now: Moment) -> Option<Arc<H>> {
        // Out of the lock before it is dropped: the last reference to a hold may carry the turn, and passes it on.
        let holder = locked(&self.lines)
            .get(name)
            .and_then(|line| line.holder.upgrade());
        holder.filter(|hold| hold.is_held(now))
    }

    /// How many tasks wait for their turn.
    #[cfg(test)]
    pub(crate) fn waiting(&self, name: &Name) -> usize {
        locked(&self.lines)
            .get(name)
            .map_or(0, |line| line.waiting.len())
    }

    fn turn(self: &Arc<Self>, name: &Name, passed: u32) -> Turn<H> {
        Turn::new(self.clone(), name.clone(), passed)
    }

    /// Gives the turn to the next, or ends the line.
    fn pass(&self, name: &Name, granted: bool) {
        let mut lines = locked(&self.lines);
        let Some(line) = lines.get_mut(name) else {
            return;
        };
        line.holder = Weak::new();
        line.resting = Weak::new();
        if let Some(request) = line.asks.upgrade()
            && line.company == Company::Alone
        {
            line.asks = Weak::new();
            if request.is_contended() && line.evidence.trouble_since().is_none() {
                // Its future was dropped, but the store had answered.
                line.evidence.busy(request.now());
            }
        }
        line.turns = line.turns.saturating_sub(1);
        // A reader or permit that was granted beside others shows that there is room, so several ask at once; else one asks at a time.
        let together = granted && line.company == Company::Together;
        line.admit(if together || line.turns == 0 {
            SIDE_BY_SIDE
        } else {
            1
        });
        if line.turns == 0 {
            lines.remove(name);
        }
    }

    fn passed(&self, name: &Name) -> u32 {
        locked(&self.lines).get(name).map_or(0, |line| line.passed)
    }
}

#[cfg(test)]
mod tests;
