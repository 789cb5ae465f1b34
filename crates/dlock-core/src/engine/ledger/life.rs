//! The life of an attempt and of the hold it became: its states, how it begins, and how its guards leave it. The other steps are
//! beside this: [`pass_on`](super::pass_on), [`rest`](super::rest), [`join`](super::join), [`renewal`](super::renewal), [`loss`](super::loss) and
//! [`undo`](super::undo).
//!
//! ```text
//!               granted              release()              confirmed
//!   ( Asking ) ─────────► ( Held ) ────────────► ( Releasing ) ──────► ( Over )
//!     │    │                │  │                      │                   ▲
//!     │    │ in doubt:      │  │ guard dropped,       │ not confirmed,    │
//!     │    │ failed, late,  │  │ expired, max_hold,   │ future dropped,   │
//!     │    │ future dropped │  │ client closed        │ or not driven     │
//!     │    │                │  ▼                      ▼                   │
//!     │    └────────────────┼► ( Undoing ) ◄──────────┘                   │
//!     │                     │      └──── confirmed, or its lease is over ─┤
//!     │ busy, refused       │ the store says that it is gone              │
//!     └─────────────────────┴─────────────────────────────────────────────┘
//! ```
//!
//! A hold that its last guard leaves may go to the next task of this client instead of to the store: Held → Held, and another
//! stay begins ([`pass_on`](Ledger::pass_on)).
//!
//! Every arrow is a method of [`Ledger`] and happens under its one lock. What a step sets free (the local turn, what keeps the client
//! alive) is dropped after the lock, because dropping it runs other code.

use std::sync::Arc;
use std::time::Duration;

use super::loss::clock_reason;
use super::{Freed, Ledger, Lines, closed};
use crate::backend::{Lease, Request};
use crate::engine::entry::{Asker, Downgrade, Ending, Entry, Phase, Subject};
use crate::engine::keep_alive::Keep;
use crate::engine::queue::{Heir, Turn};
use crate::sync::locked;
use crate::{Moment, Result};

/// A trip that has a time limit of its own gets this much longer before somebody else takes over.
pub(super) const OVERDUE: Duration = Duration::from_millis(250);

/// How a guard leaves its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Released,
    Dropped,
}

/// What became of a hold that a guard has left.
#[derive(Debug)]
pub(crate) enum Left {
    /// Other guards of the owner are still on it.
    Inside {
        held: bool,
    },
    /// Other readers, who joined, are still in it, and it was good to the end for the one who has left.
    ToOtherReaders,
    Lost,
    /// The next local task has it; the caller tells it.
    PassedOn(Heir<Entry>),
    /// This client keeps it for a while.
    Resting,
    /// The caller tells the store.
    Releasing,
    /// A room tells the store.
    Undoing,
}

impl Ledger {
    /// → Asking: written down before the first byte is sent.
    pub(crate) fn ask(&self, asker: Asker, request: Arc<Request>) -> Result<Arc<Entry>> {
        let mut lines = self.lines();
        if lines.closed {
            return Err(closed());
        }
        lines.counts.asking += 1;
        lines.last_id += 1;
        Ok(Arc::new(Entry::asking(lines.last_id, asker, request)))
    }

    /// Asking → Over: it is certain that nothing was taken.
    pub(crate) fn nothing_taken(&self, entry: &Entry) {
        let mut lines = self.lines();
        lines.counts.asking -= 1;
        locked(&entry.life).phase = Phase::Over;
        drop(lines);
        self.quieter.notify_waiters();
    }

    /// Asking → Held. There is no await between the store's word and this. `trip` is what a trip to the store takes: others wait
    /// about as long for local turns as for a hand-over through the store.
    ///
    /// # Errors
    ///
    /// When the client was closed meanwhile, which has given back every hold it knew: the attempt stays in doubt.
    pub(crate) fn granted(
        &self,
        entry: &Arc<Entry>,
        lease: Lease,
        turn: Option<Turn<Entry>>,
        trip: Duration,
        now: Moment,
    ) -> Result<()> {
        let mut lines = self.lines();
        if lines.closed {
            // Outside of the lock: dropping it passes the turn on.
            drop(lines);
            drop(turn);
            return Err(closed());
        }
        lines.counts.asking -= 1;
        lines.counts.held += 1;
        self.stats.begins_to_hold();
        let settings = &entry.settings;
        let ends_at = settings.max_hold.map_or(Moment::NEVER, |most| now + most);
        let valid_until = settings
            .validity
            .map_or(Moment::NEVER, |validity| lease.counted_from() + validity);
        entry.begins(valid_until.min(ends_at));
        // A third of the lease after it began, or the end when it is not renewed.
        let renewal = settings
            .renew_every
            .map_or(Moment::NEVER, |interval| lease.counted_from() + interval);
        let due = renewal.min(entry.loss_at());
        lines.lets_join(entry, lease.name(), lease.mode());
        {
            let mut life = locked(&entry.life);
            if life.owner.is_some() {
                lines.other_owner(entry, None, life.owner, lease.name().clone());
            }
            life.phase = Phase::Held;
            life.passed_on_until = now + settings.local_time(trip);
            life.subject = Subject::Hold(Arc::new(lease));
            life.turn = turn;
            life.guards = 1;
            life.granted_at = now;
            life.ends_at = ends_at;
            life.lease_until = valid_until;
        }
        lines.plan(entry, due);
        self.ring(lines, due, entry);
        Ok(())
    }

