//! What a walk asks of the store: attempts, one after the other, until one is answered or patience is at its end.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::entry::{Asker, Entry};
use super::ledger::closed;
use super::queue::Turn;
use super::spec::{LockSpec, Patience};
use super::walk::Acquire;
use crate::backend::{Backoff, Lease, Outcome, Request};
use crate::kit::{self, polling};
use crate::lock::guard::Guard;
use crate::{Error, ErrorKind, HeldNow, Mode, Moment, Owner, Result};

/// A backend that ends its wait at the deadline by itself leaves nothing to undo: it gets this much longer.
const GRACE: Duration = Duration::from_millis(50);
const SHORTEST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

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
    /// Asks until the lock is held or the caller's patience, or the one with the store, is at its end.
    pub(super) async fn ask_the_store(
        &self,
        mut turn: Option<Turn<Entry>>,
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
    fn give_up(&self, turn: Option<&Turn<Entry>>, error: Error, since: Moment) -> Error {
        let end = since + self.spec.settings.retry_unreachable_for;
        if let Some(turn) = turn
            && self.deadline.is_none_or(|deadline| deadline > end)
        {
            turn.failed(&error, end);
        }
        error
    }

    /// One attempt with an id of its own. Whatever is in doubt when this returns, or is dropped, is already being undone.
    async fn attempt(&self, turn: &mut Option<Turn<Entry>>, owner: Option<Owner>) -> AttemptEnd {
        let LockSpec {
            client, settings, ..
        } = self.spec;
        if let Some(outcome) = self.wait_for_earlier_doubt().await {
            return outcome;
        }
        let request = self.request();
        let sent = self.now();
        if let Some(turn) = turn {
            turn.asks(&request, sent);
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
        let answer = self.answer(&request).await;
        let now = self.now();
        if matches!(answer, Some(Ok(_))) && !request.is_contended() {
            // A question and its answer: nobody was waited for.
            client.trip_time.took(now.since(sent));
        }
        match answer {
            Some(Ok(Outcome::Held(lease))) => match self.check(&lease, now) {
                Ok(()) => match asking.granted(lease, turn, now) {
                    Ok(entry) => AttemptEnd::Held(entry),
                    Err(error) => failed(error),
                },
                Err(too_late) => failed(too_late),
            },
            Some(Ok(_)) => {
                asking.nothing_taken();
                turn.iter().for_each(|turn| turn.busy(now));
                AttemptEnd::Busy
            }
            Some(Err(error)) => {
                if error.held_now() == HeldNow::No {
                    asking.nothing_taken();
                }
                failed(error)
            }
            None if request.is_contended() => {
                turn.iter().for_each(|turn| turn.busy(now));
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
            () = client.clock.sleep_until(limit) => failed(polling::no_answer(settings.trip_timeout)),
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
                Patience::Try => {
                    let asked = client.backend.try_acquire(request);
                    polling::within_a_trip(request, asked).await
                }
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

    /// A grant that comes back when its validity has passed is a failure ([C7](crate::contract#c7)).
    fn check(&self, lease: &Lease, now: Moment) -> Result<()> {
        let Some(validity) = self.spec.settings.validity else {
            return Ok(());
        };
        if now < lease.counted_from() + validity {
            return Ok(());
        }
        // It is undone from now on, and whoever asked has nothing: the end of the entry sees to that.
        Err(kit::too_late(self.spec.settings.lease).with_held(HeldNow::No))
    }
}

/// An entry that is asking. Whatever ends it without a word leaves it in doubt ([C13](crate::contract#c13), [C15](crate::contract#c15)).
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
    fn granted(
        &mut self,
        lease: Lease,
        turn: &mut Option<Turn<Entry>>,
        now: Moment,
    ) -> Result<Arc<Entry>> {
        let Some(entry) = self.entry.take() else {
            return Err(closed());
        };
        if let Some(turn) = turn {
            turn.held_by(&entry, now);
        }
        // Those who hold it together do not wait for each other's release.
        let (kept, passed_on) = match lease.mode() {
            Mode::Exclusive => (turn.take(), None),
            _ => (None, turn.take()),
        };
        let trip = self.client.trip_time.of_late();
        let granted = self.client.ledger.granted(&entry, lease, kept, trip, now);
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
