//! The local queue: of all the tasks of one client that want the same name, only the first talks to the store; those that can
//! hold it together talk to it side by side.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::entry::Entry;
use super::evidence::Evidence;
use crate::backend::Request;
use crate::lock::guard::Guard;
use crate::lock::settings::ResolvedSettings;
use crate::sync::locked;
use crate::{Error, HeldNow, Mode, Moment, Name, Owner};

/// How many tasks of one client ask for the same name at once, where the lock has room for all of them.
const SIDE_BY_SIDE: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// A line exists while somebody has the turn, so an idle name costs nothing (C16).
    lines: Mutex<HashMap<Name, Line>>,
    /// How many tasks ask for a name in strict order, past the lines. Locked after them.
    strict: Mutex<HashMap<Name, usize>>,
}

/// A task that asks in strict order: a hold does not rest while it waits.
#[derive(Debug)]
pub(crate) struct Strict {
    queue: Arc<Queue>,
    name: Name,
}

impl Drop for Strict {
    fn drop(&mut self) {
        let mut strict = locked(&self.queue.strict);
        if let Some(count) = strict.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                strict.remove(&self.name);
            }
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
struct Line {
    /// Of those who have the turn now, and how many they are: one, unless they go together.
    company: Company,
    turns: usize,
    /// By arrival, so that the first is the next, and one that gives up leaves at once wherever it stands.
    waiting: BTreeMap<u64, Place>,
    arrivals: u64,
    /// How often the turn or the hold went from one local task to the next, since others last had a chance.
    passed: u32,
    holder: Weak<Entry>,
    /// The hold that has the turn while no task is in it: whoever comes has it, or ends its rest.
    resting: Weak<Entry>,
    /// What a task that has the turn asks the store; of several, the last.
    asks: Weak<Request>,
    evidence: Evidence,
}

#[derive(Debug)]
struct Place {
    company: Company,
    /// How long it puts up with a store in trouble.
    patience: Duration,
    /// What it would do with a hold that is passed on; `None` when it must ask the store itself.
    inherits: Option<Inherits>,
    tell: oneshot::Sender<Word>,
}

/// How a waiter would use a hold that another task of this client passes on.
#[derive(Debug, Clone)]
pub(crate) struct Inherits {
    /// A hold goes to those alone who would have asked the store for the same.
    pub(crate) settings: Arc<ResolvedSettings>,
    pub(crate) owner: Option<Owner>,
    pub(crate) span: Option<&'static str>,
}

/// The waiter that has the hold next.
#[derive(Debug)]
pub(crate) struct Heir {
    pub(crate) owner: Option<Owner>,
    pub(crate) span: Option<&'static str>,
    tell: oneshot::Sender<Word>,
}

impl Heir {
    /// Hands the guard over, or returns it when the waiter has gone away meanwhile.
    pub(crate) fn take(self, guard: Guard) -> Result<(), Guard> {
        match self.tell.send(Word::Held(guard)) {
            Err(Word::Held(guard)) => Err(guard),
            _ => Ok(()),
        }
    }
}

/// What a task finds that comes to the line.
#[derive(Debug)]
pub(crate) enum Entered {
    /// To ask the store.
    Turn(Turn),
    /// A hold of this client that rests, and that the task may have as it is. Nobody else is offered it meanwhile.
    Resting(Arc<Entry>),
    /// A place in the line. If a hold rests that this task cannot use, it has to end.
    Waiter(Waiter, Option<Arc<Entry>>),
}

/// What waiting for the turn has brought.
#[derive(Debug)]
pub(crate) enum Waited {
    /// To ask the store.
    Turn(Turn),
    /// The lock itself, from the task before.
    Held(Guard),
    /// To ask the store without a turn.
    Alone,
}

/// What a waiter is told.
#[derive(Debug)]
enum Word {
    YourTurn,
    /// The hold is passed on. A waiter that does not live to hear it leaves the hold by dropping the guard.
    Held(Guard),
    /// The store has been in trouble for longer than the waiter puts up with.
    GiveUp(Error),
}

impl Line {
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
    fn admit(&mut self, at_most: usize) {
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
            // A waiter whose future was dropped meanwhile finds that it is no longer in the line, and passes on.
            let _ = place.tell.send(Word::YourTurn);
        }
    }
}

