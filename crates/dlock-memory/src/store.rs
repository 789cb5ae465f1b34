//! The store itself: holders and waiters by name. What can be asked of it is in the files beside this; each call is one atomic step under
//! one lock, without an await.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use dlock_core::backend::AttemptId;
use dlock_core::{Clock, Mode, Moment, Name, SystemClock, kit};
use tokio::sync::{Notify, oneshot};

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: String,
    table: Mutex<LockTable>,
    /// Told when a lock may have another holder.
    pub(crate) changes: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct LockTable {
    /// Sorted, for `list`. A name that nobody holds or waits for is not there ([C16](dlock_core::contract#c16)).
    pub(crate) locks: BTreeMap<Name, Lock>,
    /// One counter for all names: it increases per name too, and leaves nothing behind.
    pub(crate) last_token: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Lock {
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    pub(crate) token: u64,
    pub(crate) label: Box<str>,
    pub(crate) since: SystemTime,
    pub(crate) expires: Moment,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    pub(crate) label: Box<str>,
    pub(crate) lease: Duration,
    pub(crate) grant: oneshot::Sender<Grant>,
}

/// What a holder gets to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) from: Moment,
}

impl Store {
    pub(crate) fn new(identity: String, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            identity,
            table: Mutex::default(),
            changes: Notify::new(),
        })
    }

    pub(crate) fn system(identity: String) -> Arc<Self> {
        Self::new(identity, Arc::new(SystemClock))
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        if !time.is_zero() {
            self.clock.sleep_until(self.clock.now() + time).await;
        }
    }

    pub(crate) async fn sleep_until(&self, moment: Moment) {
        self.clock.sleep_until(moment).await;
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, LockTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what has expired, and tells when to look again.
    pub(crate) fn sweep(&self, name: &Name) -> Option<Moment> {
        let now = self.clock.now();
        let mut table = self.table();
        if !table.sweep(name, now).is_empty() {
            self.changes.notify_waiters();
        }
        table.free_at(name)
    }

    pub(crate) fn names(&self) -> usize {
        let now = self.clock.now();
        let mut table = self.table();
        let names: Vec<Name> = table.locks.keys().cloned().collect();
        for name in &names {
            table.sweep(name, now);
        }
        table.locks.len()
    }
}

impl LockTable {
    /// Removes expired holders and dead waiters, and grants what became free. Tells who expired.
    pub(crate) fn sweep(&mut self, name: &Name, now: Moment) -> Vec<AttemptId> {
        let Some(lock) = self.locks.get_mut(name) else {
            return Vec::new();
        };
        let mut expired = Vec::new();
        lock.holders.retain(|holder| {
            let alive = holder.expires > now;
            if !alive {
                expired.push(holder.attempt);
            }
            alive
        });
        self.settle(name, now);
        expired
    }

    /// When the first holder's lease ends.
    pub(crate) fn free_at(&self, name: &Name) -> Option<Moment> {
        self.locks
            .get(name)?
            .holders
            .iter()
            .map(|holder| holder.expires)
            .min()
    }
}

impl Lock {
    /// Whether a holder in `mode` fits to those who hold now.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        kit::admits(self.holders.iter().map(|holder| holder.mode), mode)
    }
}
