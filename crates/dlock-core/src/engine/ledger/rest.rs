//! A hold between two stays: the store's lease goes on, and no task is in ([C21](crate::contract#c21)).
//!
//! ```text
//!             the last guard leaves, nobody waits
//!   ( Held, in use ) ───────────────────────────► ( Held, resting ) ──► ( Undoing ): the room gives it back
//!          ▲                                           │        its time has passed, somebody of another client
//!          └───────────────────────────────────────────┘        waits, a local task cannot use it, the client closes
//!             a local task with the same settings comes
//! ```
//!
//! While it rests it is renewed as ever, and a loss is nobody's. From its first rest on, a room listens for others who wait
//! ([`Work::watch`](super::Work)): one listener for the whole life of the hold, so that neither a rest nor its end costs more than
//! this lock.

use std::sync::Arc;

use super::{Ledger, Lines};
use crate::Moment;
use crate::engine::entry::{Ending, Entry, Life, Phase, Rest};
use crate::engine::keep_alive::{Keep, KeptAlive};
use crate::engine::queue::Inherits;
use crate::sync::locked;

/// A hold for which nobody listens yet, and since when.
pub(super) type Unwatched = (Moment, Arc<Entry>);

impl Ledger {
    /// Held → resting, if the settings want that and the hold is good for another stay. With it comes the moment at which a room has
    /// to look.
    pub(super) fn rest(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        client: &dyn Keep,
        now: Moment,
    ) -> Option<Moment> {
        let linger = entry.settings.linger?;
        let mut life = locked(&entry.life);
        // A store that tells of waiters ends a rest when one comes, so each rest may have the whole time. Elsewhere nobody would notice them:
        // the time counts from the first rest of this grant, or others would wait for as many times `linger` as the lock is used.
        let counts_from = match self.is_told {
            true => now,
            false => life.rests_since.unwrap_or(now),
        };
        let until = counts_from + linger;
        let goes_on = now < until
            && !entry.is_wanted()
            && client.can_finish()
            && lines.has_another_stay(entry, &life, now)
            && life.turn.as_ref()?.rests(entry);
        if !goes_on {
            return None;
        }
        life.rests_since = Some(counts_from);
        life.rest = Some(Rest {
            until,
            keeps: client.keep(),
        });
        // What belonged to the task that has left.
        let owner = life.owner.take();
        life.taken_in = None;
        life.ends_at = Moment::NEVER;
        let lease_until = life.lease_until;
        let (due, renew_at) = (life.due, life.renew_at);
        let is_watched = std::mem::replace(&mut life.is_watched, true);
        drop(life);
        if owner.is_some() {
            lines.other_owner(entry, owner, None, entry.name());
        }
        // Without the longest hold of the task that has left, and without the deadline of an heir that there was not.
        if entry.settings.max_hold.is_some() || entry.settings.validity.is_none() {
            entry.begins_again(lease_until, now);
        }
        entry.next_stay_after_rest(entry.stay() + 1);
        // Mostly it is planned early enough already, for the end of an earlier rest, and the schedule need not change.
        if until < due {
            lines.plan(entry, renew_at);
        }
        if is_watched {
            return Some(due.min(until));
        }
        lines.unwatched.push((now, entry.clone()));
        Some(now)
    }

    /// Resting → Held by a task of this client. `false` when it is no longer good for that; it then goes back to the store.
    pub(crate) fn resume(&self, entry: &Arc<Entry>, heir: &Inherits, now: Moment) -> bool {
        let mut lines = self.lines();
        let mut life = locked(&entry.life);
        let Some(rest) = life.rest.take() else {
            return false;
        };
        let good = now < rest.until
            && entry.is_held(now)
            && !entry.is_wanted()
            && lines.is_good_for_a_stay(entry, &life, now);
        let settings = &entry.settings;
        let ends_at = settings.max_hold.map_or(Moment::NEVER, |most| now + most);
        let until = life.lease_until.min(ends_at);
        if !good || settings.max_hold.is_some() && !entry.begins_again(until, now) {
            drop(life);
            self.end_rest_in(&mut lines, entry, &rest.keeps, now);
            self.ring(lines, now, entry);
            return false;
        }
        life.owner = heir.owner;
        life.taken_in = heir.span;
        life.guards = 1;
        life.granted_at = now;
        life.ends_at = ends_at;
        drop(life);
        if heir.owner.is_some() {
            lines.other_owner(entry, None, heir.owner, entry.name());
        }
        lines.counts.held += 1;
        self.stats.begins_to_hold();
        if settings.max_hold.is_some() {
            let renew_at = locked(&entry.life).renew_at;
            lines.plan(entry, renew_at);
            let due = locked(&entry.life).due;
            self.ring(lines, due, entry);
        } else {
            drop(lines);
        }
        // Outside of the lock, though the caller has the client too.
        drop(rest);
        true
    }

