//! What a guard asks of its client: to leave the hold, to renew it now, or to go on as a reader.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::client::{Client, one_writer_alone};
use super::entry::Entry;
use super::ledger::{Leaving, Left};
use super::trips;
use crate::backend::Released;
use crate::lock::guard::Guard;
use crate::lock::stats::Event;
use crate::runtime::in_runtime;
use crate::{HeldNow, LossReason, Operation, Result};

impl Client {
    /// A guard was dropped: frees the hold in the background ([C14](crate::contract#c14)).
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
                // The caller's own stay ended in order when the hold was passed on. What befell the hold after that is not what it asks.
                Left::Inside { .. } | Left::Lost if passed_on => return None,
                left => return Some(left),
            };
            passed_on = true;
            match heir.take(Guard::new(self.clone(), entry.clone(), false)) {
                Ok(()) => return None,
                // The heir's future was dropped after it had been chosen: nobody has the hold, so it is left once more, for the next in line.
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