impl Queue {
    /// The turn, if nobody of this client has it, or it can be shared.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &Name, company: Company) -> Option<Turn> {
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

    /// A task asks in strict order from now on.
    pub(crate) fn strict(self: &Arc<Self>, name: &Name) -> Strict {
        *locked(&self.strict).entry(name.clone()).or_default() += 1;
        Strict {
            queue: self.clone(),
            name: name.clone(),
        }
    }

    /// The hold of this client that rests, which nobody is offered any more after this.
    pub(crate) fn resting(&self, name: &Name) -> Option<Arc<Entry>> {
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
    ) -> Entered {
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
        let is_the_same = |entry: &Arc<Entry>| {
            let settings = inherits.as_ref().map(|inherits| &inherits.settings);
            settings.is_some_and(|settings| Arc::ptr_eq(settings, &entry.settings))
        };
        let unusable = match resting {
            Some(entry) if is_the_same(&entry) => {
                line.passed = line.passed.saturating_add(1);
                line.evidence.busy(now);
                return Entered::Resting(entry);
            }
            unusable => unusable,
        };
        let (tell, told) = oneshot::channel();
        line.arrivals += 1;
        let place = Place {
            company,
            patience,
            inherits,
            tell,
        };
        let is_first = line.waiting.is_empty();
        line.waiting.insert(line.arrivals, place);
        let waiter = Waiter {
            is_first,
            queue: self.clone(),
            name: name.clone(),
            place: line.arrivals,
            arrived: now,
            told,
        };
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
        if locked(&self.strict).contains_key(name) {
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

    /// Whether a task of this client waits for its turn.
    pub(crate) fn is_waited_for(&self, name: &Name) -> bool {
        let lines = locked(&self.lines);
        lines.get(name).is_some_and(|line| !line.waiting.is_empty())
    }

    /// The hold of this client that excludes everybody else at `now`: every other try is in vain.
    pub(crate) fn holder(&self, name: &Name, now: Moment) -> Option<Arc<Entry>> {
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

    fn turn(self: &Arc<Self>, name: &Name, passed: u32) -> Turn {
        Turn {
            queue: self.clone(),
            name: name.clone(),
            passed,
            granted: false,
        }
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
        // Who got in together with others shows that there is room for more of them; else one follows one.
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

/// The right of this client's task to talk to the store about a name. Dropping it lets the next one go.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<Queue>,
    name: Name,
    passed: u32,
    granted: bool,
}

impl Turn {
    /// How often it has gone from one local task to the next, since others last had a chance.
    pub(crate) fn passed(&self) -> u32 {
        self.passed
    }

    /// Others have had, or now get, their chance.
    pub(crate) fn counts_anew(&self) {
        self.change(|line| line.passed = 0);
    }

    /// Lets those who wait for their turn see whether the store has answered.
    pub(crate) fn asks(&self, request: &Arc<Request>) {
        self.change(|line| {
            line.asks = Arc::downgrade(request);
            line.evidence.asked(request.now());
        });
    }

    /// The lock was granted: those who wait know that it is held, and `try_lock` sees it without a trip.
    pub(crate) fn held_by(&mut self, hold: &Arc<Entry>, now: Moment) {
        self.granted = true;
        self.change(|line| {
            if line.company == Company::Alone {
                line.holder = Arc::downgrade(hold);
                // It has its answer, and even a weak reference keeps its memory.
                line.asks = Weak::new();
            }
            line.evidence.busy(now);
        });
    }

    /// Takes the first who waits out of the line, if it can have the hold as it is.
    pub(crate) fn heir(&self, settings: &Arc<ResolvedSettings>, now: Moment) -> Option<Heir> {
        let mut lines = locked(&self.queue.lines);
        let line = lines.get_mut(&self.name)?;
        let first = line.waiting.first_entry()?;
        let inherits = first.get().inherits.as_ref()?;
        if !Arc::ptr_eq(&inherits.settings, settings) {
            return None;
        }
        let place = first.remove();
        let inherits = place.inherits?;
        line.passed = line.passed.saturating_add(1);
        line.evidence.busy(now);
        Some(Heir {
            owner: inherits.owner,
            span: inherits.span,
            tell: place.tell,
        })
    }

    /// The hold rests from now on, and whoever comes finds it. `false` when somebody waits already.
    pub(crate) fn rests(&self, hold: &Arc<Entry>) -> bool {
        let mut lines = locked(&self.queue.lines);
        let strict = locked(&self.queue.strict).contains_key(&self.name);
        match lines.get_mut(&self.name) {
            Some(line) if line.waiting.is_empty() && !strict => {
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
                .filter(|(_, place)| since + place.patience <= now)
                .map(|(arrival, _)| *arrival)
                .collect();
            for arrival in impatient {
                if let Some(place) = line.waiting.remove(&arrival) {
                    // It has asked nothing itself.
                    let told = error.clone().with_held(HeldNow::No);
                    let _ = place.tell.send(Word::GiveUp(told));
                }
            }
        });
        since
    }

    fn change(&self, change: impl FnOnce(&mut Line)) {
        if let Some(line) = locked(&self.queue.lines).get_mut(&self.name) {
            change(line);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.pass(&self.name, self.granted);
    }
}

/// A place in the line; dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Waiter {
    queue: Arc<Queue>,
    name: Name,
    place: u64,
    /// Nobody stood in the line when it came.
    pub(crate) is_first: bool,
    arrived: Moment,
    told: oneshot::Receiver<Word>,
}

impl Waiter {
    /// Whether it is known, not only likely, that others have the lock at the end of this wait (C5): this client holds it; or others
    /// do, as the store has told a task that has the turn; or the evidence of the line says so.
    pub(crate) fn is_contended(&self, now: Moment, trip: Duration) -> bool {
        // Out of the lock before it is dropped, as in `holder`.
        let (holder, asks, evidence) = {
            let lines = locked(&self.queue.lines);
            let Some(line) = lines.get(&self.name) else {
                return false;
            };
            (
                line.holder.upgrade(),
                line.asks.upgrade(),
                line.evidence.says_busy(self.arrived, now, trip),
            )
        };
        evidence
            || asks.is_some_and(|request| request.is_contended())
            || holder.is_some_and(|hold| hold.is_held(now))
    }

    /// Whether a reader that waits to join could ask the store beside the one that does: that one was not told to wait.
    pub(crate) fn could_ask_beside(&self) -> bool {
        // Out of the lock before it is dropped, as in `holder`.
        let asks = {
            let lines = locked(&self.queue.lines);
            match lines.get(&self.name) {
                Some(line) if line.company == Company::Together => line.asks.upgrade(),
                _ => return false,
            }
        };
        !asks.is_some_and(|request| request.is_contended())
    }

    /// Waits for the turn, or for the hold itself. It must not be called again after that.
    ///
    /// # Errors
    ///
    /// What the store's trouble is, when it has lasted longer than this waiter puts up with.
    pub(crate) async fn turn(&mut self) -> Result<Waited, Error> {
        // The sender is dropped only together with the queue, so an error means the same as the word.
        let word = (&mut self.told).await.unwrap_or(Word::YourTurn);
        self.place = 0;
        match word {
            // From here on the turn passes on by itself.
            Word::YourTurn => {
                let passed = self.queue.passed(&self.name);
                Ok(Waited::Turn(self.queue.turn(&self.name, passed)))
            }
            Word::Held(guard) => {
                guard.take_up();
                Ok(Waited::Held(guard))
            }
            Word::GiveUp(error) => Err(error),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.place == 0 {
            return;
        }
        let left = locked(&self.queue.lines)
            .get_mut(&self.name)
            .and_then(|line| line.waiting.remove(&self.place));
        // It had been told something and did not live to hear it: the turn must not be lost with it.
        if left.is_none() && matches!(self.told.try_recv(), Ok(Word::YourTurn)) {
            self.queue.pass(&self.name, false);
        }
    }
}

#[cfg(test)]
mod tests;
