//! The life of an attempt and of the hold it became: every step of it.
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

use super::{Ledger, Lines, closed};
use crate::backend::{Backoff, Lease, Request};
use crate::engine::client::Client;
use crate::engine::entry::{Downgrade, Ending, Entry, Life, Phase, Subject, Undo};
use crate::engine::queue::{Heir, Turn};
use crate::lock::settings::{DEFAULT_TRIP_TIMEOUT, ResolvedSettings};
use crate::sync::locked;
use crate::{Error, LossReason, Mode, Moment, Owner, Result};

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A trip that has a time limit of its own gets this much longer before somebody else takes over.
pub(super) const OVERDUE: Duration = Duration::from_millis(250);

/// Who asks for a lock, and how it is kept.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) settings: Arc<ResolvedSettings>,
    pub(crate) owner: Option<Owner>,
    /// The name of the span it asks in.
    pub(crate) span: Option<&'static str>,
    /// Whether the hold may be passed on to other tasks with the same settings.
    pub(crate) passes_on: bool,
}

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
    PassedOn(Heir),
    /// This client keeps it for a while.
    Resting,
    /// The caller tells the store.
    Releasing,
    /// A room tells the store.
    Undoing,
}

/// What a step has set free, the turn and what kept the client alive: dropped by the caller, after the lock.
pub(super) type Freed = (Option<Turn>, Option<Arc<Client>>);

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
        turn: Option<Turn>,
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
    pub(crate) fn in_doubt(&self, entry: &Arc<Entry>, client: &Arc<Client>, now: Moment) {
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
        client: &Arc<Client>,
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

    /// Held → Held: the next local task that waits has the hold from now on, with the next of its tokens, and the store hears nothing
    /// of it (C21). `None` when nobody waits, or it is the turn of others.
    ///
    /// The task is told after the lock. If it has gone away by then, the hold is left once more, as from its guard. With the heir comes
    /// the moment at which the hold has to be looked at, if that was moved.
    fn pass_on(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        now: Moment,
    ) -> Option<(Heir, Option<Moment>)> {
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

    /// A task is no longer in: times count only if it ever was.
    fn no_longer_in(&self, entry: &Entry, now: Moment) {
        let held = now.since(locked(&entry.life).granted_at);
        self.stats.held(entry.is_taken_up().then_some(held));
    }

    /// Releasing → Over. `false` when a room has taken over meanwhile.
    pub(crate) fn release_confirmed(&self, entry: &Arc<Entry>) -> bool {
        let mut lines = self.lines();
        let mine = locked(&entry.life).phase == Phase::Releasing;
        let freed = mine.then(|| {
            lines.counts.releasing -= 1;
            lines.over(entry)
        });
        drop(lines);
        drop(freed);
        self.quieter.notify_waiters();
        mine
    }

    /// Releasing → Undoing: the store did not confirm, or the caller's future was dropped. What failed is told along the line.
    pub(crate) fn release_unconfirmed(
        &self,
        entry: &Arc<Entry>,
        client: &Arc<Client>,
        now: Moment,
        failure: Option<&Error>,
    ) {
        let mut lines = self.lines();
        if locked(&entry.life).phase != Phase::Releasing {
            return;
        }
        lines.counts.releasing -= 1;
        if let (Some(error), Some(turn)) = (failure, &locked(&entry.life).turn) {
            turn.failed(error, now);
        }
        self.undo(&mut lines, entry, Some(client), now);
        self.ring(lines, now, entry);
    }

    /// The next local task may go to the store before the release is confirmed: the store keeps the order of requests.
    pub(crate) fn pass_turn(&self, entry: &Entry) {
        let lines = self.lines();
        let turn = locked(&entry.life).turn.take();
        drop(lines);
        drop(turn);
    }

    /// Held → Undoing or Over: a loss, unless the hold has ended otherwise. It is counted when anybody can see it. Whether somebody is
    /// to be told.
    pub(crate) fn lose(
        &self,
        entry: &Arc<Entry>,
        reason: LossReason,
        client: &Arc<Client>,
        now: Moment,
    ) -> bool {
        let mut lines = self.lines();
        let seen = {
            let life = locked(&entry.life);
            if life.phase != Phase::Held {
                return false;
            }
            life.rest.is_none()
        };
        let freed = self.lose_in(&mut lines, entry, reason, Some(client), now);
        self.ring(lines, now, entry);
        drop(freed);
        self.quieter.notify_waiters();
        seen
    }

    /// As [`lose`](Ledger::lose), by the clock: the reason follows from what has ended.
    pub(crate) fn lose_to_the_clock(
        &self,
        entry: &Arc<Entry>,
        client: &Arc<Client>,
        now: Moment,
    ) -> Option<LossReason> {
        let mut lines = self.lines();
        // It may have been renewed since the caller looked.
        let over = now >= entry.loss_at() || !entry.is_held(now);
        if !over || locked(&entry.life).phase != Phase::Held {
            return None;
        }
        let (reason, seen) = {
            let life = locked(&entry.life);
            (clock_reason(&life, now), life.rest.is_none())
        };
        let freed = self.lose_in(&mut lines, entry, reason, Some(client), now);
        self.ring(lines, now, entry);
        drop(freed);
        self.quieter.notify_waiters();
        seen.then_some(reason)
    }

    fn lose_in(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        reason: LossReason,
        client: Option<&Arc<Client>>,
        now: Moment,
    ) -> Freed {
        let rest = locked(&entry.life).rest.take();
        if rest.is_some() {
            // Nobody was in.
            entry.ends(Ending::LetGo);
        } else {
            if entry.is_taken_up() {
                self.stats.count(reason.into(), &entry.settings.group);
            }
            self.no_longer_in(entry, now);
            lines.no_longer_held(entry, Ending::Lost(reason));
        }
        match reason {
            LossReason::Gone | LossReason::SessionEnded => {
                let (turn, keeps) = lines.over(entry);
                (turn, keeps.or(rest.map(|rest| rest.keeps)))
            }
            // The store may still have it: it is freed for the next, who waits until that was tried.
            _ => {
                if let Some(turn) = &locked(&entry.life).turn {
                    turn.gives_back(now);
                }
                self.undo(lines, entry, client, now);
                (None, rest.map(|rest| rest.keeps))
            }
        }
    }

    /// → Undoing, from wherever; the first try is due at once.
    pub(super) fn undo(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        client: Option<&Arc<Client>>,
        now: Moment,
    ) {
        lines.counts.undoing += 1;
        let lease = entry.settings.lease;
        // An error in doubt can come from a try as long as the lease of its request.
        let until = if self.by_lease {
            now + lease
        } else {
            Moment::NEVER
        };
        {
            let mut life = locked(&entry.life);
            life.phase = Phase::Undoing;
            life.under_way = false;
            life.undo = Some(Box::new(Undo {
                until,
                keeps_until: now + lease,
                keeps: client.filter(|client| client.can_finish()).cloned(),
                pauses: Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE),
                tried: false,
            }));
        }
        lines.plan(entry, now);
    }

    /// Held: a downgrade is asked for. From now on the guard is a reader's, and the local turn is free.
    pub(crate) fn downgrading(&self, entry: &Arc<Entry>) {
        let lines = self.lines();
        let turn = {
            let mut life = locked(&entry.life);
            if life.downgrade == Downgrade::NotAsked {
                life.downgrade = Downgrade::InDoubt;
            }
            life.turn.take()
        };
        drop(lines);
        drop(turn);
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

    /// Held: nothing is known of a renewal; it is tried again at `again` (C10).
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
                // Nobody is in, and nobody is to have it like this.
                self.end_rest_in(&mut lines, entry, &rest.keeps, again);
                self.ring(lines, again, entry);
                return;
            }
        }
        let due = again.min(entry.loss_at());
        lines.plan(entry, due);
        self.ring(lines, due, entry);
    }

    /// Undoing → Over: the store has confirmed.
    pub(crate) fn undone(&self, entry: &Arc<Entry>) {
        let mut lines = self.lines();
        let freed = self.undone_in(&mut lines, entry);
        drop(lines);
        drop(freed);
        self.quieter.notify_waiters();
    }

    pub(super) fn undone_in(&self, lines: &mut Lines, entry: &Arc<Entry>) -> Freed {
        if locked(&entry.life).phase != Phase::Undoing {
            return Freed::default();
        }
        lines.counts.undoing -= 1;
        let subject = entry.subject();
        if let Subject::Attempt(request) = &subject
            && let Some(doubts) = lines.doubts.get_mut(request.name())
        {
            doubts.entries.retain(|other| other.id != entry.id);
            if doubts.entries.is_empty() {
                lines.doubts.remove(request.name());
            }
        }
        lines.over(entry)
    }

    /// Undoing: not confirmed. It sleeps, and takes no room while it does. Local waiters go on now: the store decides, and tells
    /// them if it is out of reach.
    pub(crate) fn not_undone(&self, entry: &Arc<Entry>, trip: u32, error: &Error, now: Moment) {
        let mut lines = self.lines();
        let (turn, due) = {
            let mut life = locked(&entry.life);
            if life.phase != Phase::Undoing || life.trip != trip {
                return;
            }
            life.under_way = false;
            let pause = life.undo.as_mut().map(|undo| undo.pauses.pause());
            let until = life.undo.as_ref().map_or(now, |undo| undo.until);
            let due = now + pause.unwrap_or_default();
            // The last try comes when the lease is over, however long the pause would be.
            (life.turn.take(), due.min(until).max(now))
        };
        if let Some(doubts) = lines.doubts.get_mut(&entry.name())
            && matches!(entry.subject(), Subject::Attempt(_))
        {
            doubts.failures += 1;
            doubts.last = Some(error.clone());
        }
        lines.plan(entry, due);
        self.ring(lines, due, entry);
        if let Some(turn) = turn {
            turn.failed(error, now);
        }
        self.quieter.notify_waiters();
    }

    /// A trip ended without a word: its runtime has ended. Somebody else goes on at once.
    pub(crate) fn dropped_trip(&self, entry: &Arc<Entry>, trip: u32, now: Moment) {
        let mut lines = self.lines();
        {
            let mut life = locked(&entry.life);
            let open = matches!(life.phase, Phase::Held | Phase::Undoing);
            if !open || life.trip != trip || !life.under_way {
                return;
            }
            life.under_way = false;
        }
        lines.plan(entry, now);
        self.ring(lines, now, entry);
    }

    /// No room is left that could finish anything: what is still to be undone must not keep the client for ever.
    pub(crate) fn orphan(&self, now: Moment) {
        let mut lines = self.lines();
        let orphans: Vec<_> = lines
            .chores
            .values()
            .filter_map(|entry| locked(&entry.life).undo.as_mut()?.keeps.take())
            .collect();
        let rests = self.orphan_rests(&mut lines, now);
        drop(lines);
        // Outside of the lock: this may be the end of the client.
        drop((orphans, rests));
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
    fn no_longer_held(&mut self, entry: &Arc<Entry>, ending: Ending) {
        self.counts.held -= 1;
        entry.ends(ending);
        self.lets_nobody_join(entry);
        let owner = locked(&entry.life).owner;
        if owner.is_some() {
            self.other_owner(entry, owner, None, entry.name());
        }
    }

    /// → Over.
    fn over(&mut self, entry: &Arc<Entry>) -> Freed {
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

/// How long one try to undo may take.
pub(crate) fn undo_limit(entry: &Entry) -> Duration {
    entry.settings.trip_timeout.min(DEFAULT_TRIP_TIMEOUT)
}

/// Why a hold is lost that has come to its end by the clock.
fn clock_reason(life: &Life, now: Moment) -> LossReason {
    if now + Duration::from_millis(2) >= life.ends_at {
        LossReason::MaxHold
    } else {
        LossReason::Expired
    }
}
