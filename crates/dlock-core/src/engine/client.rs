//! What all handles of one client share, and what they ask of the store.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::entry::{Ending, Entry};
use super::ledger::{Leaving, Ledger, Left};
use super::queue::Queue;
use super::room::Rooms;
use super::trip_time::TripTime;
use super::trips;
use crate::backend::{Backend, Hearing, Released, wait};
use crate::lock::guard::Guard;
use crate::lock::settings::ResolvedSettings;
use crate::lock::stats::Event;
use crate::runtime::in_runtime;
use crate::{Clock, Error, ErrorKind, HeldNow, LossReason, Name, Operation, Result};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) rooms: Rooms,
    pub(crate) trip_time: TripTime,
    /// Whether the backend was closed; held while one closes it, so that another waits.
    closed: tokio::sync::Mutex<bool>,
}

impl Client {
    pub(crate) fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, rooms: Rooms) -> Arc<Self> {
        let capabilities = backend.capabilities();
        let ledger = Ledger::new(capabilities);
        Arc::new(Self {
            backend,
            clock,
            ledger: Arc::new(ledger),
            queue: Arc::default(),
            rooms,
            trip_time: TripTime::default(),
            closed: tokio::sync::Mutex::new(false),
        })
    }

    /// The background room lives from the first acquire on, and again after the runtime that it was in has ended.
    pub(crate) fn ensure_rooms(self: &Arc<Self>) {
        self.rooms.ensure(self);
    }

    /// Whether a room lives that can finish what is begun now.
    pub(crate) fn can_finish(&self) -> bool {
        self.rooms.can_finish()
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.backend.capabilities().backend
    }

    /// Declares a loss, unless the hold has ended otherwise.
    pub(crate) fn lose(self: &Arc<Self>, entry: &Arc<Entry>, reason: LossReason) {
        if self.ledger.lose(entry, reason, self, self.clock.now()) {
            self.tell_of_loss(entry, reason);
        }
    }

    /// Declares the loss of a hold whose time is up.
    pub(crate) fn lose_to_the_clock(self: &Arc<Self>, entry: &Arc<Entry>) {
        let now = self.clock.now();
        if let Some(reason) = self.ledger.lose_to_the_clock(entry, self, now) {
            self.tell_of_loss(entry, reason);
        }
    }

    fn tell_of_loss(&self, entry: &Entry, reason: LossReason) {
        if !entry.is_taken_up() {
            tracing::debug!(name = %entry.name(), %reason, "a hold was passed on to a task that does not run");
            return;
        }
        let token = entry.token(entry.stay());
        tracing::warn!(
            name = %entry.name(), backend = self.backend_name(), token = token.map(u64::from), %reason,
            "lock lost"
        );
    }

    /// A guard was dropped: frees the hold in the background (C14).
    pub(crate) fn drop_hold(self: &Arc<Self>, entry: &Arc<Entry>) {
        self.ensure_rooms();
        let _ = self.leave(entry, Leaving::Dropped);
    }

    /// A guard leaves its hold; `None` when the next local task has it, or it rests.
    fn leave(self: &Arc<Self>, entry: &Arc<Entry>, how: Leaving) -> Option<Left> {
        let mut passed_on = false;
        loop {
            let heir = match self.ledger.leave(entry, how, self, self.clock.now()) {
                Left::PassedOn(heir) => heir,
                Left::Resting | Left::ToOtherReaders => return None,
                // What became of a hold that was passed on before is no matter of the caller's.
                Left::Inside { .. } | Left::Lost if passed_on => return None,
                left => return Some(left),
            };
            passed_on = true;
            match heir.take(Guard::new(self.clone(), entry.clone(), false)) {
                Ok(()) => return None,
                // It has gone away meanwhile, and leaves the hold as it came.
                Err(guard) => guard.forget(),
            }
        }
    }

    /// A guard was released.
    pub(crate) async fn release(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Released> {
        self.ensure_rooms();
        // Outside of a runtime there are no timers, and a room does it.
        let how = match in_runtime() {
            Ok(()) => Leaving::Released,
            Err(_) => Leaving::Dropped,
        };
        match self.leave(entry, how) {
            None | Some(Left::PassedOn(_) | Left::Resting | Left::ToOtherReaders) => {
                return Ok(Released::Freed);
            }
            Some(Left::Inside { held: true }) => return Ok(Released::StillHeld),
            Some(Left::Inside { held: false } | Left::Lost) => return Ok(Released::AlreadyLost),
            Some(Left::Undoing) => return Ok(Released::Unknown),
            Some(Left::Releasing) => {}
        }
        // If this future is dropped, a room goes on.
        let mut unconfirmed = Unconfirmed {
            client: self,
            entry: Some(entry),
        };
        let limit = entry.settings.trip_timeout;
        let mut trip = pin!(trips::give_back(self, entry, limit));
        let answer = match poll_fn(|cx| Poll::Ready(trip.as_mut().poll(cx))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                // It is on its way, and what the next local task sends comes behind it.
                if self.backend.sends_in_order() {
                    self.ledger.pass_turn(entry);
                }
                trip.await
            }
        };
        match answer {
            Ok(found) => {
                unconfirmed.entry = None;
                let confirmed = self.ledger.release_confirmed(entry);
                match found {
                    Released::AlreadyLost if confirmed => {
                        self.ledger.count(LossReason::Gone.into(), entry);
                        Ok(Released::AlreadyLost)
                    }
                    // A room has taken over meanwhile, because nobody drove this future: it may be the one that freed it.
                    Released::AlreadyLost => Ok(Released::Unknown),
                    _ => {
                        self.ledger.count(Event::Released, entry);
                        Ok(Released::Freed)
                    }
                }
            }
            Err(error) => {
                let name = entry.name();
                tracing::debug!(%name, %error, "release not confirmed yet");
                unconfirmed.entry = None;
                let now = self.clock.now();
                self.ledger
                    .release_unconfirmed(entry, self, now, Some(&error));
                if error.is_retryable() {
                    return Ok(Released::Unknown);
                }
                // The store did nothing, so the lock is where it was.
                let error = match error.held_now() {
                    HeldNow::No => error.with_held(HeldNow::Yes),
                    _ => error,
                };
                Err(self.with_context(error, Operation::Release, &name))
            }
        }
    }

    /// Asks the store for a downgrade, which counts for the guard from now on.
    pub(crate) async fn downgrade(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<()> {
        in_runtime()?;
        if !self.ledger.downgrading(entry) {
            return Err(one_writer_alone());
        }
        trips::settle_downgrade(self, entry).await
    }

    /// Renews a hold now; whether the store has confirmed.
    pub(crate) async fn renew_now(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<bool> {
        in_runtime()?;
        self.ensure_rooms();
        match self.ledger.take_renewal(entry, self.clock.now()) {
            Some(work) => Ok(trips::renew(self.clone(), vec![work]).await == 1),
            // It has no lease, or is over, which the caller sees.
            None => Ok(true),
        }
    }

    /// Resolves when somebody else waits for a hold: of another client, as the store says, at once or with the next renewal
    /// (C23). Never where the store cannot tell.
    pub(crate) async fn others_wait(&self, entry: &Entry) {
        let (Some(lease), settings) = (entry.lease(), &entry.settings) else {
            return std::future::pending().await;
        };
        if in_runtime().is_err() {
            // No timers, no trips.
            return std::future::pending().await;
        }
        let asks = async {
            let interval = settings.renew_every.unwrap_or(settings.lease / 3);
            loop {
                self.clock.sleep_until(self.clock.now() + interval).await;
                let asked = async { Ok(self.backend.others_wait(lease.name()).await) };
                // A "no" is no proof, since a question that failed may be told as one: only a "yes" counts.
                if let Ok(true) = self.trip(settings.trip_timeout, asked).await {
                    return;
                }
            }
        };
        match self.backend.capabilities().wanted {
            Hearing::Never => std::future::pending().await,
            Hearing::Asks => asks.await,
            // A word can be lost.
            Hearing::Told { .. } => tokio::select! {
                biased;
                () = self.backend.wanted(&lease) => {}
                () = asks => {}
            },
        }
    }

    /// A hold that rests goes back to the store, for a task that can wait no longer than a trip.
    ///
    /// # Errors
    ///
    /// When the store does not answer in time.
    pub(crate) async fn end_rest(&self, entry: &Arc<Entry>) -> Result<()> {
        self.ledger.end_rest(entry, self.clock.now());
        let given_back = async {
            self.ledger.given_back(entry).await;
            Ok(())
        };
        self.trip(entry.settings.trip_timeout, given_back).await
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
    pub(crate) async fn query<T>(
        &self,
        settings: &ResolvedSettings,
        operation: Operation,
        trip: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.answer(operation, self.trip(settings.trip_timeout, trip))
            .await
    }

    /// The same, for as long as the backend takes: it bounds its trips by itself.
    pub(crate) async fn answer<T>(
        &self,
        operation: Operation,
        trips: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        in_runtime()?;
        trips
            .await
            .map_err(|error| error.context(self.backend_name(), operation, None))
    }

    pub(crate) fn with_context(&self, error: Error, operation: Operation, name: &Name) -> Error {
        error.context(self.backend_name(), operation, Some(name))
    }

    /// Gives everything back, waits until nothing is left in doubt, and closes the backend. A call that was cut off or came to
    /// nothing is finished by the next.
    pub(crate) async fn close(self: &Arc<Self>, settings: &ResolvedSettings) -> Result<()> {
        in_runtime()?;
        self.ensure_rooms();
        for entry in self.ledger.close() {
            self.lose(&entry, LossReason::Closed);
        }
        let mut closed = self.closed.lock().await;
        if *closed {
            return Ok(());
        }
        let patience = settings
            .retry_unreachable_for
            .saturating_add(settings.trip_timeout);
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
        let ended = self.trip(settings.trip_timeout, self.backend.close()).await;
        *closed = quiet.is_ok() && ended.is_ok();
        quiet
            .and(ended)
            .map_err(|error| error.context(self.backend_name(), Operation::Close, None))
    }
}

/// Why a hold that is not good any more was lost.
pub(crate) fn reason_of(entry: &Entry) -> LossReason {
    match entry.ending() {
        Ending::Lost(reason) => reason,
        _ => LossReason::Expired,
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The rooms wait without keeping the client alive; they look, find it gone, and end (C16).
        self.ledger.ring_all();
    }
}

/// A release under way: a room takes it over if the future is dropped.
struct Unconfirmed<'a> {
    client: &'a Arc<Client>,
    entry: Option<&'a Arc<Entry>>,
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            let now = self.client.clock.now();
            self.client
                .ledger
                .release_unconfirmed(entry, self.client, now, None);
        }
    }
}

/// A downgrade makes a reader of one writer, and there are more.
pub(crate) fn one_writer_alone() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "only the single hold of a writer can be downgraded: release the other guards of this owner first",
    )
}
