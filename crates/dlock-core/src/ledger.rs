//! The one list of holds, of attempts under way, and of what is still to be undone. Renewal, clean-up and close all read it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::client::Client;
use crate::hold::Hold;
use crate::sync::locked;
use crate::{Error, ErrorKind, Mode, Moment, Name, Owner, Request, Result};

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    lines: Mutex<Lines>,
    /// Told when a chore arrives.
    pub(crate) work: Notify,
    /// Told when a hold must be looked at earlier than the keeper plans to.
    pub(crate) sooner: Notify,
    /// Told when something ended, for `close`.
    quieter: Notify,
    /// Told when `close` was called, for attempts that wait.
    closing: Notify,
}

#[derive(Debug)]
struct Lines {
    /// Every hold, by the moment the keeper must look at it.
    holds: BTreeMap<(Moment, u64), Arc<Hold>>,
    /// The holds that their owners can enter again.
    owned: HashMap<(Owner, Name), Arc<Hold>>,
    chores: VecDeque<Chore>,
    /// Attempts that were sent and have not ended, and chores that somebody works on.
    under_way: usize,
    /// When the keeper looks next, if nobody tells it.
    keeper_wakes: Moment,
    last_id: u64,
    closed: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            holds: BTreeMap::new(),
            owned: HashMap::new(),
            chores: VecDeque::new(),
            under_way: 0,
            keeper_wakes: Moment::NEVER,
            last_id: 0,
            closed: false,
        }
    }
}

/// Something that the store may still have and that nobody wants.
#[derive(Debug)]
pub(crate) struct Chore {
    pub(crate) what: Leftover,
    /// When the store has forgotten it by itself.
    pub(crate) until: Moment,
    /// Keeps the client alive until it is done, also when the last handle is gone; not when no reaper runs.
    pub(crate) keeps: Option<Arc<Client>>,
}

#[derive(Debug)]
pub(crate) enum Leftover {
    Hold(Arc<Hold>),
    Attempt(Arc<Request>),
}

/// What the keeper has to do now.
#[derive(Debug, Default)]
pub(crate) struct Due {
    pub(crate) renew: Vec<Arc<Hold>>,
    pub(crate) lost: Vec<Arc<Hold>>,
    /// When to look again.
    pub(crate) next: Option<Moment>,
}

