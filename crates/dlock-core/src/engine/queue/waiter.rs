//! A place in the line, and what one who waits there is told.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Company, Hold, Queue, Turn};
use crate::lock::settings::ResolvedSettings;
use crate::sync::locked;
use crate::{Error, HeldNow, Moment, Name, Owner};

/// One who waits, as the line knows it.
#[derive(Debug)]
pub(super) struct Place<H: Hold> {
    pub(super) company: Company,
    /// How long it puts up with a store in trouble.
    patience: Duration,
    /// What it would do with a hold that is passed on; `None` when it must ask the store itself.
    pub(super) inherits: Option<Inherits>,
    tell: oneshot::Sender<Word<H>>,
}

impl<H: Hold> Place<H> {
    pub(super) fn new(
        company: Company,
        patience: Duration,
        inherits: Option<Inherits>,
    ) -> (Self, Told<H>) {
        let (tell, told) = oneshot::channel();
        let place = Self {
            company,
            patience,
            inherits,
            tell,
        };
        (place, Told(told))
    }

    /// It is its turn. A waiter whose future was dropped meanwhile finds that it is no longer in the line, and passes on.
    pub(super) fn admit(self) {
        let _ = self.tell.send(Word::YourTurn);
    }

    /// Whether it puts up no longer with a store that has been in trouble since then.
    pub(super) fn has_lost_patience(&self, since: Moment, now: Moment) -> bool {
        since + self.patience <= now
    }

    /// Its patience is at its end. It has asked nothing itself.
    pub(super) fn gives_up(self, error: &Error) {
        let told = error.clone().with_held(HeldNow::No);
        let _ = self.tell.send(Word::GiveUp(told));
    }

    /// It has the hold next; `None` when it cannot use one.
    pub(super) fn inherits(self) -> Option<Heir<H>> {
        let inherits = self.inherits?;
        Some(Heir {
            owner: inherits.owner,
            span: inherits.span,
            tell: self.tell,
        })
    }
}

/// Where a waiter hears what it is told.
#[derive(Debug)]
pub(super) struct Told<H: Hold>(oneshot::Receiver<Word<H>>);

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
pub(crate) struct Heir<H: Hold> {
    pub(crate) owner: Option<Owner>,
    pub(crate) span: Option<&'static str>,
    tell: oneshot::Sender<Word<H>>,
}

impl<H: Hold> Heir<H> {
    /// Hands the guard over, or returns it when the waiter has gone away meanwhile.
    pub(crate) fn take(self, guard: H::Guard) -> Result<(), H::Guard> {
        match self.tell.send(Word::Held(guard)) {
            Err(Word::Held(guard)) => Err(guard),
            _ => Ok(()),
        }
    }
}

/// What waiting for the turn has brought.
#[derive(Debug)]
pub(crate) enum Waited<H: Hold> {
    /// To ask the store.
    Turn(Turn<H>),
    /// The lock itself, from the task before, to be taken up at once.
    Held(H::Guard),
    /// To ask the store without a turn.
    Alone,
}

/// What a waiter is told.
#[derive(Debug)]
enum Word<H: Hold> {
    YourTurn,
    /// The hold is passed on. A waiter that does not live to hear it leaves the hold by dropping the guard.
    Held(H::Guard),
    /// The store has been in trouble for longer than the waiter puts up with.
    GiveUp(Error),
}

/// A place in the line; dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Waiter<H: Hold> {
    queue: Arc<Queue<H>>,
    name: Name,
    place: u64,
    /// Nobody stood in the line when it came.
    pub(crate) is_first: bool,
    arrived: Moment,
    told: Told<H>,
}

impl<H: Hold> Waiter<H> {
    pub(super) fn new(
        queue: Arc<Queue<H>>,
        name: Name,
        place: u64,
        arrived: Moment,
        told: Told<H>,
    ) -> Self {
        Self {
            queue,
            name,
            place,
            is_first: false,
            arrived,
            told,
        }
    }

    /// Whether it is known, not only likely, that others have the lock at the end of this wait ([C5](crate::contract#c5)): this client holds it; or others
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
    pub(crate) async fn turn(&mut self) -> Result<Waited<H>, Error> {
        // The sender is dropped only together with the queue, so an error means the same as the word.
        let word = (&mut self.told.0).await.unwrap_or(Word::YourTurn);
        self.place = 0;
        match word {
            // From here on the turn passes on by itself.
            Word::YourTurn => {
                let passed = self.queue.passed(&self.name);
                Ok(Waited::Turn(self.queue.turn(&self.name, passed)))
            }
            Word::Held(guard) => Ok(Waited::Held(guard)),
            Word::GiveUp(error) => Err(error),
        }
    }
}

impl<H: Hold> Drop for Waiter<H> {
    fn drop(&mut self) {
        if self.place == 0 {
            return;
        }
        let left = locked(&self.queue.lines)
            .get_mut(&self.name)
            .and_then(|line| line.waiting.remove(&self.place));
        // The turn was given to it in the moment in which its future was dropped. It goes on to the next, or the whole line would wait for ever.
        if left.is_none() && matches!(self.told.0.try_recv(), Ok(Word::YourTurn)) {
            self.queue.pass(&self.name, false);
        }
    }
}
