//! The walk of one acquire: local queue, ledger, store, guard.

use std::sync::Arc;

use super::entry::Entry;
use super::ledger::closed;
use super::queue::{Company, Entered, Inherits, PastTheLine, Turn, Waited};
use super::spec::{LockSpec, Patience};
use crate::backend::{Fairness, Hearing, WakeUp, random_between};
use crate::kit::polling;
use crate::lock::guard::Guard;
use crate::runtime::in_runtime;
use crate::{Error, HeldNow, Mode, Moment, Order, Owner, Result};

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
    Go(Option<Turn<Entry>>),
    /// To ask the store without a turn, and to wait there.
    GoPast(PastTheLine<Entry>),
    /// Another task of this client has passed its hold on.
    Held(Guard),
    /// The hold that rested was no longer good, and goes back to the store.
    Again,
    Busy,
}

impl Acquire<'_> {
    pub(super) async fn walk(&self) -> Result<Option<Guard>> {
        let LockSpec {
            client,
            name,
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
        let (Some(owner), false) = (owner, self.patience == Patience::Try) else {
            return self.get_in(owner).await;
        };
        // Wherever this task waits, in the local line or at the store: what another task of its owner gets is its own too.
        let meanwhile = async {
            let ledger = &client.ledger;
            let entry = ledger
                .owner_gets_in(owner, name, *mode, client.clock.as_ref())
                .await;
            Guard::new(client.clone(), entry, true)
        };
        tokio::select! {
            biased;
            got = self.get_in(Some(owner)) => got,
            guard = meanwhile => Ok(Some(guard)),
        }
    }

    /// Waits for the local turn, then for the store.
    async fn get_in(&self, owner: Option<Owner>) -> Result<Option<Guard>> {
        let mut past_the_line = None;
        if self.spec.settings.order == Order::Strict {
            // From before the look for a hold that rests, so that none begins to rest before this task.
            past_the_line = Some(self.goes_past_the_line());
        }
        let turn = loop {
            match self.admission(owner).await? {
                Admission::Go(turn) => break turn,
                Admission::GoPast(past) => {
                    past_the_line = Some(past);
                    break None;
                }
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
        let guard = self.ask_the_store(turn, owner).await;
        drop(past_the_line);
        guard
    }

    /// This task asks the store without a turn: no hold rests while it does.
    fn goes_past_the_line(&self) -> PastTheLine<Entry> {
        let LockSpec {
            client, name, mode, ..
        } = self.spec;
        let waits = self.patience != Patience::Try;
        client
            .queue
            .past_the_line(name, Company::from(*mode), waits)
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

    pub(super) fn now(&self) -> Moment {
        self.spec.client.clock.now()
    }

    /// Whether tasks with the same settings would ask the store for the same: the label is part of it.
    pub(super) fn passes_on(&self) -> bool {
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
            Some(Waited::Held(guard)) => {
                guard.take_up();
                return Ok(Admission::Held(guard));
            }
            // From before it leaves the line, which it does when this returns.
            Some(Waited::Alone) => return Ok(Admission::GoPast(self.goes_past_the_line())),
            None => {}
        }
        if waiter.is_contended(self.now(), settings.trip_timeout) {
            Ok(Admission::Busy)
        } else {
            // This task only stood in the local line and sent no request of its own, so it cannot hold the lock.
            Err(self.unanswered().with_held(HeldNow::No))
        }
    }

    /// A store without a queue cannot make the tasks of one client take turns with other clients: they do it here.
    pub(super) async fn let_others_go_first(&self, turn: Option<&Turn<Entry>>) {
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
    pub(super) async fn at(&self, moment: Option<Moment>) {
        match moment {
            Some(moment) => self.spec.client.clock.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn unanswered(&self) -> Error {
        let limit = match self.patience {
            Patience::Within(limit) => limit,
            _ => self.spec.settings.trip_timeout,
        };
        polling::no_answer(limit)
    }
}
