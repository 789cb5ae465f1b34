//! What all handles of one client share, and how a hold ends.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::hold::{Hold, State};
use crate::ledger::{Chore, Ledger, Leftover};
use crate::queue::Queue;
use crate::settings::Checked;
use crate::stats::{Event, Recorder};
use crate::sync::locked;
use crate::{
    Backend, Clock, Error, ErrorKind, HeldNow, Liveness, LossReason, Moment, Operation, Released,
    Request, Result, keeper, reaper, wait,
};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) stats: Recorder,
    keeper: Task,
    reaper: Task,
    /// Makes a loss and its count one step for whoever is told of it.
    losing: Mutex<()>,
}

/// Whether a background task runs. It ends with its runtime; the next call from a living one starts it again.
#[derive(Debug, Clone, Default)]
struct Task(Arc<AtomicBool>);

impl Task {
    /// Starts the task unless it runs; `false` when there is no runtime to start it in.
    fn ensure<F>(&self, make: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.0.load(Ordering::Acquire) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        if self.0.swap(true, Ordering::AcqRel) {
            return true;
        }
        let mark = Mark(self.0.clone());
        let work = make();
        runtime.spawn(async move {
            let _mark = mark;
            work.await;
        });
        true
    }
}

/// Clears the mark also when the runtime drops the task.
struct Mark(Arc<AtomicBool>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Client {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let stats = Recorder::new(backend.capabilities().backend);
        Arc::new(Self {
            backend,
            clock,
            ledger: Arc::default(),
            queue: Arc::default(),
            stats,
            keeper: Task::default(),
            reaper: Task::default(),
            losing: Mutex::default(),
        })
    }

    /// Both tasks run from the first hold on; also the reaper, for what a runtime that ended may have left.
    pub(crate) fn ensure_tasks(self: &Arc<Self>) {
        self.keeper.ensure(|| keeper::run(self));
        self.ensure_reaper();
    }

    fn ensure_reaper(self: &Arc<Self>) -> bool {
        self.reaper.ensure(|| reaper::run(self))
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.backend.capabilities().backend
    }

    /// Hands something that the store may still have to the reaper.
    fn undo(self: &Arc<Self>, what: Leftover, lease: Duration) {
        let until = match self.backend.capabilities().liveness {
            Liveness::Lease => self.clock.now() + lease,
            // The session outlives the hold, so nothing but a confirmed release ends it.
            _ => Moment::NEVER,
        };
        let keeps = self.ensure_reaper().then(|| self.clone());
        self.ledger.add_chore(Chore { what, until, keeps });
    }

    pub(crate) fn undo_attempt(self: &Arc<Self>, request: Arc<Request>) {
        let lease = request.lease();
        self.undo(Leftover::Attempt(request), lease);
    }

    fn undo_hold(self: &Arc<Self>, hold: &Arc<Hold>) {
        self.undo(Leftover::Hold(hold.clone()), hold.settings.lease);
    }

    /// Declares a loss, unless the hold has ended otherwise.
    pub(crate) fn lose(self: &Arc<Self>, hold: &Arc<Hold>, reason: LossReason) {
        {
            let _one_step = locked(&self.losing);
            if !hold.lose(reason, self.clock.now()) {
                return;
            }
            self.stats.count(reason.into());
        }
        self.ledger.remove(hold);
        let lease = hold.lease();
        tracing::warn!(
            name = %lease.name(), backend = self.backend_name(), token = lease.token().map(u64::from), %reason,
            "lock lost"
        );
        match reason {
            LossReason::Gone | LossReason::SessionEnded => hold.pass_turn(),
            // The store may still have it: free it for the next, who waits until that is done.
            _ => self.undo_hold(hold),
        }
    }

    /// Resolves when the hold is lost, with the reason, or when it was released.
    pub(crate) async fn lost(self: &Arc<Self>, hold: &Arc<Hold>) -> Option<LossReason> {
        self.ensure_tasks();
        if hold.ended(self.clock.as_ref()).await == State::Held {
            // Its time is up, and the keeper did not get to run.
            self.lose(hold, hold.clock_reason());
        }
        match hold.state() {
            State::Lost(reason) => {
                drop(locked(&self.losing));
                Some(reason)
            }
            _ => None,
        }
    }

    /// A guard was dropped: frees the hold in the background (C14).
    pub(crate) fn drop_hold(self: &Arc<Self>, hold: &Arc<Hold>) {
        if self.ledger.leave(hold) && self.let_go(hold).is_ok() {
            self.undo_hold(hold);
        }
    }

    /// A guard was released.
    pub(crate) async fn release(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<Released> {
        if !self.ledger.leave(hold) {
            let held = hold.is_held(self.clock.now());
            return Ok(if held {
                Released::StillHeld
            } else {
                Released::AlreadyLost
            });
        }
        if self.let_go(hold).is_err() {
            return Ok(Released::AlreadyLost);
        }
        // If this future is dropped, the reaper goes on.
        let unconfirmed = Unconfirmed::new(self, hold);
        let lease = hold.lease();
        let limit = hold.settings.trip_timeout;
        let mut trip = pin!(self.trip(limit, self.backend.release(&lease)));
        let answer = match poll_fn(|cx| Poll::Ready(trip.as_mut().poll(cx))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                // It is on its way, and what the next local task sends comes behind it.
                if self.backend.keeps_order() {
                    hold.pass_turn();
                }
                trip.await
            }
        };
        match answer {
            Ok(Released::AlreadyLost) => {
                unconfirmed.confirmed();
                self.stats.count(LossReason::Gone.into());
                Ok(Released::AlreadyLost)
            }
            Ok(_) => {
                unconfirmed.confirmed();
                self.stats.count(Event::Released);
                Ok(Released::Freed)
            }
            Err(error) => {
                tracing::debug!(name = %lease.name(), %error, "release not confirmed yet");
                hold.not_confirmed();
                drop(unconfirmed);
                if error.is_retryable() {
                    Ok(Released::Unknown)
                } else {
                    Err(self.explain(error, Operation::Release, lease.name()))
                }
            }
        }
    }

    /// Ends a hold that is good, or says why it is not. Renewal has stopped when this returns (R7).
    fn let_go(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<(), LossReason> {
        let now = self.clock.now();
        if !hold.is_held(now) {
            self.lose(hold, hold.clock_reason());
        }
        let outcome = hold.let_go(now);
        self.stats.held(now.since(hold.since));
        outcome
    }

    /// One trip within its time-out.
    pub(crate) async fn trip<T>(
        &self,
        limit: Duration,
        trip: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let until = self.clock.now() + limit;
        tokio::select! {
            biased;
            answer = trip => answer,
            () = self.clock.sleep_until(until) => Err(wait::no_answer(limit)),
        }
    }

    /// A trip for somebody who asks about locks.
    pub(crate) async fn question<T>(
        &self,
        settings: &Checked,
        operation: Operation,
        trip: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        in_runtime()?;
        self.trip(settings.trip_timeout, trip)
            .await
            .map_err(|error| error.context(self.backend_name(), operation, None))
    }

    pub(crate) fn explain(&self, error: Error, operation: Operation, name: &crate::Name) -> Error {
        error.context(self.backend_name(), operation, Some(name))
    }

    /// Gives everything back, waits until nothing is left in doubt, and closes the backend.
    pub(crate) async fn close(self: &Arc<Self>, settings: &Checked) -> Result<()> {
        in_runtime()?;
        let name = self.backend_name();
        let Some(left) = self.ledger.close() else {
            return Ok(());
        };
        self.ensure_reaper();
        for hold in left {
            self.lose(&hold, LossReason::Closed);
        }
        let patience = settings.outage + settings.trip_timeout;
        let quiet = async {
            self.ledger.quiet().await;
            Ok(())
        };
        let quiet = self.trip(patience, quiet).await.map_err(|error| {
            Error::new(
                ErrorKind::TimedOut,
                format!("after {patience:?} the store has not confirmed every release: what is left ends with its lease"),
            )
            .with_source(error)
            .with_held(HeldNow::Unknown)
        });
        let closed = self.trip(settings.trip_timeout, self.backend.close()).await;
        quiet
            .and(closed)
            .map_err(|error| error.context(name, Operation::Close, None))
    }
}

/// Timers and background tasks need a runtime.
pub(crate) fn in_runtime() -> Result<()> {
    match Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::invalid(
            "called outside of a tokio runtime: call it from a task, or inside Runtime::block_on",
        )),
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The tasks wait without keeping the client alive; they look, find it gone, and end (C16).
        self.ledger.sooner.notify_one();
        self.ledger.work.notify_one();
    }
}

/// A release under way: `close` waits for it, and the reaper takes it over if it is not confirmed.
struct Unconfirmed<'a> {
    client: &'a Arc<Client>,
    hold: &'a Arc<Hold>,
    confirmed: bool,
}

impl<'a> Unconfirmed<'a> {
    fn new(client: &'a Arc<Client>, hold: &'a Arc<Hold>) -> Self {
        client.ledger.begin_release();
        Self {
            client,
            hold,
            confirmed: false,
        }
    }

    fn confirmed(mut self) {
        self.confirmed = true;
    }
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if self.confirmed {
            self.hold.pass_turn();
        } else {
            self.client.undo_hold(self.hold);
        }
        self.client.ledger.strike();
    }
}