    /// Asking → Undoing: the store may have done it, and nobody wants it.
    pub(crate) fn in_doubt(&self, entry: &Arc<Entry>, client: &dyn Keep, now: Moment) {
        let mut lines = self.lines();
        lines.counts.asking -= 1;
        let doubts = lines.doubts.entry(entry.name()).or_default();
        doubts.entries.push(entry.clone());
        self.undo(&mut lines, entry, Some(client), now);
        self.ring(lines, now, entry);
    }

    /// Held → Releasing or Undoing, or Held by the next local task, when the last guard of the owner leaves a hold that is good to
    /// the end.
    pub(crate) fn leave(
        &self,
        entry: &Arc<Entry>,
        how: Leaving,
        client: &dyn Keep,
        now: Moment,
    ) -> Left {
        let mut lines = self.lines();
        let (phase, guards, is_nobodys) = {
            let mut life = locked(&entry.life);
            life.guards = life.guards.saturating_sub(1);
            (life.phase, life.guards, life.owner.is_none())
        };
        if guards > 0 {
            let held = entry.is_held(now);
            return match is_nobodys && held {
                true => Left::ToOtherReaders,
                false => Left::Inside { held },
            };
        }
        if phase != Phase::Held {
            return Left::Lost;
        }
        if !entry.is_held(now) {
            let reason = clock_reason(&locked(&entry.life), now);
            let freed = self.lose_in(&mut lines, entry, reason, Some(client), now);
            self.ring(lines, now, entry);
            drop(freed);
            return Left::Lost;
        }
        self.no_longer_in(entry, now);
        if let Some((heir, due)) = self.pass_on(&mut lines, entry, now) {
            if let Some(due) = due {
                self.ring(lines, due, entry);
            }
            return Left::PassedOn(heir);
        }
        if let Some(due) = self.rest(&mut lines, entry, client, now) {
            lines.counts.held -= 1;
            self.ring(lines, due, entry);
            return Left::Resting;
        }
        lines.no_longer_held(entry, Ending::LetGo);
        if let Some(turn) = &locked(&entry.life).turn {
            turn.gives_back(now);
        }
        match how {
            Leaving::Released => {
                let in_doubt = {
                    let mut life = locked(&entry.life);
                    life.phase = Phase::Releasing;
                    life.under_way = false;
                    life.downgrade == Downgrade::InDoubt
                };
                lines.counts.releasing += 1;
                // One trip, or two where a downgrade has to be settled first.
                let trips = entry.settings.trip_timeout * if in_doubt { 2 } else { 1 };
                let due = now + trips + OVERDUE;
                lines.plan(entry, due);
                self.ring_lazily(lines, due, entry);
                Left::Releasing
            }
            Leaving::Dropped => {
                self.undo(&mut lines, entry, Some(client), now);
                self.ring(lines, now, entry);
                Left::Undoing
            }
        }
    }

    /// A task is no longer in: times count only if it ever was.
    pub(super) fn no_longer_in(&self, entry: &Entry, now: Moment) {
        let held = now.since(locked(&entry.life).granted_at);
        self.stats.held(entry.is_taken_up().then_some(held));
    }

    /// Refuses new attempts, and hands out every hold that is left.
    pub(crate) fn close(&self) -> Vec<Arc<Entry>> {
        let mut lines = self.lines();
        lines.closed = true;
        let left = lines.holds.values().cloned().collect();
        drop(lines);
        self.closing.notify_waiters();
        left
    }
}

impl Lines {
    /// Leaves `Held`: its guards are told, and nobody enters it again.
    pub(super) fn no_longer_held(&mut self, entry: &Arc<Entry>, ending: Ending) {
        self.counts.held -= 1;
        entry.ends(ending);
        self.lets_nobody_join(entry);
        let owner = locked(&entry.life).owner;
        if owner.is_some() {
            self.other_owner(entry, owner, None, entry.name());
        }
    }

    /// → Over.
    pub(super) fn over(&mut self, entry: &Arc<Entry>) -> Freed {
        let mut life = locked(&entry.life);
        life.phase = Phase::Over;
        let due = life.due;
        let keeps = life.undo.take().and_then(|undo| undo.keeps);
        let freed = (life.turn.take(), keeps);
        drop(life);
        self.holds.remove(&(due, entry.id));
        self.chores.remove(&(due, entry.id));
        freed
    }
}
