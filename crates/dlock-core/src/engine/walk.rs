//! The walk of one acquire: local queue, ledger, store, guard.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{LockSpec, Patience};
use super::client::{Client, in_runtime};
use super::entry::Entry;
use super::ledger::{Asker, closed};
use super::queue::{Company, Entered, Inherits, Turn, Waited};
use crate::backend::{
    Backoff, Fairness, Hearing, Lease, Outcome, Request, WakeUp, random_between, wait,
};
use crate::lock::guard::Guard;
use crate::{Error, ErrorKind, HeldNow, Mode, Moment, Order, Owner, Result};

/// A backend that ends its wait at the deadline by itself leaves nothing to undo: it gets this much longer.
const GRACE: Duration = Duration::from_millis(50);
const SHORTEST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// One acquire on its way.
pub(super) struct Acquire<'a> {
    pub(super) spec: &'a LockSpec,
    pub(super) label: &'a Arc<str>,
    pub(super) patience: Patience,
    pub(super) started: Moment,
    pub(super) deadline: Option<Moment>,
    /// The span of the caller, by which it is known when somebody waits for the hold for long.
    pub(super) asked_in: Option<&'static str>,
}

enum Admission {
    Go(Option<Turn>),
    /// Another task of this client has passed its hold on.
    Held(Guard),
    /// The hold that rested was no longer good, and goes back to the store.
    Again,
    Busy,
}

/// How one attempt ended.
enum AttemptEnd {
    Held(Arc<Entry>),
    Busy,
    /// The deadline passed without an answer.
    Elapsed,
    Failed {
        error: Error,
        /// The store had answered in between, so this is new trouble.
        answered: bool,
    },
}

