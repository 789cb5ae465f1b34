//! How those wake who wait: for the lock, for another holder, or for somebody who wants what they hold.

use std::time::SystemTime;

use dlock_core::backend::{Lease, Request};
use dlock_core::{Error, ErrorKind, HolderInfo, Mode, Moment, Name, Result};

use crate::client::Client;
use crate::fence::next_token;
use crate::link::Call;
use crate::store::{Grant, Holder, LockTable, Store};

impl Client {
    /// Waits at the store for a place that was taken.
    pub(crate) async fn granted(
        &self,
        request: &Request,
        call: Call,
        mut place: tokio::sync::oneshot::Receiver<Grant>,
    ) -> Result<Grant> {
        loop {
            let look_again = self.store.sweep(request.name());
            tokio::select! {
                biased;
                grant = &mut place => {
                    // While the link hangs, the word does not get through; on a silent connection it never does.
                    tokio::select! {
                        biased;
                        () = self.link.not_hung(call) => {}
                        error = self.link.silent(&self.store, call) => return Err(error),
                    }
                    return grant.map_err(|_| {
                        Error::new(ErrorKind::Store, "the store dropped this attempt from its queue: try again")
                    });
                }
                error = self.link.broken() => return Err(error),
                error = self.link.silent(&self.store, call) => return Err(error),
                () = sleep_until(&self.store, look_again) => {}
            }
        }
    }

    pub(crate) async fn changed(&self, name: &Name, seen: Option<&str>) {
        let Ok(call) = self.link.send(&self.store).await else {
            return std::future::pending().await;
        };
        self.store.changed(name, seen).await;
        self.link.not_hung(call).await;
    }

    pub(crate) async fn others_wait(&self, name: &Name) -> bool {
        self.call(|store| store.is_waited_for(name))
            .await
            .unwrap_or(false)
    }

    pub(crate) async fn wanted(&self, lease: &Lease) {
        let Ok(call) = self.link.send(&self.store).await else {
            return std::future::pending().await;
        };
        self.store.wanted(lease.name()).await;
        self.link.not_hung(call).await;
    }
}

impl Store {
    /// Whether anybody waits.
    pub(crate) fn is_waited_for(&self, name: &Name) -> bool {
        let table = self.table();
        let lock = table.locks.get(name);
        // A waiter whose future was dropped is removed by its undo, or when it would be granted the lock.
        lock.is_some_and(|lock| lock.waiters.iter().any(|waiter| !waiter.grant.is_closed()))
    }

    /// Resolves when somebody waits.
    pub(crate) async fn wanted(&self, name: &Name) {
        loop {
            let mut changes = std::pin::pin!(self.changes.notified());
            changes.as_mut().enable();
            if self.is_waited_for(name) {
                return;
            }
            changes.await;
        }
    }

    /// Resolves when the exclusive holder is another than `seen`.
    pub(crate) async fn changed(&self, name: &Name, seen: Option<&str>) {
        loop {
            let mut changes = std::pin::pin!(self.changes.notified());
            changes.as_mut().enable();
            let alone = |holder: &HolderInfo| holder.mode == Mode::Exclusive;
            let info = self.inspect(name);
            let holder = info.holders.into_iter().find(alone);
            if holder.as_ref().map(|holder| holder.owner.as_str()) != seen {
                return;
            }
            // A dead holder makes no change by itself.
            match self.sweep(name) {
                Some(end) => tokio::select! {
                    biased;
                    () = changes => {}
                    () = self.sleep_until(end) => {}
                },
                None => changes.await,
            }
        }
    }
}

impl LockTable {
    /// Gives the lock to the waiters whose turn it is, and forgets a name that nobody uses.
    pub(crate) fn settle(&mut self, name: &Name, now: Moment) {
        let Some(lock) = self.locks.get_mut(name) else {
            return;
        };
        while let Some(waiter) = lock.waiters.front() {
            if waiter.grant.is_closed() {
                // Its client is gone: it must not stall the queue (C18).
                lock.waiters.pop_front();
                continue;
            }
            if !lock.admits(waiter.mode) {
                break;
            }
            let Some(waiter) = lock.waiters.pop_front() else {
                break;
            };
            let grant = Grant {
                token: next_token(&mut self.last_token),
                from: now,
            };
            if waiter.grant.send(grant).is_ok() {
                lock.holders.push(Holder {
                    attempt: waiter.attempt,
                    mode: waiter.mode,
                    token: grant.token,
                    label: waiter.label,
                    since: SystemTime::now(),
                    expires: now + waiter.lease,
                });
            }
        }
        if lock.holders.is_empty() && lock.waiters.is_empty() {
            self.locks.remove(name);
        }
    }
}

async fn sleep_until(store: &Store, moment: Option<dlock_core::Moment>) {
    match moment {
        Some(moment) => store.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
