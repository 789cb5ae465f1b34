//! The one list of attempts and holds of a client. How an entry lives is in [`life`]; what is looked at when, in [`schedule`].
//!
//! An entry that is *held* stands in the schedule at the moment of its next renewal or of its loss; one that is *releasing* at
//! the moment at which nobody can be waiting for it any more; one that is *undoing* at its next try. An entry for which a trip is
//! under way stands at the moment at which that trip must have ended, so that another room takes over
//! where a runtime has ended or is not driven ([`room`](super::room)).

mod join;
mod life;
mod loss;
mod owners;
mod pass_on;
mod renewal;
mod rest;
mod schedule;
mod undo;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

pub(crate) use self::life::{Leaving, Left};
use self::owners::OwnerWaits;
use self::rest::Unwatched;
use self::schedule::{AT_LEAST_EVERY, Schedule};
pub(crate) use self::schedule::{Capacity, Work};
pub(crate) use self::undo::undo_limit;
use super::entry::Entry;
use super::keep_alive::KeptAlive;
use super::post::Post;
use super::queue::Turn;
use crate::backend::{Capabilities, Hearing, Liveness};
use crate::lock::stats::{Event, Recorder};
use crate::sync::locked;
use crate::{Error, ErrorKind, HeldNow, Moment, Name, Owner, Result};

#[derive(Debug)]
pub(crate) struct Ledger {
    lines: Mutex<Lines>,
    pub(crate) stats: Recorder,
    /// A hold ends with its lease, whatever becomes of the client; a session outlives it.
    by_lease: bool,
    /// The store tells at once that others wait for a hold: silence means that nobody does.
    is_told: bool,
    /// Rung when a room must look earlier than it plans to.
    home: Notify,
    standby: Notify,
    /// Told when something ended, for `close` and for attempts that wait for an earlier one to be undone.
    quieter: Notify,
    /// Told when `close` was called, for attempts that wait.
    closing: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    /// What has to be looked at, by the moment. Holds apart from what is to be undone: however much of that there is, renewals and
    /// losses do not stand behind it.
    holds: Schedule,
    chores: Schedule,
    /// The holds that their owners can enter again.
    owned: HashMap<(Owner, Name), Vec<Arc<Entry>>>,
    /// Owners that have tasks which wait for a lock: told when another of their tasks has got it.
    owners_wait: HashMap<(Owner, Name), OwnerWaits>,
    /// The last hold of each name that readers of this client may join.
    joinable: HashMap<Name, Arc<Entry>>,
    /// How many attempts in doubt are being undone, by name.
    doubts: HashMap<Name, Doubts>,
    counts: Counts,
    /// Holds that have rested, for which a room has to listen.
    unwatched: Vec<Unwatched>,
    /// When each room looks next, if nobody rings.
    home_looks: Option<Moment>,
    standby_looks: Option<Moment>,
    last_id: u64,
    /// The last entry that was there when each of the rooms looked.
    seen_ids: [u64; 2],
    closed: bool,
}

/// What a step has set free, the turn and what kept the client alive: dropped by the caller, after the lock.
type Freed = (Option<Turn<Entry>>, Option<KeptAlive>);

/// The attempts for one name that are being undone.
#[derive(Debug, Default)]
struct Doubts {
    entries: Vec<Arc<Entry>>,
    /// How many tries have failed, and what the last has failed with.
    failures: u64,
    last: Option<Error>,
}

/// How full the ledger is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) asking: usize,
    pub(crate) held: usize,
    pub(crate) releasing: usize,
    pub(crate) undoing: usize,
}

