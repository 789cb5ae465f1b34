//! Renewals and downgrades of a hold, and what the store has said to them ([C10](crate::contract#c10)).

use std::sync::Arc;

use super::Ledger;
use super::life::OVERDUE;
use crate::engine::entry::{Downgrade, Entry, Phase, Subject};
use crate::sync::locked;
use crate::{Mode, Moment};

impl Ledger {
    /// Held: a downgrade is asked for. From now on the guard is a reader's, and the local turn is free. False when another guard of the owner is
    /// a writer's by this hold: one may have come in since the caller looked, and none comes after this.
    pub(crate) fn downgrading(&self, entry: &Arc<Entry>) -> bool {
        let lines = self.lines();
        let turn = {
            let mut life = locked(&entry.life);
            if life.guards > 1 && life.downgrade == Downgrade::NotAsked {
                return false;
            }
            if life.downgrade == Downgrade::NotAsked {
                life.downgrade = Downgrade::InDoubt;
            }
            life.turn.take()
        };
        drop(lines);
        drop(turn);
        true
    }

    /// Held: the store has confirmed a downgrade.
    pub(crate) fn downgraded(&self, entry: &Entry) {
        let _lines = self.lines();
        let mut life = locked(&entry.life);
        life.downgrade = Downgrade::Done;
        if let Subject::Hold(lease) = &life.subject {
            let lease = lease.as_ref().clone().with_mode(Mode::Shared);
            life.subject = Subject::Hold(Arc::new(lease));
        }
    }

    /// Held: begins a renewal for somebody who does not want to wait until it is due; `None` when there is nothing to renew.
    pub(crate) fn take_renewal(
        &self,
        entry: &Arc<Entry>,
        now: Moment,
    ) -> Option<(Arc<Entry>, u32)> {
        let mut lines = self.lines();
        if locked(&entry.life).phase != Phase::Held || entry.settings.validity.is_none() {
            return None;
        }
        let limit = entry.settings.renewal_limit();
        let trip = lines.begin_trip(entry, (now + limit + OVERDUE).min(entry.loss_at()));
        Some((entry.clone(), trip))
    }

    /// Held: the renewal that was sent at `sent` has succeeded. A hold that is over stays over.
    pub(crate) fn renewed(&self, entry: &Arc<Entry>, trip: u32, sent: Moment, now: Moment) {
        let mut lines = self.lines();
        let ends_at = {
            let mut life = locked(&entry.life);
            if life.phase != Phase::Held {
                return;
            }
            if life.trip == trip {
                life.under_way = false;
            }
            life.in_trouble = false;
            if let Some(validity) = entry.settings.validity {
                life.lease_until = life.lease_until.max(sent + validity);
            }
            life.ends_at
        };
        let interval = entry.settings.renew_every.unwrap_or(entry.settings.lease);
        let due = if entry.extend(sent, ends_at, now) {
            (sent + interval).min(entry.loss_at())
        } else {
            now
        };
        lines.plan(entry, due);
        self.ring(lines, due, entry);
    }

    /// Held: nothing is known of a renewal; it is tried again at `again` ([C10](crate::contract#c10)).
    pub(crate) fn not_renewed(&self, entry: &Arc<Entry>, trip: u32, again: Moment) {
        let mut lines = self.lines();
        {
            let mut life = locked(&entry.life);
            if life.phase != Phase::Held || life.trip != trip {
                return;
            }
            life.under_way = false;
            life.in_trouble = true;
            let rest = life.rest.take();
            drop(life);
            if let Some(rest) = rest {
                // No task is in a hold that rests. Since its renewal failed, it goes back to the store, and whoever comes next asks there.
                self.end_rest_in(&mut lines, entry, &rest.keeps, again);
                self.ring(lines, again, entry);
                return;
            }
        }
        let due = again.min(entry.loss_at());
        lines.plan(entry, due);
        self.ring(lines, due, entry);
    }
}
