//! Readers of one client in one hold ([C21](crate::contract#c21)): the first asks the store, and those who come soon after join it without a trip.
//!
//! They share the lease, the loss and the token. Only readers without an owner join, and only a hold without one: so the guards on a hold
//! are either those of one owner, who counts them, or those of readers who do not know each other.

use std::sync::Arc;

use super::{Ledger, Lines};
use crate::engine::entry::Entry;
use crate::lock::settings::ResolvedSettings;
use crate::sync::locked;
use crate::{Mode, Moment, Name};

impl Ledger {
    /// Held: one more reader is in. `None` when there is no hold to join, or it is the turn of others: the caller asks the store.
    pub(crate) fn join(
        &self,
        name: &Name,
        settings: &Arc<ResolvedSettings>,
        now: Moment,
    ) -> Option<Arc<Entry>> {
        let lines = self.lines();
        let entry = lines.joinable.get(name)?;
        let mut life = locked(&entry.life);
        let joins = Arc::ptr_eq(&entry.settings, settings)
            && now < life.passed_on_until
            && life.readers < settings.readers_in_a_hold
            && entry.is_held(now)
            && lines.is_good_for_a_stay(entry, &life, now);
        if !joins {
            return None;
        }
        life.guards += 1;
        life.readers += 1;
        let entry = entry.clone();
        drop(life);
        self.stats.begins_to_hold();
        Some(entry)
    }

    /// Held: no other reader joins what the client holds of a name, because it is broken by force.
    pub(crate) fn nobody_joins(&self, name: &Name) {
        let entry = self.lines().joinable.remove(name);
        // Outside of the lock: the last reference to a hold may run other code.
        drop(entry);
    }
}

impl Lines {
    /// From now on other readers of the client may join the hold, if it is one that they may.
    pub(super) fn lets_join(&mut self, entry: &Arc<Entry>, name: &Name, mode: Mode) {
        let is_nobodys = locked(&entry.life).owner.is_none();
        if entry.settings.readers_in_a_hold > 1
            && mode == Mode::Shared
            && is_nobodys
            && entry.passes_on
        {
            self.joinable.insert(name.clone(), entry.clone());
        }
    }

    /// Nobody joins a hold that has ended.
    pub(super) fn lets_nobody_join(&mut self, entry: &Entry) {
        if entry.settings.readers_in_a_hold == 1 {
            return;
        }
        let name = entry.name();
        // A later hold of the client may stand there already.
        if self
            .joinable
            .get(&name)
            .is_some_and(|other| other.id == entry.id)
        {
            self.joinable.remove(&name);
        }
    }
}
