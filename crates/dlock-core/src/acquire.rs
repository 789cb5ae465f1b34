//! The walk of one acquire: local queue, ledger, store, guard.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::backoff::{Backoff, random_between};
use crate::client::{Client, in_runtime};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::ledger::closed;
use crate::queue::Turn;
use crate::settings::Checked;
use crate::stats::Event;
use crate::{
    Attempt, Error, ErrorKind, Fairness, HeldNow, Lease, LockInfo, Mode, Moment, Name, Operation,
    Order, Owner, Request, Result, WakeUp, wait,
};

/// A backend that ends its wait at the deadline by itself leaves nothing to undo: it gets this much longer.
const GRACE: Duration = Duration::from_millis(50);
const SHORTEST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// How long the caller is ready to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Try,
    Within(Duration),
    Forever,
}

/// What a lock handle is made of: everything but the moment.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) client: Arc<Client>,
    pub(crate) settings: Arc<Checked>,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<Owner>,
}

impl Ask {
    /// The same lock in another mode.
    pub(crate) fn with_mode(&self, mode: Mode) -> Self {
        Self {
            mode,
            ..self.clone()
        }
    }

    pub(crate) async fn try_now(&self) -> Result<Option<Guard>> {
        self.acquire(Patience::Try, &self.settings.label).await
    }

    pub(crate) async fn within(&self, limit: Duration) -> Result<Option<Guard>> {
        let patience = if limit.is_zero() {
            Patience::Try
        } else {
            Patience::Within(limit)
        };
        self.acquire(patience, &self.settings.label).await
    }

    pub(crate) async fn wait(&self) -> Result<Guard> {
        self.wait_as(&self.settings.label).await
    }

    /// Waits as long as the settings allow, with a label of its own.
    pub(crate) async fn wait_as(&self, label: &Arc<str>) -> Result<Guard> {
        let patience = match self.settings.wait_at_most {
            Some(limit) => Patience::Within(limit),
            None => Patience::Forever,
        };
        let guard = self.acquire(patience, label).await?;
        guard.ok_or_else(|| {
            let limit = self.settings.wait_at_most.unwrap_or_default();
            let error = Error::new(
                ErrorKind::Busy,
                format!("still held by others after {limit:?}: try later, or wait longer"),
            );
            self.explain(error)
        })
    }

    async fn acquire(&self, patience: Patience, label: &Arc<str>) -> Result<Option<Guard>> {
        let span = tracing::debug_span!(
            "dlock_acquire", name = %self.name, mode = %self.mode, backend = self.client.backend_name()
        );
        let started = self.client.clock.now();
        let mut counted = Counted {
            client: &self.client,
            event: Event::Cancelled,
        };
        let outcome = Walk {
            ask: self,
            label,
            patience,
            deadline: match patience {
                Patience::Within(limit) => Some(started + limit),
                _ => None,
            },
        }
        .walk()
        .instrument(span)
        .await;
        counted.event = match &outcome {
            Ok(Some(guard)) if guard.is_reentry() => Event::Reentered,
            Ok(Some(_)) => {
                let waited = self.client.clock.now().since(started);
                self.client.stats.waited(waited);
                Event::Acquired
            }
            Ok(None) if patience == Patience::Try => Event::Busy,
            Ok(None) => Event::TimedOut,
            Err(_) => Event::Failed,
        };
        outcome.map_err(|error| self.explain(error))
    }

    /// Who holds and who waits.
    pub(crate) async fn inspect(&self) -> Result<LockInfo> {
        self.client
            .question(
                &self.settings,
                Operation::Inspect,
                self.client.backend.inspect(&self.name),
            )
            .await
    }

    fn explain(&self, error: Error) -> Error {
        self.client.explain(error, Operation::Acquire, &self.name)
    }
}

/// Counts every acquire once, also one whose future was dropped.
struct Counted<'a> {
    client: &'a Client,
    event: Event,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.client.stats.count(self.event);
    }
}

struct Walk<'a> {
    ask: &'a Ask,
    label: &'a Arc<str>,
    patience: Patience,
    deadline: Option<Moment>,
}

enum Admission {
    Go(Option<Turn>),
    Busy,
}

enum Answer {
    Held(Lease),
    Busy,
    Elapsed,
    Failed(Error),
}

