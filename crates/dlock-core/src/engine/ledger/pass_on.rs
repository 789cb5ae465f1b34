//! A hold that goes from one task of a client to the next without the store ([C21](crate::contract#c21)).

use std::sync::Arc;

use super::{Ledger, Lines};
use crate::Moment;
use crate::engine::entry::{Entry, Phase, Subject};
use crate::engine::queue::Heir;
use crate::sync::locked;

impl Ledger {
    /// Held → Held: the next local task that waits has the hold from now on, with the next of its tokens, and the store hears nothing
    /// of it ([C21](crate::contract#c21)). `None` when nobody waits, or it is the turn of others.
    ///
    /// The task is told after the lock. If it has gone away by then, the hold is left once more, as from its guard. With the heir comes
    /// the moment at which the hold has to be looked at, if that was moved.
    pub(super) fn pass_on(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        now: Moment,
    ) -> Option<(Heir<Entry>, Option<Moment>)> {
        let settings = &entry.settings;
        let mut life = locked(&entry.life);
        let stay = entry.stay() + 1;
        let Subject::Hold(lease) = &life.subject else {
            return None;
        };
        if now >= life.passed_on_until || !lines.has_another_stay(entry, &life, now) {
            return None;
        }
        let ends_at = settings.max_hold.map_or(Moment::NEVER, |most| now + most);
        let mut until = life.lease_until.min(ends_at);
        if settings.validity.is_none() {
            // Until the task has taken it up: one that never runs again must not keep it for ever.
            until = until.min(now + settings.lease);
        }
        let moves = settings.max_hold.is_some() || settings.validity.is_none();
        if moves && !entry.begins_again(until, now) {
            return None;
        }
        let heir = life.turn.as_ref()?.heir(settings, now)?;
        if life.owner.is_some() || heir.owner.is_some() {
            let name = lease.name().clone();
            lines.other_owner(entry, life.owner, heir.owner, name);
        }
        life.owner = heir.owner;
        life.taken_in = heir.span;
        life.guards = 1;
        life.granted_at = now;
        life.ends_at = ends_at;
        drop(life);
        self.stats.begins_to_hold();
        entry.next_stay(stay);
        let due = moves.then(|| {
            let renew_at = locked(&entry.life).renew_at;
            lines.plan(entry, renew_at);
            locked(&entry.life).due
        });
        Some((heir, due))
    }

    /// Held: the task to which the hold was passed on knows that it has it.
    pub(crate) fn take_up(&self, entry: &Arc<Entry>, now: Moment) {
        if !entry.take_up() {
            self.taken_up_late(entry, now);
        }
    }

    /// Held: what waited until the hold was taken up. A hold without a deadline had one, and a renewal may have come due. Under the lock, so
    /// that it is either in time or lost.
    fn taken_up_late(&self, entry: &Arc<Entry>, now: Moment) {
        let mut lines = self.lines();
        let ends_at = {
            let life = locked(&entry.life);
            if life.phase != Phase::Held {
                return;
            }
            life.ends_at
        };
        if entry.settings.validity.is_none() {
            // It stays in the schedule for its old end; whoever looks there finds another.
            entry.begins_again(ends_at, now);
            return;
        }
        lines.plan(entry, now);
        self.ring(lines, now, entry);
    }
}