impl Acquire<'_> {
    pub(super) async fn walk(&self) -> Result<Option<Guard>> {
        let LockSpec {
            client,
            mode,
            owner,
            ..
        } = self.spec;
        in_runtime()?;
        client.backend.capabilities().require_mode(*mode)?;
        client.ensure_rooms();
        let owner = match mode {
            Mode::Exclusive | Mode::Shared => owner.or_else(Owner::current),
            _ => None,
        };
        if let Some(guard) = self.reenter(owner)? {
            return Ok(Some(guard));
        }
        if let Some(guard) = self.join(owner) {
            return Ok(Some(guard));
        }
        // From before the look for a hold that rests, so that none begins to rest before this task.
        let _waits_at_the_store = (self.spec.settings.order == Order::Strict)
            .then(|| client.queue.strict(&self.spec.name));
        let turn = loop {
            match self.admission(owner).await? {
                Admission::Go(turn) => break turn,
                Admission::Held(guard) if guard.is_held() => return Ok(Some(guard)),
                // It came when this task could not run, and its time has passed since (C7).
                Admission::Held(late) => drop(late),
                Admission::Again => {}
                Admission::Busy => return Ok(None),
            }
        };
        // Another task of the same owner, or another reader, may have got in meanwhile.
        if let Some(guard) = self.reenter(owner)? {
            return Ok(Some(guard));
        }
        if let Some(guard) = self.join(owner) {
            return Ok(Some(guard));
        }
        self.ask_the_store(turn, owner).await
    }

    fn reenter(&self, owner: Option<Owner>) -> Result<Option<Guard>> {
        let LockSpec {
            client, name, mode, ..
        } = self.spec;
        let Some(owner) = owner else {
            return Ok(None);
        };
        let entry = client.ledger.reenter(owner, name, *mode, self.now())?;
        Ok(entry.map(|entry| Guard::new(client.clone(), entry, true)))
    }

    /// Whether this is a reader that may join a hold of its client.
    fn joins(&self, owner: Option<Owner>) -> bool {
        let LockSpec { settings, mode, .. } = self.spec;
        settings.readers_in_a_hold > 1
            && *mode == Mode::Shared
            && owner.is_none()
            && self.passes_on()
    }

    fn join(&self, owner: Option<Owner>) -> Option<Guard> {
        let LockSpec {
            client,
            name,
            settings,
            ..
        } = self.spec;
        if !self.joins(owner) || !client.queue.readers_may_join(name) {
            return None;
        }
        let now = self.now();
        let entry = client.ledger.join(name, settings, now)?;
        Some(Guard::joined(client.clone(), entry, now))
    }

    /// A hold that rests is this task's, if it is still good.
    fn resume(&self, entry: &Arc<Entry>, heir: &Inherits) -> Option<Guard> {
        let client = &self.spec.client;
        let resumed = client.ledger.resume(entry, heir, self.now());
        resumed.then(|| Guard::new(client.clone(), entry.clone(), false))
    }

    fn now(&self) -> Moment {
        self.spec.client.clock.now()
    }

    /// Whether tasks with the same settings would ask the store for the same: the label is part of it.
    fn passes_on(&self) -> bool {
        Arc::ptr_eq(self.label, &self.spec.settings.label)
    }

    /// Waits for this client's turn, so that one task for each name talks to the store, or those that can hold it together.
    async fn admission(&self, owner: Option<Owner>) -> Result<Admission> {
        let LockSpec {
            client,
            name,
            settings,
            mode,
            ..
        } = self.spec;
        if settings.order == Order::Strict {
            if let Some(resting) = client.queue.resting(name) {
                tokio::select! {
                    biased;
                    // If the store does not answer, the task hears it from the store itself.
                    _ = client.end_rest(&resting) => {}
                    () = self.at(self.deadline) => return Err(self.unanswered().with_held(HeldNow::No)),
                    () = client.ledger.closed() => return Err(closed()),
                }
            }
            return Ok(Admission::Go(None));
        }
        let company = Company::from(*mode);
        let inherits = (company == Company::Alone && self.passes_on()).then(|| Inherits {
            settings: settings.clone(),
            owner,
            span: self.asked_in,
        });
        if self.patience == Patience::Try {
            if let Some(resting) = client.queue.resting(name) {
                let heir = inherits.filter(|heir| Arc::ptr_eq(&heir.settings, &resting.settings));
                if let Some(guard) = heir.and_then(|heir| self.resume(&resting, &heir)) {
                    return Ok(Admission::Held(guard));
                }
                client.end_rest(&resting).await?;
            }
            if let Some(turn) = client.queue.try_enter(name, company) {
                return Ok(Admission::Go(Some(turn)));
            }
            // The turn may belong to a task that waits; a try asks the store itself, unless it is certain to be in vain.
            return Ok(match client.queue.holder(name, self.now()) {
                Some(_) => Admission::Busy,
                None => Admission::Go(None),
            });
        }
        let entered = client.queue.enter(
            name,
            company,
            settings.retry_unreachable_for,
            inherits.clone(),
            self.joins(owner),
            self.started,
        );
        let mut waiter = match entered {
            Entered::Turn(turn) => return Ok(Admission::Go(Some(turn))),
            Entered::Resting(entry) => {
                let guard = inherits.and_then(|heir| self.resume(&entry, &heir));
                return Ok(guard.map_or(Admission::Again, Admission::Held));
            }
            Entered::Waiter(waiter, resting) => {
                if let Some(entry) = resting {
                    client.ledger.end_rest(&entry, self.now());
                }
                waiter
            }
        };
        let is_first = waiter.is_first;
        let joins = self.joins(owner);
        // One that waits to join asks for itself when the one that asks goes nowhere: its future may not be polled.
        let mut alone_at = joins.then(|| self.now() + settings.trip_timeout);
        let turn = async {
            loop {
                tokio::select! {
                    biased;
                    turn = waiter.turn() => return turn.map(Some),
                    () = self.at(self.deadline) => return Ok(None),
                    () = client.ledger.closed() => return Err(closed()),
                    () = self.at(alone_at) => {}
                }
                if waiter.could_ask_beside() {
                    return Ok(Some(Waited::Alone));
                }
                alone_at = Some(self.now() + settings.trip_timeout);
            }
        };
        let turn = if is_first {
            self.spec.tell_when_long(turn).await?
        } else {
            turn.await?
        };
        match turn {
            Some(Waited::Turn(turn)) => return Ok(Admission::Go(Some(turn))),
            Some(Waited::Held(guard)) => return Ok(Admission::Held(guard)),
            Some(Waited::Alone) => return Ok(Admission::Go(None)),
            None => {}
        }
        if waiter.is_contended(self.now(), settings.trip_timeout) {
            Ok(Admission::Busy)
        } else {
            // It has asked nothing itself.
            Err(self.unanswered().with_held(HeldNow::No))
        }
    }

    /// Asks until the lock is held or the caller's patience, or the one with the store, is at its end.
    async fn ask_the_store(
        &self,
        mut turn: Option<Turn>,
        owner: Option<Owner>,
    ) -> Result<Option<Guard>> {
        let LockSpec {
            client, settings, ..
        } = self.spec;
        self.let_others_go_first(turn.as_ref()).await;
        let mut backoff = Backoff::new(SHORTEST_RETRY, LONGEST_RETRY);
        // Of this call, where there is no line that knows it.
        let mut trouble_since = None;
        let mut in_doubt = false;
        loop {
            let (error, answered) = match self.attempt(&mut turn, owner).await {
                AttemptEnd::Held(entry) => {
                    return Ok(Some(Guard::new(client.clone(), entry, false)));
                }
                AttemptEnd::Busy => return Ok(None),
                AttemptEnd::Elapsed => {
                    let (now, trip) = (self.now(), settings.trip_timeout);
                    return match &turn {
                        Some(turn) if turn.says_busy(self.started, now, trip) => Ok(None),
                        _ => Err(self.unanswered()),
                    };
                }
                AttemptEnd::Failed { error, answered } => (error, answered),
            };
            // An earlier attempt of this call may be held, until it was undone.
            in_doubt |= error.held_now() != HeldNow::No;
            let error = match error.kind() {
                // Undone by us: that is what the kind says.
                ErrorKind::TooLate => error,
                _ if in_doubt => error.with_held(HeldNow::Unknown),
                _ => error,
            };
            in_doubt |= error.kind() == ErrorKind::TooLate;
            let now = self.now();
            if answered {
                trouble_since = None;
                backoff.reset();
                turn.iter().for_each(|turn| turn.busy(now));
            }
            if !error.is_retryable() {
                // It is about this request alone, and no trouble of the store's.
                return Err(error);
            }
            let since = match &turn {
                Some(turn) => turn.failed(&error, now),
                None => *trouble_since.get_or_insert(now),
            };
            if self.patience == Patience::Try {
                return Err(error);
            }
            let gives_up = since + settings.retry_unreachable_for;
            let again = now + backoff.pause();
            if again >= gives_up.min(self.deadline.unwrap_or(Moment::NEVER)) {
                return Err(self.give_up(turn.as_ref(), error, since));
            }
            tracing::debug!(%error, "the store is in trouble, trying again");
            client.clock.sleep_until(again).await;
        }
    }

    /// The patience with the store is at its end, also for those in the line who wait as long.
    fn give_up(&self, turn: Option<&Turn>, error: Error, since: Moment) -> Error {
        let end = since + self.spec.settings.retry_unreachable_for;
        if let Some(turn) = turn
            && self.deadline.is_none_or(|deadline| deadline > end)
        {
            turn.failed(&error, end);
        }
        error
    }

    /// One attempt with an id of its own. Whatever is in doubt when this returns, or is dropped, is already being undone.
    async fn attempt(&self, turn: &mut Option<Turn>, owner: Option<Owner>) -> AttemptEnd {
        let LockSpec {
            client, settings, ..
        } = self.spec;
        if let Some(outcome) = self.wait_for_earlier_doubt().await {
            return outcome;
        }
        let request = self.request();
        if let Some(turn) = turn {
            turn.asks(&request);
        }
        let asker = Asker {
            settings: settings.clone(),
            owner,
            span: self.asked_in,
            passes_on: self.passes_on(),
        };
        let mut asking = match client.ledger.ask(asker, request.clone()) {
            Ok(entry) => Asking {
                client,
                entry: Some(entry),
            },
            Err(error) => {
                return AttemptEnd::Failed {
                    error,
                    answered: false,
                };
            }
        };
        let failed = |error| AttemptEnd::Failed {
            error,
            answered: request.is_contended(),
        };
        match self.answer(&request).await {
            Some(Ok(Outcome::Held(lease))) => match self.check(&lease) {
                Ok(()) => match asking.granted(lease, turn) {
                    Ok(entry) => AttemptEnd::Held(entry),
                    Err(error) => failed(error),
                },
                Err(too_late) => failed(too_late),
            },
            Some(Ok(_)) => {
                asking.nothing_taken();
                turn.iter().for_each(|turn| turn.busy(self.now()));
                AttemptEnd::Busy
            }
            Some(Err(error)) => {
                if error.held_now() == HeldNow::No {
                    asking.nothing_taken();
                }
                failed(error)
            }
            None if request.is_contended() => {
                turn.iter().for_each(|turn| turn.busy(self.now()));
                AttemptEnd::Busy
            }
            None => AttemptEnd::Elapsed,
        }
    }

    /// What an earlier attempt of this client may hold is undone first: the new one would wait for it, and tries on a store that
    /// hangs would pile up.
    ///
    /// `None` when there is none left; else what came instead.
    async fn wait_for_earlier_doubt(&self) -> Option<AttemptEnd> {
        let LockSpec {
            client,
            name,
            settings,
            ..
        } = self.spec;
        if !client.ledger.is_in_doubt(name) {
            return None;
        }
        let limit = self.now() + settings.trip_timeout;
        let failed = |error| {
            Some(AttemptEnd::Failed {
                error,
                answered: false,
            })
        };
        tokio::select! {
            biased;
            undone = client.ledger.no_doubt(name, self.now()) => undone.err().and_then(failed),
            () = client.ledger.closed() => failed(closed().with_held(HeldNow::Unknown)),
            () = self.at(self.deadline) => Some(AttemptEnd::Elapsed),
            () = client.clock.sleep_until(limit) => failed(wait::no_answer(settings.trip_timeout)),
        }
    }

    fn request(&self) -> Arc<Request> {
        let spec = self.spec;
        let request = Request::new(spec.name.clone(), spec.mode, spec.client.clock.clone())
            .with_lease(spec.settings.lease)
            .with_renewal_limit(spec.settings.renewal_limit())
            .with_trip_timeout(spec.settings.trip_timeout)
            .with_deadline(self.deadline)
            .with_label(self.label.clone());
        Arc::new(request)
    }

    /// The store's answer; `None` when the deadline has passed without one.
    async fn answer(&self, request: &Request) -> Option<Result<Outcome>> {
        let client = &self.spec.client;
        let answer = async {
            match self.patience {
                Patience::Try => wait::one_trip(client.backend.as_ref(), request).await,
                _ => {
                    let acquire = client.backend.acquire(request);
                    self.spec.tell_when_long(acquire).await
                }
            }
        };
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            () = self.at(self.deadline.map(|deadline| deadline + GRACE)) => None,
            () = client.ledger.closed() => Some(Err(closed().with_held(HeldNow::Unknown))),
        }
    }

    /// A grant that comes back when its validity has passed is a failure (C7).
    fn check(&self, lease: &Lease) -> Result<()> {
        let Some(validity) = self.spec.settings.validity else {
            return Ok(());
        };
        if self.now() < lease.counted_from() + validity {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLate,
            format!(
                "the store took longer to answer than the lease of {:?} lasts: use a longer lease, or look why it is slow",
                self.spec.settings.lease
            ),
        ))
    }

    /// A store without a queue cannot make the tasks of one client take turns with other clients: they do it here.
    async fn let_others_go_first(&self, turn: Option<&Turn>) {
        let capabilities = self.spec.client.backend.capabilities();
        let passed = turn.map_or(0, Turn::passed);
        if capabilities.fairness != Fairness::None
            || passed < self.spec.settings.turns_before_a_pause
        {
            return;
        }
        let WakeUp::Poll { longest } = capabilities.wake_up else {
            return;
        };
        turn.iter().for_each(|turn| turn.counts_anew());
        let trip = self.now() + self.spec.settings.trip_timeout;
        let others_wait = tokio::select! {
            biased;
            // Somebody who waits shows late, for the sake of the store, and an older version not at all: they need the pause too.
            () = std::future::ready(()), if capabilities.wanted == Hearing::Asks => true,
            others_wait = self.spec.client.backend.others_wait(&self.spec.name) => others_wait,
            () = self.at(Some(trip.min(self.deadline.unwrap_or(Moment::NEVER)))) => true,
        };
        if others_wait {
            let until = self.now() + random_between(longest / 2, longest);
            let until = until.min(self.deadline.unwrap_or(Moment::NEVER));
            self.spec.client.clock.sleep_until(until).await;
        }
    }

    /// Resolves at a moment; never when there is none.
    async fn at(&self, moment: Option<Moment>) {
        match moment {
            Some(moment) => self.spec.client.clock.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }

    fn unanswered(&self) -> Error {
        let limit = match self.patience {
            Patience::Within(limit) => limit,
            _ => self.spec.settings.trip_timeout,
        };
        wait::no_answer(limit)
    }
}

