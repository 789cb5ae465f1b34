//! Owners: who is in a hold can enter it again, from any task ([`Owner`]).

use std::sync::Arc;

use tokio::sync::Notify;

use super::{Ledger, Lines};
use crate::engine::entry::Entry;
use crate::sync::locked;
use crate::{Clock, Error, ErrorKind, Mode, Moment, Name, Owner, Result};

/// Tasks of one owner that wait for one lock.
#[derive(Debug, Default)]
pub(super) struct OwnerWaits {
    tasks: usize,
    /// Told when the owner has the lock.
    got_in: Arc<Notify>,
}

impl Ledger {
    /// Held: the owner enters once more.
    pub(crate) fn reenter(
        &self,
        owner: Owner,
        name: &Name,
        mode: Mode,
        now: Moment,
    ) -> Result<Option<Arc<Entry>>> {
        let lines = self.lines();
        let Some(holds) = lines.owned.get(&(owner, name.clone())) else {
            return Ok(None);
        };
        let held = || holds.iter().filter(|entry| entry.is_held(now));
        let enters = |entry: &&Arc<Entry>| match (entry.mode(), mode) {
            (Mode::Exclusive, Mode::Exclusive | Mode::Shared) => true,
            (held, asked) => held == Mode::Shared && asked == Mode::Shared,
        };
        if let Some(entry) = held().find(enters) {
            locked(&entry.life).guards += 1;
            let entry = entry.clone();
            if !entry.is_taken_up() {
                // It was passed on to another task of the owner, which may never run again.
                drop(lines);
                self.take_up(&entry, now);
            }
            return Ok(Some(entry));
        }
        let reads = mode == Mode::Exclusive && held().any(|entry| entry.mode() == Mode::Shared);
        if reads {
            return Err(Error::new(
                ErrorKind::Conflict,
                "this owner holds the lock for reading and asks to write: two upgrades would wait for each other for ever, so \
                 release the read lock first, or take the write lock from the start and downgrade it",
            ));
        }
        Ok(None)
    }

    /// Resolves when another task of the owner has got the lock, with one more guard on that hold.
    ///
    /// The other task may wait for this one before it lets go, so this one cannot wait for its own turn alone.
    pub(crate) async fn owner_gets_in(
        &self,
        owner: Owner,
        name: &Name,
        mode: Mode,
        clock: &dyn Clock,
    ) -> Arc<Entry> {
        let (waits, got_in) = self.waits_for_owner(owner, name);
        loop {
            let mut told = std::pin::pin!(got_in.notified());
            told.as_mut().enable();
            // A hold that this task cannot enter, to write in what is read, is waited for like that of anybody else.
            if let Ok(Some(entry)) = self.reenter(owner, name, mode, clock.now()) {
                drop(waits);
                return entry;
            }
            told.await;
        }
    }

    fn waits_for_owner(&self, owner: Owner, name: &Name) -> (Waits<'_>, Arc<Notify>) {
        let key = (owner, name.clone());
        let mut lines = self.lines();
        let waits = lines.owners_wait.entry(key.clone()).or_default();
        waits.tasks += 1;
        let got_in = waits.got_in.clone();
        drop(lines);
        (Waits { ledger: self, key }, got_in)
    }

    /// Whether an owner holds a lock now.
    pub(crate) fn is_owned(&self, owner: Owner, name: &Name, now: Moment) -> bool {
        self.lines()
            .owned
            .get(&(owner, name.clone()))
            .is_some_and(|holds| holds.iter().any(|entry| entry.is_held(now)))
    }
}

/// One task that waits; dropping it leaves nothing behind ([C16](crate::contract#c16)).
struct Waits<'a> {
    ledger: &'a Ledger,
    key: (Owner, Name),
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut lines = self.ledger.lines();
        if let Some(waits) = lines.owners_wait.get_mut(&self.key) {
            waits.tasks -= 1;
            if waits.tasks == 0 {
                lines.owners_wait.remove(&self.key);
            }
        }
    }
}

impl Lines {
    /// From now on another owner can enter the hold again, or nobody.
    pub(super) fn other_owner(
        &mut self,
        entry: &Arc<Entry>,
        before: Option<Owner>,
        now: Option<Owner>,
        name: Name,
    ) {
        if let Some(owner) = before {
            let key = (owner, name.clone());
            // Readers of one owner who asked at the same moment have a hold each.
            if let Some(holds) = self.owned.get_mut(&key) {
                holds.retain(|other| other.id != entry.id);
                if holds.is_empty() {
                    self.owned.remove(&key);
                }
            }
        }
        if let Some(owner) = now {
            let key = (owner, name);
            if let Some(waits) = self.owners_wait.get(&key) {
                waits.got_in.notify_waiters();
            }
            self.owned.entry(key).or_default().push(entry.clone());
        }
    }
}
