//! The store itself: holders and waiters by name. No await in here, so each call is one atomic step.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{
    Clock, FencingToken, HolderInfo, LockInfo, LossReason, Mode, Moment, Name, Result, SystemClock,
    WaiterInfo, kit,
};
use tokio::sync::{Notify, oneshot};

/// How many tasks of a client may have a hold in turn, each with a token of its own.
pub(crate) const TURNS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Store {
    clock: Arc<dyn Clock>,
    pub(crate) identity: String,
    state: Mutex<State>,
    /// Told when a lock may have another holder.
    changes: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Sorted, for `list`. A name that nobody holds or waits for is not there (C16).
    locks: BTreeMap<Name, Lock>,
    /// One counter for all names: it increases per name too, and leaves nothing behind.
    last_token: u64,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Holder>,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Holder {
    attempt: AttemptId,
    mode: Mode,
    token: u64,
    label: Box<str>,
    since: SystemTime,
    expires: Moment,
}

#[derive(Debug)]
struct Waiter {
    attempt: AttemptId,
    mode: Mode,
    label: Box<str>,
    lease: Duration,
    grant: oneshot::Sender<Grant>,
}

/// What a holder gets to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) from: Moment,
}

pub(crate) enum Tried {
    Held(Grant),
    Busy { free_in: Option<Duration> },
}

impl Store {
    pub(crate) fn new(identity: String, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            identity,
            state: Mutex::default(),
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if nobody stands in the way.
    pub(crate) fn try_acquire(&self, request: &Request) -> Result<Tried> {
        let now = self.clock.now();
        let mut state = self.state();
        state.sweep(request.name(), now);
        state.check(request)?;
        if let Some(grant) = state.grant_of(request, now) {
            return Ok(Tried::Held(grant));
        }
        Ok(match state.take_if_free(request, now) {
            Some(grant) => {
                self.changes.notify_waiters();
                Tried::Held(grant)
            }
            None => Tried::Busy {
                free_in: state.free_at(request.name()).map(|at| at.since(now)),
            },
        })
    }

    /// Takes the lock, or a place in the queue.
    pub(crate) fn acquire_or_queue(
        &self,
        request: &Request,
    ) -> Result<Result<Grant, oneshot::Receiver<Grant>>> {
        let now = self.clock.now();
        let mut state = self.state();
        state.sweep(request.name(), now);
        state.check(request)?;
        if let Some(grant) = state.grant_of(request, now) {
            return Ok(Ok(grant));
        }
        if let Some(grant) = state.take_if_free(request, now) {
            self.changes.notify_waiters();
            return Ok(Ok(grant));
        }
        let (grant, granted) = oneshot::channel();
        state
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

    /// Frees what has expired, and tells when to look again.
    pub(crate) fn sweep(&self, name: &Name) -> Option<Moment> {
        let now = self.clock.now();
        let mut state = self.state();
        if !state.sweep(name, now).is_empty() {
            self.changes.notify_waiters();
        }
        state.free_at(name)
    }

    /// Whether anybody waits.
    pub(crate) fn is_waited_for(&self, name: &Name) -> bool {
        let state = self.state();
        let lock = state.locks.get(name);
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

    pub(crate) fn renew(
        &self,
        name: &Name,
        attempt: AttemptId,
        lease: Duration,
    ) -> Result<(), LossReason> {
        let now = self.clock.now();
        let mut state = self.state();
        let expired = state.sweep(name, now);
        let lock = state.locks.get_mut(name);
        let holder = lock.and_then(|lock| lock.holders.iter_mut().find(|h| h.attempt == attempt));
        match holder {
            Some(holder) => {
                holder.expires = now + lease;
                Ok(())
            }
            None if expired.contains(&attempt) => Err(LossReason::Expired),
            None => Err(LossReason::Gone),
        }
    }

    /// Frees a hold; `false` when it was gone.
    pub(crate) fn release(&self, name: &Name, attempt: AttemptId) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        state.sweep(name, now);
        let found = state.drop_holder(name, attempt, now);
        self.changes.notify_waiters();
        found
    }

    /// Removes whatever an attempt left, and refuses what of it may still come.
    pub(crate) fn abandon(&self, name: &Name, attempt: AttemptId) {
        let now = self.clock.now();
        let mut state = self.state();
        kit::remember_abandoned(attempt);
        if let Some(lock) = state.locks.get_mut(name) {
            lock.waiters.retain(|waiter| waiter.attempt != attempt);
        }
        state.drop_holder(name, attempt, now);
        state.settle(name, now);
        self.changes.notify_waiters();
    }

    /// `false` when the hold is gone.
    pub(crate) fn downgrade(&self, name: &Name, attempt: AttemptId) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        state.sweep(name, now);
        let lock = state.locks.get_mut(name);
        let Some(holder) =
            lock.and_then(|lock| lock.holders.iter_mut().find(|h| h.attempt == attempt))
        else {
            return false;
        };
        holder.mode = Mode::Shared;
        state.settle(name, now);
        self.changes.notify_waiters();
        true
    }

    pub(crate) fn inspect(&self, name: &Name) -> LockInfo {
        let now = self.clock.now();
        let mut state = self.state();
        state.sweep(name, now);
        state.info(name, now)
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<LockInfo> {
        let now = self.clock.now();
        let mut state = self.state();
        let names: Vec<Name> = state
            .locks
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .map(|(name, _)| name)
            .take_while(|name| name.starts_with(prefix))
            .cloned()
            .collect();
        for name in &names {
            state.sweep(name, now);
        }
        names
            .iter()
            .map(|name| state.info(name, now))
            .filter(LockInfo::is_locked)
            .collect()
    }

    pub(crate) fn break_lock(&self, name: &Name) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        state.sweep(name, now);
        let broken = state
            .locks
            .get_mut(name)
            .is_some_and(|lock| !std::mem::take(&mut lock.holders).is_empty());
        state.settle(name, now);
        self.changes.notify_waiters();
        broken
    }

    pub(crate) fn expire(&self, name: &str) {
        let now = self.clock.now();
        let mut state = self.state();
        let Some((name, lock)) = state.locks.get_key_value(name) else {
            return;
        };
        let (name, attempts): (Name, Vec<AttemptId>) = (
            name.clone(),
            lock.holders.iter().map(|h| h.attempt).collect(),
        );
        for attempt in attempts {
            state.drop_holder(&name, attempt, now);
        }
        self.changes.notify_waiters();
    }

    /// Ends every hold of `name`, as an administrator would; `true` when there was one.
    pub(crate) fn lose(&self, name: &str) -> bool {
        let name = self
            .state()
            .locks
            .get_key_value(name)
            .map(|(name, _)| name.clone());
        name.is_some_and(|name| self.break_lock(&name))
    }

    pub(crate) fn names(&self) -> usize {
        let now = self.clock.now();
        let mut state = self.state();
        let names: Vec<Name> = state.locks.keys().cloned().collect();
        for name in &names {
            state.sweep(name, now);
        }
        state.locks.len()
    }
}

impl State {
    fn check(&self, request: &Request) -> Result<()> {
        kit::refuse_abandoned(request.attempt())?;
        let Some(lock) = self.locks.get(request.name()) else {
            return Ok(());
        };
        let holders = lock.holders.iter().map(|holder| holder.mode);
        let waiters = lock.waiters.iter().map(|waiter| waiter.mode);
        kit::check_limit(holders.chain(waiters), request.mode())
    }