/// An entry that specs. Whatever ends it without a word leaves it in doubt (C13, C15).
struct Asking<'a> {
    client: &'a Arc<Client>,
    entry: Option<Arc<Entry>>,
}

impl Asking<'_> {
    fn nothing_taken(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.client.ledger.nothing_taken(&entry);
        }
    }

    /// It is held; there is no await between the store's word and the guard. If the client was closed before, it stays in doubt.
    fn granted(&mut self, lease: Lease, turn: &mut Option<Turn>) -> Result<Arc<Entry>> {
        let Some(entry) = self.entry.take() else {
            return Err(closed());
        };
        let now = self.client.clock.now();
        if let Some(turn) = turn {
            turn.held_by(&entry, now);
        }
        // Those who hold it together do not wait for each other's release.
        let (kept, passed_on) = match lease.mode() {
            Mode::Exclusive => (turn.take(), None),
            _ => (None, turn.take()),
        };
        let granted = self.client.ledger.granted(&entry, lease, kept, now);
        drop(passed_on);
        match granted {
            Ok(()) => Ok(entry),
            Err(error) => {
                self.entry = Some(entry);
                Err(error.with_held(HeldNow::Unknown))
            }
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let now = self.client.clock.now();
            self.client.ledger.in_doubt(&entry, self.client, now);
        }
    }
}