impl Walk<'_> {
    async fn walk(&self) -> Result<Option<Guard>> {
        let Ask {
            client,
            name,
            mode,
            owner,
            ..
        } = self.ask;
        in_runtime()?;
        client.backend.capabilities().require_mode(*mode)?;
        let owner = match mode {
            Mode::Permit { .. } => None,
            _ => owner.or_else(Owner::current),
        };
        if let Some(owner) = owner
            && let Some(hold) = client.ledger.reenter(owner, name, *mode, self.now())?
        {
            return Ok(Some(Guard::new(client.clone(), hold, true)));
        }
        let turn = match self.admission().await? {
            Admission::Go(turn) => turn,
            Admission::Busy => return Ok(None),
        };
        self.ask_the_store(turn, owner).await
    }

    fn now(&self) -> Moment {
        self.ask.client.clock.now()
    }

    /// Waits for this client's turn, so that one task for each name talks to the store.
    async fn admission(&self) -> Result<Admission> {
        let Ask {
            client,
            name,
            settings,
            ..
        } = self.ask;
        if settings.order == Order::Strict {
            return Ok(Admission::Go(None));
        }
        if let Some(turn) = client.queue.try_enter(name) {
            return Ok(Admission::Go(Some(turn)));
        }
        if self.patience == Patience::Try {
            // The turn may belong to a task that waits; a try asks the store itself, unless it is certain to be in vain.
            return Ok(if client.queue.is_held(name, self.now()) {
                Admission::Busy
            } else {
                Admission::Go(None)
            });
        }
        let mut waiter = match client.queue.enter(name) {
            Ok(turn) => return Ok(Admission::Go(Some(turn))),
            Err(waiter) => waiter,
        };
        tokio::select! {
            biased;
            turn = waiter.turn() => return Ok(Admission::Go(Some(turn))),
            () = self.at(self.deadline) => {}
            () = client.ledger.closed() => return Err(closed()),
        }
        if waiter.is_contended(self.now(), settings.trip_timeout) {
            Ok(Admission::Busy)
        } else {
            Err(self.unanswered())
        }
    }

    async fn ask_the_store(
        &self,
        turn: Option<Turn>,
        owner: Option<Owner>,
    ) -> Result<Option<Guard>> {
        let settings = &self.ask.settings;
        self.let_others_go_first(turn.as_ref()).await;
        let mut backoff = Backoff::new(SHORTEST_RETRY, LONGEST_RETRY);
        let mut trouble_since = None;
        let mut in_doubt = false;
        loop {
            let request = self.request();
            if let Some(turn) = &turn {
                turn.asks(&request);
            }
            let doubt = Doubt::begin(&self.ask.client, &request)?;
            let error = match self.attempt(&request).await {
                Answer::Held(lease) => match self.check(&lease) {
                    Ok(()) => {
                        let hold = doubt.settle(lease, settings.clone(), owner, turn)?;
                        return Ok(Some(Guard::new(self.ask.client.clone(), hold, false)));
                    }
                    Err(too_late) => {
                        in_doubt = true;
                        too_late
                    }
                },
                Answer::Busy => {
                    doubt.strike();
                    turn.iter().for_each(Turn::answered);
                    return Ok(None);
                }
                Answer::Elapsed if request.is_contended() => {
                    turn.iter().for_each(Turn::answered);
                    return Ok(None);
                }
                Answer::Elapsed => return Err(self.unanswered()),
                Answer::Failed(error) => {
                    if error.held_now() != HeldNow::No {
                        in_doubt = true;
                        error
                    } else {
                        doubt.strike();
                        // An earlier attempt of this call may be held, until the reaper has undone it.
                        if in_doubt {
                            error.with_held(HeldNow::Unknown)
                        } else {
                            error
                        }
                    }
                }
            };
            turn.iter().for_each(Turn::failed);
            if self.patience == Patience::Try || !error.is_retryable() {
                return Err(error);
            }
            let now = self.now();
            if request.is_contended() {
                // It had answered in between: this is new trouble.
                trouble_since = None;
                backoff.reset();
            }
            let gives_up = *trouble_since.get_or_insert(now) + settings.outage;
            let again = now + backoff.pause();
            if again >= gives_up.min(self.deadline.unwrap_or(Moment::NEVER)) {
                return Err(error);
            }
            tracing::debug!(%error, "the store is in trouble, trying again");
            self.ask.client.clock.sleep_until(again).await;
        }
    }

    fn request(&self) -> Arc<Request> {
        let ask = self.ask;
        let request = Request::new(ask.name.clone(), ask.mode, ask.client.clock.clone())
            .with_lease(ask.settings.lease)
            .with_trip_timeout(ask.settings.trip_timeout)
            .with_deadline(self.deadline)
            .with_label(self.label.clone());
        Arc::new(request)
    }

    async fn attempt(&self, request: &Request) -> Answer {
        let client = &self.ask.client;
        let answer = async {
            match self.patience {
                Patience::Try => wait::one_trip(client.backend.as_ref(), request).await,
                _ => client.backend.acquire(request).await,
            }
        };
        tokio::select! {
            biased;
            answer = answer => match answer {
                Ok(Attempt::Held(lease)) => Answer::Held(lease),
                Ok(Attempt::Busy(_)) => Answer::Busy,
                Err(error) => Answer::Failed(error),
            },
            () = self.at(self.deadline.map(|deadline| deadline + GRACE)) => Answer::Elapsed,
            () = client.ledger.closed() => Answer::Failed(closed().with_held(HeldNow::Unknown)),
        }
    }

    /// A grant that comes back when its validity has passed is a failure (C7).
    fn check(&self, lease: &Lease) -> Result<()> {
        let Some(validity) = self.ask.settings.validity else {
            return Ok(());
        };
        if self.now() < lease.from() + validity {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLate,
            format!(
                "the store took longer to answer than the lease of {:?} lasts: use a longer lease, or look why it is slow",
                self.ask.settings.lease
            ),
        ))
    }

    /// A store without a queue cannot make the tasks of one client take turns with other clients: they do it here.
    async fn let_others_go_first(&self, turn: Option<&Turn>) {
        let capabilities = self.ask.client.backend.capabilities();
        let passed = turn.map_or(0, Turn::passed);
        if capabilities.fairness != Fairness::None
            || passed == 0
            || !passed.is_multiple_of(self.ask.settings.local_turns)
        {
            return;
        }
        let WakeUp::Poll { longest } = capabilities.wake_up else {
            return;
        };
        let trip = self.now() + self.ask.settings.trip_timeout;
        let others_wait = tokio::select! {
            biased;
            others_wait = self.ask.client.backend.others_wait(&self.ask.name) => others_wait,
            () = self.at(Some(trip.min(self.deadline.unwrap_or(Moment::NEVER)))) => true,
        };
        if others_wait {
            let until = self.now() + random_between(longest / 2, longest);
            let until = until.min(self.deadline.unwrap_or(Moment::NEVER));
            self.ask.client.clock.sleep_until(until).await;
        }
    }

    /// Resolves at a moment; never when there is none.
    async fn at(&self, moment: Option<Moment>) {
        match moment {
            Some(moment) => self.ask.client.clock.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }

    fn unanswered(&self) -> Error {
        let limit = match self.patience {
            Patience::Within(limit) => limit,
            _ => self.ask.settings.trip_timeout,
        };
        wait::no_answer(limit)
    }
}