    /// Resting → Undoing. Nothing happens when it does not rest (any more).
    pub(crate) fn end_rest(&self, entry: &Arc<Entry>, now: Moment) {
        let mut lines = self.lines();
        let Some(rest) = locked(&entry.life).rest.take() else {
            return;
        };
        self.end_rest_in(&mut lines, entry, &rest.keeps, now);
        self.ring(lines, now, entry);
        drop(rest);
    }

    /// Resting → Undoing, when its time has passed. Returns what kept the client, to be dropped after the lock.
    pub(super) fn end_rest_at(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        now: Moment,
    ) -> Option<KeptAlive> {
        let rest = {
            let mut life = locked(&entry.life);
            if life.rest.as_ref()?.until > now {
                return None;
            }
            life.rest.take()?
        };
        self.end_rest_in(lines, entry, &rest.keeps, now);
        Some(rest.keeps)
    }

    pub(super) fn end_rest_in(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        client: &dyn Keep,
        now: Moment,
    ) {
        // Nobody is in, so nobody is told of a loss.
        entry.ends(Ending::LetGo);
        if let Some(turn) = &locked(&entry.life).turn {
            turn.gives_back(now);
        }
        self.undo(lines, entry, Some(client), now);
    }

    /// The store says that somebody of another client waits: the hold goes back at once if it rests, and does not rest again.
    pub(crate) fn wanted(&self, entry: &Arc<Entry>, now: Moment) {
        entry.set_wanted();
        self.end_rest(entry, now);
    }

    /// No room is left that could give back what rests: it ends with its lease.
    pub(super) fn orphan_rests(&self, lines: &mut Lines, now: Moment) -> Vec<KeptAlive> {
        let resting: Vec<_> = lines.holds.values().cloned().collect();
        let mut keeps = Vec::new();
        for entry in resting {
            let rest = locked(&entry.life).rest.take();
            if let Some(rest) = rest {
                entry.ends(Ending::LetGo);
                self.undo(lines, &entry, None, now);
                keeps.push(rest.keeps);
            }
        }
        keeps
    }

    /// Resolves when a hold whose rest has ended was given back, or a first try of that has failed.
    pub(crate) async fn given_back(&self, entry: &Entry) {
        self.until(&self.quieter, |_| {
            let life = locked(&entry.life);
            life.phase == Phase::Over || life.turn.is_none()
        })
        .await;
    }

    /// Nobody listens any more for who waits for a hold: its runtime has ended.
    pub(crate) fn no_longer_watched(&self, entry: &Arc<Entry>, now: Moment) {
        let mut lines = self.lines();
        let held = {
            let life = locked(&entry.life);
            life.phase == Phase::Held
        };
        if held {
            lines.unwatched.push((now, entry.clone()));
            drop(lines);
            self.ring_all();
        }
    }
}

impl Lines {
    /// Whether a hold that its last guard leaves may go on to another stay, as far as the hold itself goes.
    pub(super) fn has_another_stay(&self, entry: &Entry, life: &Life, now: Moment) -> bool {
        entry.stay() + 1 < entry.settings.turns_passed_on
            && self.is_good_for_a_stay(entry, life, now)
    }

    /// Whether a stay may begin in a hold. It begins with a good part of the lease, as after a grant: not with what a store has left
    /// that does not renew.
    pub(super) fn is_good_for_a_stay(&self, entry: &Entry, life: &Life, now: Moment) -> bool {
        let has_time = |validity| life.lease_until.since(now) > validity / 2;
        life.phase == Phase::Held
            && entry.passes_on
            && !entry.goes_back()
            && !self.closed
            && !life.in_trouble
            && entry.settings.validity.is_none_or(has_time)
    }

    /// The holds for which home began to listen, which is late: they are listened to twice.
    pub(super) fn watched_by_home_alone(&self) -> Vec<Arc<Entry>> {
        let alone = |entry: &&Arc<Entry>| {
            let mut life = locked(&entry.life);
            life.is_watched && !std::mem::replace(&mut life.is_watched_twice, true)
        };
        self.holds.values().filter(alone).cloned().collect()
    }

    /// The holds for which a room has to listen from now on. The standby takes only those that home has left.
    pub(super) fn take_unwatched(&mut self, left_before: Moment) -> Vec<Arc<Entry>> {
        if self.unwatched.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.unwatched);
        let (taken, left): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|(since, _)| *since <= left_before);
        self.unwatched = left;
        taken.into_iter().map(|(_, entry)| entry).collect()
    }
}