    /// The grant an attempt has already: the same request may come twice.
    fn grant_of(&mut self, request: &Request, now: Moment) -> Option<Grant> {
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

    fn take_if_free(&mut self, request: &Request, now: Moment) -> Option<Grant> {
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

    /// Removes expired holders and dead waiters, and grants what became free. Tells who expired.
    fn sweep(&mut self, name: &Name, now: Moment) -> Vec<AttemptId> {
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

    fn drop_holder(&mut self, name: &Name, attempt: AttemptId, now: Moment) -> bool {
        let Some(lock) = self.locks.get_mut(name) else {
            return false;
        };
        let before = lock.holders.len();
        lock.holders.retain(|holder| holder.attempt != attempt);
        let found = lock.holders.len() < before;
        self.settle(name, now);
        found
    }

    /// Gives the lock to the waiters whose turn it is, and forgets a name that nobody uses.
    fn settle(&mut self, name: &Name, now: Moment) {
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

    /// When the first holder's lease ends.
    fn free_at(&self, name: &Name) -> Option<Moment> {
        self.locks
            .get(name)?
            .holders
            .iter()
            .map(|holder| holder.expires)
            .min()
    }

    fn info(&self, name: &Name, now: Moment) -> LockInfo {
        let mut info = LockInfo::new(name.clone());
        let Some(lock) = self.locks.get(name) else {
            return info;
        };
        info.holders = lock
            .holders
            .iter()
            .map(|holder| {
                let mut known = HolderInfo::new(holder.attempt.to_string(), holder.mode);
                known.label = holder.label.to_string();
                known.token = Some(FencingToken::new(holder.token));
                known.since = Some(holder.since);
                known.expires_in = Some(holder.expires.since(now));
                known
            })
            .collect();
        info.waiters = lock
            .waiters
            .iter()
            .map(|waiter| {
                let mut known = WaiterInfo::new(waiter.attempt.to_string(), waiter.mode);
                known.label = waiter.label.to_string();
                known
            })
            .collect();
        info
    }
}

/// Higher than every token before. As many as a hold has turns are set aside with it.
fn next_token(last: &mut u64) -> u64 {
    let token = *last + 1;
    *last += u64::from(TURNS);
    token
}

impl Lock {
    /// Whether a holder in `mode` fits to those who hold now.
    fn admits(&self, mode: Mode) -> bool {
        kit::admits(self.holders.iter().map(|holder| holder.mode), mode)
    }
}