impl Ledger {
    /// Writes an attempt down before its first byte is sent.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut lines = locked(&self.lines);
        if lines.closed {
            return Err(closed());
        }
        lines.under_way += 1;
        Ok(())
    }

    /// Writes a release down; a closed client may still release.
    pub(crate) fn begin_release(&self) {
        locked(&self.lines).under_way += 1;
    }

    /// Strikes an attempt, a release or a chore that ended; what it left was noted before.
    pub(crate) fn strike(&self) {
        let mut lines = locked(&self.lines);
        lines.under_way = lines.under_way.saturating_sub(1);
        drop(lines);
        self.quieter.notify_waiters();
    }

    /// Turns an attempt into a hold; `None` when the client was closed meanwhile, which has given back every hold it knew.
    pub(crate) fn held(&self, make: impl FnOnce(u64) -> Hold, name: &Name) -> Option<Arc<Hold>> {
        let mut lines = locked(&self.lines);
        if lines.closed {
            // Outside of the lock: what the hold would have been made of may carry the turn.
            drop(lines);
            return None;
        }
        lines.under_way = lines.under_way.saturating_sub(1);
        lines.last_id += 1;
        let hold = Arc::new(make(lines.last_id));
        let due = first_look(&hold);
        hold.due.store(due.as_nanos(), Ordering::Relaxed);
        lines.holds.insert((due, hold.id), hold.clone());
        if let Some(owner) = hold.owner {
            lines.owned.insert((owner, name.clone()), hold.clone());
        }
        let sooner = due < lines.keeper_wakes;
        drop(lines);
        if sooner {
            self.sooner.notify_one();
        }
        Some(hold)
    }

    /// Enters a hold of the same owner once more.
    pub(crate) fn reenter(
        &self,
        owner: Owner,
        name: &Name,
        mode: Mode,
        now: Moment,
    ) -> Result<Option<Arc<Hold>>> {
        let lines = locked(&self.lines);
        let Some(hold) = lines.owned.get(&(owner, name.clone())) else {
            return Ok(None);
        };
        if !hold.is_held(now) {
            return Ok(None);
        }
        match (hold.lease().mode(), mode) {
            (Mode::Exclusive, Mode::Exclusive | Mode::Shared) | (Mode::Shared, Mode::Shared) => {
                hold.entries.fetch_add(1, Ordering::Relaxed);
                Ok(Some(hold.clone()))
            }
            (Mode::Shared, Mode::Exclusive) => Err(Error::new(
                ErrorKind::Conflict,
                "this owner holds the lock for reading and asks to write: two upgrades would wait for each other for ever, so \
                 release the read lock first, or take the write lock from the start and downgrade it",
            )),
            _ => Ok(None),
        }
    }

    /// Leaves a hold; `true` when that was the owner's last entry, and the hold is off the list.
    pub(crate) fn leave(&self, hold: &Arc<Hold>) -> bool {
        let mut lines = locked(&self.lines);
        if hold.entries.fetch_sub(1, Ordering::Relaxed) > 1 {
            return false;
        }
        lines.remove(hold);
        true
    }

    /// Takes a hold off the list, however many entries it has.
    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        locked(&self.lines).remove(hold);
        self.quieter.notify_waiters();
    }

    /// Notes something to undo.
    pub(crate) fn add_chore(&self, chore: Chore) {
        locked(&self.lines).chores.push_back(chore);
        self.work.notify_one();
    }

    /// The next thing to undo; it counts as under way until it is struck or added again.
    pub(crate) fn take_chore(&self) -> Option<Chore> {
        let mut lines = locked(&self.lines);
        let chore = lines.chores.pop_front()?;
        lines.under_way += 1;
        Some(chore)
    }

    /// The reaper ended with its runtime: what is left must not keep the client for ever.
    pub(crate) fn orphan_chores(&self) {
        let orphans: Vec<_> = {
            let mut lines = locked(&self.lines);
            lines
                .chores
                .iter_mut()
                .filter_map(|chore| chore.keeps.take())
                .collect()
        };
        // Outside of the lock: this may be the end of the client.
        drop(orphans);
    }

    /// Looks at every hold whose moment has come, and plans the next look.
    pub(crate) fn due(&self, now: Moment) -> Due {
        let mut due = Due::default();
        let mut lines = locked(&self.lines);
        // Renewing a little early lets one trip serve many holds.
        let window = match lines.holds.first_key_value() {
            Some(((first, _), hold)) if *first <= now => {
                now + hold.settings.renew_every.unwrap_or_default() / 4
            }
            _ => now,
        };
        let mut moved = Vec::new();
        for ((at, _), hold) in lines.holds.range(..=(window, u64::MAX)) {
            if now >= hold.loss_at() {
                due.lost.push(hold.clone());
            } else if hold.settings.renew_every.is_some() && !hold.renewing.load(Ordering::Relaxed)
            {
                due.renew.push(hold.clone());
            } else if *at <= now {
                // Its end was moved since the look was planned.
                moved.push(hold.clone());
            }
        }
        for hold in due.renew.iter().chain(&moved) {
            lines.plan(hold, hold.loss_at());
        }
        for hold in &due.renew {
            hold.renewing.store(true, Ordering::Relaxed);
        }
        for hold in &due.lost {
            lines.remove(hold);
        }
        due.next = lines.holds.first_key_value().map(|((at, _), _)| *at);
        lines.keeper_wakes = due.next.unwrap_or(Moment::NEVER);
        due
    }

    /// A new keeper starts: renewals that the old one had under way ended with its runtime.
    pub(crate) fn renewals_ended(&self, now: Moment) {
        let mut lines = locked(&self.lines);
        let interrupted: Vec<_> = lines
            .holds
            .values()
            .filter(|hold| hold.renewing.swap(false, Ordering::Relaxed))
            .cloned()
            .collect();
        for hold in &interrupted {
            lines.plan(hold, now);
        }
    }

    /// Whether an owner holds a lock now.
    pub(crate) fn is_owned(&self, owner: Owner, name: &Name, now: Moment) -> bool {
        let lines = locked(&self.lines);
        lines
            .owned
            .get(&(owner, name.clone()))
            .is_some_and(|hold| hold.is_held(now))
    }

    /// A renewal ended; the keeper looks again at `next`, or when the hold ends.
    pub(crate) fn renewed(&self, hold: &Arc<Hold>, next: Moment) {
        hold.renewing.store(false, Ordering::Relaxed);
        let mut lines = locked(&self.lines);
        lines.plan(hold, next.min(hold.loss_at()));
    }

    /// Refuses new attempts, and hands out every hold that is left.
    pub(crate) fn close(&self) -> Option<Vec<Arc<Hold>>> {
        let mut lines = locked(&self.lines);
        if std::mem::replace(&mut lines.closed, true) {
            return None;
        }
        let left = lines.holds.values().cloned().collect();
        drop(lines);
        self.closing.notify_waiters();
        Some(left)
    }

    /// Resolves when `close` was called.
    pub(crate) async fn closed(&self) {
        loop {
            let mut closing = std::pin::pin!(self.closing.notified());
            closing.as_mut().enable();
            if locked(&self.lines).closed {
                return;
            }
            closing.await;
        }
    }

    /// Resolves when no attempt is under way and nothing is left to undo.
    pub(crate) async fn quiet(&self) {
        loop {
            let mut quieter = std::pin::pin!(self.quieter.notified());
            quieter.as_mut().enable();
            {
                let lines = locked(&self.lines);
                if lines.under_way == 0 && lines.chores.is_empty() {
                    return;
                }
            }
            quieter.await;
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let lines = locked(&self.lines);
        Counts {
            held: lines.holds.len(),
            in_doubt: lines.chores.len() + lines.under_way,
        }
    }
}

/// How full the ledger is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) held: usize,
    pub(crate) in_doubt: usize,
}

impl Lines {
    /// Moves a hold to another moment, if it is still on the list.
    fn plan(&mut self, hold: &Arc<Hold>, at: Moment) {
        let old = Moment::from_nanos(hold.due.load(Ordering::Relaxed));
        if let Some(hold) = self.holds.remove(&(old, hold.id)) {
            hold.due.store(at.as_nanos(), Ordering::Relaxed);
            self.holds.insert((at, hold.id), hold);
        }
    }

    fn remove(&mut self, hold: &Arc<Hold>) {
        let due = Moment::from_nanos(hold.due.load(Ordering::Relaxed));
        self.holds.remove(&(due, hold.id));
        if let Some(owner) = hold.owner {
            let key = (owner, hold.lease().name().clone());
            // A later hold of the same owner may stand there already.
            if self
                .owned
                .get(&key)
                .is_some_and(|other| other.id == hold.id)
            {
                self.owned.remove(&key);
            }
        }
    }
}

/// A third of the lease after it began, or the end when it is not renewed.
fn first_look(hold: &Hold) -> Moment {
    let end = hold.loss_at();
    match hold.settings.renew_every {
        Some(interval) => (hold.lease().from() + interval).min(end),
        None => end,
    }
}

pub(crate) fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this client was closed: make a new one with connect",
    )
}
