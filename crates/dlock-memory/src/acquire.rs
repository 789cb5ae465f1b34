//! One attempt: the lock at once, or a place in the queue.

use std::time::{Duration, SystemTime};

use dlock_core::backend::{Busy, Lease, Outcome, Request};
use dlock_core::{Error, HeldNow, Moment, Result, kit};
use tokio::sync::oneshot;

use crate::client::Client;
use crate::fence::next_token;
use crate::store::{Grant, Holder, LockTable, Store, Waiter};

/// The answer to one who does not wait.
pub(crate) enum Tried {
    Held(Grant),
    Busy { free_in: Option<Duration> },
}

impl Client {
    pub(crate) async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let call = self.link.send(&self.store).await.map_err(unsent)?;
        let tried = self.store.try_acquire(request)?;
        self.link.reply(&self.store, call).await?;
        Ok(match tried {
            Tried::Held(grant) => held(request, grant),
            Tried::Busy { free_in } => Outcome::Busy(Busy {
                retry_after: free_in,
            }),
        })
    }

    pub(crate) async fn acquire(&self, request: &Request) -> Result<Outcome> {
        let sent = request.now();
        let call = self.link.send(&self.store).await.map_err(unsent)?;
        let taken = self.store.acquire_or_queue(request)?;
        let grant = match taken {
            // Without a wait the lease counts from before the request was sent; after one, from the grant (C7).
            Ok(grant) => Grant {
                from: grant.from.min(sent),
                ..grant
            },
            Err(place) => {
                request.mark_contended();
                self.granted(request, call, place).await?
            }
        };
        self.link.reply(&self.store, call).await?;
        Ok(held(request, grant))
    }
}

/// Nothing of the attempt has reached the store.
fn unsent(error: Error) -> Error {
    error.with_held(HeldNow::No)
}

fn held(request: &Request, grant: Grant) -> Outcome {
    Outcome::Held(Lease::new(request, grant.from).with_token(grant.token))
}

impl Store {
    /// Takes the lock if nobody stands in the way.
    pub(crate) fn try_acquire(&self, request: &Request) -> Result<Tried> {
        let now = self.clock.now();
        let mut table = self.table();
        table.sweep(request.name(), now);
        table.check(request)?;
        if let Some(grant) = table.grant_of(request, now) {
            return Ok(Tried::Held(grant));
        }
        Ok(match table.take_if_free(request, now) {
            Some(grant) => {
                self.changes.notify_waiters();
                Tried::Held(grant)
            }
            None => Tried::Busy {
                free_in: table.free_at(request.name()).map(|at| at.since(now)),
            },
        })
    }

    /// Takes the lock, or a place in the queue.
    pub(crate) fn acquire_or_queue(
        &self,
        request: &Request,
    ) -> Result<Result<Grant, oneshot::Receiver<Grant>>> {
        let now = self.clock.now();
        let mut table = self.table();
        table.sweep(request.name(), now);
        table.check(request)?;
        if let Some(grant) = table.grant_of(request, now) {
            return Ok(Ok(grant));
        }
        if let Some(grant) = table.take_if_free(request, now) {
            self.changes.notify_waiters();
            return Ok(Ok(grant));
        }
        let (grant, granted) = oneshot::channel();
        table
            .locks
            .entry(request.name().clone())
            .or_default()
            .waiters
            .push_back(Waiter {
                attempt: request.attempt(),
                mode: request.mode(),
                label: request.label().into(),
                lease: request.lease(),
                grant,
            });
        self.changes.notify_waiters();
        Ok(Err(granted))
    }
}

impl LockTable {
    pub(crate) fn check(&self, request: &Request) -> Result<()> {
        kit::refuse_abandoned(request.attempt())?;
        let Some(lock) = self.locks.get(request.name()) else {
            return Ok(());
        };
        let holders = lock.holders.iter().map(|holder| holder.mode);
        let waiters = lock.waiters.iter().map(|waiter| waiter.mode);
        kit::check_limit(holders.chain(waiters), request.mode())
    }

    /// The grant an attempt has already: the same request may come twice.
    pub(crate) fn grant_of(&mut self, request: &Request, now: Moment) -> Option<Grant> {
        let lock = self.locks.get_mut(request.name())?;
        let holder = lock
            .holders
            .iter_mut()
            .find(|holder| holder.attempt == request.attempt())?;
        holder.expires = now + request.lease();
        Some(Grant {
            token: holder.token,
            from: now,
        })
    }

    pub(crate) fn take_if_free(&mut self, request: &Request, now: Moment) -> Option<Grant> {
        if let Some(lock) = self.locks.get(request.name())
            && (!lock.waiters.is_empty() || !lock.admits(request.mode()))
        {
            return None;
        }
        let token = next_token(&mut self.last_token);
        let lock = self.locks.entry(request.name().clone()).or_default();
        // Most locks have one holder: a vector's first growth would make room for four.
        lock.holders.reserve_exact(1);
        lock.holders.push(Holder {
            attempt: request.attempt(),
            mode: request.mode(),
            token,
            label: request.label().into(),
            since: SystemTime::now(),
            expires: now + request.lease(),
        });
        Some(Grant { token, from: now })
    }
}
