//! The end of a hold: by its owner, by an undo, or by an administrator.

use dlock_core::backend::{AttemptId, Lease, Request};
use dlock_core::{Moment, Name, Released, Result, kit};

use crate::client::Client;
use crate::store::{LockTable, Store};

impl Client {
    pub(crate) async fn release(&self, lease: &Lease) -> Result<Released> {
        let released = self.call(|store| store.release(lease.name(), lease.attempt()));
        Ok(if released.await? {
            Released::Freed
        } else {
            Released::AlreadyLost
        })
    }

    pub(crate) async fn abandon(&self, request: &Request) -> Result<()> {
        self.call(|store| store.abandon(request.name(), request.attempt()))
            .await
    }

    pub(crate) async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.call(|store| store.break_lock(name)).await
    }
}

impl Store {
    /// Frees a hold; `false` when it was gone.
    pub(crate) fn release(&self, name: &Name, attempt: AttemptId) -> bool {
        let now = self.clock.now();
        let mut table = self.table();
        table.sweep(name, now);
        let found = table.drop_holder(name, attempt, now);
        self.changes.notify_waiters();
        found
    }

    /// Removes whatever an attempt left, and refuses what of it may still come.
    pub(crate) fn abandon(&self, name: &Name, attempt: AttemptId) {
        let now = self.clock.now();
        let mut table = self.table();
        kit::remember_abandoned(attempt);
        if let Some(lock) = table.locks.get_mut(name) {
            lock.waiters.retain(|waiter| waiter.attempt != attempt);
        }
        table.drop_holder(name, attempt, now);
        table.settle(name, now);
        self.changes.notify_waiters();
    }

    pub(crate) fn break_lock(&self, name: &Name) -> bool {
        let now = self.clock.now();
        let mut table = self.table();
        table.sweep(name, now);
        let broken = table
            .locks
            .get_mut(name)
            .is_some_and(|lock| !std::mem::take(&mut lock.holders).is_empty());
        table.settle(name, now);
        self.changes.notify_waiters();
        broken
    }

    pub(crate) fn expire(&self, name: &str) {
        let now = self.clock.now();
        let mut table = self.table();
        let Some((name, lock)) = table.locks.get_key_value(name) else {
            return;
        };
        let (name, attempts): (Name, Vec<AttemptId>) = (
            name.clone(),
            lock.holders.iter().map(|h| h.attempt).collect(),
        );
        for attempt in attempts {
            table.drop_holder(&name, attempt, now);
        }
        self.changes.notify_waiters();
    }

    /// Ends every hold of `name`, as an administrator would; `true` when there was one.
    pub(crate) fn lose(&self, name: &str) -> bool {
        let name = self
            .table()
            .locks
            .get_key_value(name)
            .map(|(name, _)| name.clone());
        name.is_some_and(|name| self.break_lock(&name))
    }
}

impl LockTable {
    pub(crate) fn drop_holder(&mut self, name: &Name, attempt: AttemptId, now: Moment) -> bool {
        let Some(lock) = self.locks.get_mut(name) else {
            return false;
        };
        let before = lock.holders.len();
        lock.holders.retain(|holder| holder.attempt != attempt);
        let found = lock.holders.len() < before;
        self.settle(name, now);
        found
    }
}
