//! What all handles of one client share, and what they ask of the store.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Ending, Entry};
use super::keep_alive::Finish;
use super::ledger::Ledger;
use super::queue::Queue;
use super::rooms::Rooms;
use super::trip_time::TripTime;
use crate::backend::{Backend, Hearing};
use crate::kit::polling;
use crate::lock::settings::ResolvedSettings;
use crate::runtime::in_runtime;
use crate::{Clock, Error, ErrorKind, HeldNow, LossReason, Name, Operation, Result};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) queue: Arc<Queue<Entry>>,
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

    /// Resolves when somebody else waits for a hold: of another client, as the store says, at once or with the next renewal
    /// ([C23](crate::contract#c23)). Never where the store cannot tell.
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
            // The store's message can be lost, so it is asked as well, as often as a lease is renewed.
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
            () = self.clock.sleep_until(until) => Err(polling::no_answer(limit)),
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

impl Finish for Client {
    fn can_finish(&self) -> bool {
        self.rooms.can_finish()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The rooms wait without keeping the client alive; they look, find it gone, and end (C16).
        self.ledger.ring_all();
    }
}

/// A downgrade makes a reader of one writer, and there are more.
pub(crate) fn one_writer_alone() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "only the single hold of a writer can be downgraded: release the other guards of this owner first",
    )
}