impl Ledger {
    pub(crate) fn new(capabilities: &Capabilities) -> Self {
        Self {
            lines: Mutex::default(),
            stats: Recorder::new(capabilities.backend),
            by_lease: capabilities.liveness == Liveness::Lease,
            is_told: matches!(capabilities.wanted, Hearing::Told { .. }),
            home: Notify::new(),
            standby: Notify::new(),
            quieter: Notify::new(),
            closing: Notify::new(),
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        locked(&self.lines)
    }

    /// Resolves when `close` was called.
    pub(crate) async fn closed(&self) {
        self.until(&self.closing, |lines| lines.closed).await;
    }

    /// Resolves when no attempt is under way and nothing is left to undo.
    pub(crate) async fn quiet(&self) {
        self.until(&self.quieter, |lines| {
            let counts = &lines.counts;
            counts.asking + counts.releasing + counts.undoing == 0
        })
        .await;
    }

    /// Resolves when no earlier attempt of this client for the name is in doubt: a new one would meet it, and tries on a store
    /// that hangs would pile up. They are tried at once, not when they are due.
    ///
    /// # Errors
    ///
    /// What the first of these tries has failed with: the store is no better for a new attempt.
    pub(crate) async fn no_doubt(&self, name: &Name, now: Moment) -> Result<()> {
        let failures = {
            let mut lines = self.lines();
            let Some(doubts) = lines.doubts.get(name) else {
                return Ok(());
            };
            let (entries, mut failures) = (doubts.entries.clone(), doubts.failures);
            for entry in &entries {
                if locked(&entry.life).under_way {
                    // It was sent before this caller came, and its failure would come before a trip's time is over.
                    failures += 1;
                } else {
                    lines.plan(entry, now);
                }
            }
            failures
        };
        self.ring_all();
        let mut failed = None;
        self.until(&self.quieter, |lines| match lines.doubts.get(name) {
            None => true,
            Some(doubts) => {
                failed = (doubts.failures > failures).then(|| doubts.last.clone());
                failed.is_some()
            }
        })
        .await;
        match failed.flatten() {
            Some(error) => Err(error.with_held(HeldNow::Unknown)),
            None => Ok(()),
        }
    }

    /// Whether an attempt for the name is in doubt.
    pub(crate) fn is_in_doubt(&self, name: &Name) -> bool {
        let lines = self.lines();
        !lines.doubts.is_empty() && lines.doubts.contains_key(name)
    }

    async fn until(&self, told: &Notify, mut done: impl FnMut(&Lines) -> bool) {
        loop {
            let mut told = std::pin::pin!(told.notified());
            told.as_mut().enable();
            if done(&self.lines()) {
                return;
            }
            told.await;
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lines().counts
    }

    /// Counts something that happened to an entry.
    pub(crate) fn count(&self, event: Event, entry: &Entry) {
        self.stats.count(event, &entry.settings.group);
    }

    /// There is a new home, which has not looked yet.
    pub(crate) fn home_opens(&self) {
        self.lines().home_looks = None;
    }

    /// Resolves when a room must look earlier than it planned.
    pub(crate) async fn rung(&self, post: Post) {
        match post {
            Post::Home => self.home.notified().await,
            Post::Standby => self.standby.notified().await,
        }
    }

    pub(crate) fn ring_all(&self) {
        self.home.notify_one();
        self.standby.notify_one();
    }

    /// As [`ring`](Ledger::ring), for what most often is over before it is due: a room that works looks often enough.
    fn ring_lazily(&self, lines: MutexGuard<'_, Lines>, due: Moment, entry: &Entry) {
        self.ring(lines, due + AT_LEAST_EVERY, entry);
    }

    /// Lets go of the lock, and rings those who plan to look too late.
    fn ring(&self, mut lines: MutexGuard<'_, Lines>, due: Moment, entry: &Entry) {
        let late = |looks: Option<Moment>, post: Post| {
            looks.is_some_and(|looks| due + post.lag(entry, due) < looks)
        };
        let home = late(lines.home_looks, Post::Home);
        let standby = late(lines.standby_looks, Post::Standby);
        if home {
            // By this the standby sees whether home is driven.
            lines.home_looks = Some(due);
        }
        drop(lines);
        if home {
            self.home.notify_one();
        }
        if standby {
            self.standby.notify_one();
        }
    }
}

pub(crate) fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this client was closed: make a new one with connect",
    )
}

#[cfg(test)]
mod tests;
