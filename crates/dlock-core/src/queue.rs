//! The local queue: of all the tasks of one client that want the same name, only the first talks to the store.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::hold::Hold;
use crate::sync::locked;
use crate::{Moment, Name, Request};

#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// A line exists while somebody has the turn, so an idle name costs nothing (C16).
    lines: Mutex<HashMap<Name, Line>>,
}

#[derive(Debug, Default)]
struct Line {
    /// By arrival, so that the first is the next, and one that gives up leaves at once wherever it stands.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    arrivals: u64,
    /// How often in a row the turn went from one local task to the next.
    passed: u32,
    holder: Weak<Hold>,
    /// How often one of these tasks has got the lock.
    holds: u64,
    /// What the task that has the turn asks the store.
    asks: Weak<Request>,
    /// Since when questions have had no answer, whoever asked them, and whether one has failed.
    silent_since: Option<Moment>,
    trouble: bool,
}

impl Line {
    /// The store has answered.
    fn answered(&mut self) {
        self.silent_since = None;
        self.trouble = false;
    }
}

impl Queue {
    /// The turn, if nobody of this client has it.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &Name) -> Option<Turn> {
        match locked(&self.lines).entry(name.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(free) => free.insert(Line::default()),
        };
        Some(self.turn(name, 0))
    }

    /// The turn, or a place in the line: first come, first served.
    pub(crate) fn enter(self: &Arc<Self>, name: &Name) -> Result<Turn, Waiter> {
        let mut lines = locked(&self.lines);
        let Some(line) = lines.get_mut(name) else {
            lines.insert(name.clone(), Line::default());
            return Ok(self.turn(name, 0));
        };
        let (tell, told) = oneshot::channel();
        line.arrivals += 1;
        line.waiting.insert(line.arrivals, tell);
        let held = u64::from(line.holder.strong_count() > 0);
        Err(Waiter {
            queue: self.clone(),
            name: name.clone(),
            place: line.arrivals,
            holds_before: line.holds.saturating_sub(held),
            told,
        })
    }

    /// Whether this client itself holds the lock alone at `now`: then everybody else's try is in vain.
    pub(crate) fn is_held(&self, name: &Name, now: Moment) -> bool {
        // Out of the lock before it is dropped: the last reference to a hold may carry the turn, and passes it on.
        let holder = locked(&self.lines)
            .get(name)
            .and_then(|line| line.holder.upgrade());
        holder.is_some_and(|hold| hold.is_held(now))
    }

    /// How many tasks wait for their turn.
    #[cfg(test)]
    pub(crate) fn waiting(&self, name: &Name) -> usize {
        locked(&self.lines)
            .get(name)
            .map_or(0, |line| line.waiting.len())
    }

    /// Lets `try_lock` see that this client holds the lock, without a trip. Called with the turn only.
    pub(crate) fn held_by(&self, name: &Name, hold: &Arc<Hold>) {
        if let Some(line) = locked(&self.lines).get_mut(name) {
            line.holder = Arc::downgrade(hold);
            line.holds += 1;
            line.answered();
        }
    }

    fn turn(self: &Arc<Self>, name: &Name, passed: u32) -> Turn {
        Turn {
            queue: self.clone(),
            name: name.clone(),
            passed,
        }
    }

    /// Gives the turn to the next, or ends the line.
    fn pass(&self, name: &Name) {
        let mut lines = locked(&self.lines);
        let Some(line) = lines.get_mut(name) else {
            return;
        };
        line.holder = Weak::new();
        let asked = std::mem::take(&mut line.asks).upgrade();
        if !line.trouble && asked.is_some_and(|request| request.is_contended()) {
            // Its future was dropped, but the store had answered.
            line.answered();
        }
        match line.waiting.pop_first() {
            Some((_, tell)) => {
                line.passed = line.passed.saturating_add(1);
                // A waiter whose future was dropped meanwhile finds that it is no longer in the line, and passes on.
                let _ = tell.send(());
            }
            None => {
                lines.remove(name);
            }
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
}

impl Turn {
    /// How often the turn has gone from one local task to the next without a break.
    pub(crate) fn passed(&self) -> u32 {
        self.passed
    }

    /// What was asked has failed, and may be asked again.
    pub(crate) fn failed(&self) {
        self.change(|line| line.trouble = true);
    }

    /// The store has said that others hold the lock.
    pub(crate) fn answered(&self) {
        self.change(Line::answered);
    }

    fn change(&self, change: impl FnOnce(&mut Line)) {
        if let Some(line) = locked(&self.queue.lines).get_mut(&self.name) {
            change(line);
        }
    }

    /// Lets those who wait for their turn see whether the store has answered.
    pub(crate) fn asks(&self, request: &Arc<Request>) {
        self.change(|line| {
            line.asks = Arc::downgrade(request);
            line.silent_since.get_or_insert_with(|| request.now());
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.pass(&self.name);
    }
}

/// A place in the line; dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Waiter {
    queue: Arc<Queue>,
    name: Name,
    place: u64,
    /// How often one of these tasks had got the lock, and given it back, before this one came.
    holds_before: u64,
    told: oneshot::Receiver<()>,
}

impl Waiter {
    /// Whether it is known, not only likely, that others have the lock at the end of this wait (C5): this client holds it; or others
    /// do, as the store has told the task that has the turn; or it has gone from task to task meanwhile, and no question has failed
    /// since then, nor been without an answer for longer than a trip takes.
    pub(crate) fn is_contended(&self, now: Moment, trip: Duration) -> bool {
        // Out of the lock before it is dropped, as in `is_held`.
        let (holder, asks, goes_round, asked) = {
            let lines = locked(&self.queue.lines);
            let Some(line) = lines.get(&self.name) else {
                return false;
            };
            let goes_round = line.holds > self.holds_before && !line.trouble;
            (
                line.holder.upgrade(),
                line.asks.upgrade(),
                goes_round,
                line.silent_since,
            )
        };
        if asks.is_some_and(|request| request.is_contended()) {
            return true;
        }
        let silent_since = match &holder {
            Some(hold) if hold.is_held(now) => return true,
            // Its release is under way.
            Some(hold) => hold.ended_at().or(asked),
            None => asked,
        };
        goes_round && silent_since.is_none_or(|since| now < since + trip)
    }

    /// Waits for the turn. It must not be called again after that.
    pub(crate) async fn turn(&mut self) -> Turn {
        // The sender is dropped only together with the queue, so an error means the same as the word.
        let _ = (&mut self.told).await;
        let turn = self.queue.turn(&self.name, self.queue.passed(&self.name));
        // From here on the turn passes on by itself.
        self.place = 0;
        turn
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
        if left.is_none() {
            // It had been given the turn and did not live to use it.
            self.queue.pass(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::pin::pin;

    fn name() -> Name {
        Name::new("a").expect("good")
    }

    #[tokio::test]
    async fn turns_go_in_order_of_arrival() {
        let queue = Arc::new(Queue::default());
        let first = queue.enter(&name()).expect("the first");
        let mut second = queue.enter(&name()).expect_err("a waiter");
        let mut third = queue.enter(&name()).expect_err("a waiter");
        let (mut second, mut third) = (pin!(second.turn()), pin!(third.turn()));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(queue.try_enter(&name()).is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none());
        let turn = second.await;
        assert_eq!(turn.passed(), 1);
        drop(turn);
        drop(third.await);
        assert!(locked(&queue.lines).is_empty(), "nothing is left");
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_and_a_dropped_grantee_passes_on() {
        let queue = Arc::new(Queue::default());
        let first = queue.enter(&name()).expect("the first");
        let mut gives_up = queue.enter(&name()).expect_err("a waiter");
        let mut granted = queue.enter(&name()).expect_err("a waiter");
        let mut last = queue.enter(&name()).expect_err("a waiter");
        assert!(gives_up.turn().now_or_never().is_none());
        assert!(granted.turn().now_or_never().is_none());
        assert!(last.turn().now_or_never().is_none());
        drop(gives_up);
        assert_eq!(queue.waiting(&name()), 2);
        drop(first); // the turn is on its way to `granted` ...
        drop(granted); // ... which does not live to use it
        drop(last.turn().await);
        assert!(locked(&queue.lines).is_empty(), "nothing is left");
    }
}