/// An attempt whose outcome is not known. Whatever ends it without a word leaves it to the reaper (C13, C15).
struct Doubt<'a> {
    client: &'a Arc<Client>,
    request: Option<Arc<Request>>,
}

impl<'a> Doubt<'a> {
    fn begin(client: &'a Arc<Client>, request: &Arc<Request>) -> Result<Self> {
        client.ledger.begin()?;
        Ok(Self {
            client,
            request: Some(request.clone()),
        })
    }

    /// Nothing was taken.
    fn strike(mut self) {
        if self.request.take().is_some() {
            self.client.ledger.strike();
        }
    }

    /// It is held; there is no await between the store's word and the guard. If the client was closed before, it stays in doubt.
    fn settle(
        mut self,
        lease: Lease,
        settings: Arc<Checked>,
        owner: Option<Owner>,
        turn: Option<Turn>,
    ) -> Result<Arc<Hold>> {
        let now = self.client.clock.now();
        let name = lease.name().clone();
        let keeps_turn = lease.mode() == Mode::Exclusive;
        let (kept, passed_on) = if keeps_turn {
            (turn, None)
        } else {
            (None, turn)
        };
        let has_turn = kept.is_some();
        let make = |id| Hold::new(id, lease, settings, owner, kept, now);
        let Some(hold) = self.client.ledger.held(make, &name) else {
            return Err(closed().with_held(HeldNow::Unknown));
        };
        self.request = None;
        if has_turn {
            self.client.queue.held_by(&name, &hold);
        }
        drop(passed_on);
        self.client.ensure_tasks();
        Ok(hold)
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.client.undo_attempt(request);
            self.client.ledger.strike();
        }
    }
}
