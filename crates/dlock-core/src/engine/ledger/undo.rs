//! The way back to the store: releases that are not confirmed, attempts in doubt, and holds that nobody wants any more ([C13](crate::contract#c13),
//! [C15](crate::contract#c15)).

use std::sync::Arc;
use std::time::Duration;

use super::{Freed, Ledger, Lines};
use crate::backend::Backoff;
use crate::engine::entry::{Entry, Phase, Subject, Undo};
use crate::engine::keep_alive::Keep;
use crate::lock::settings::DEFAULT_TRIP_TIMEOUT;
use crate::sync::locked;
use crate::{Error, Moment};

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
impl Ledger {
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
        client: &dyn Keep,
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

    /// → Undoing, from wherever; the first try is due at once.
    pub(super) fn undo(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        client: Option<&dyn Keep>,
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
                keeps: client.filter(|client| client.can_finish()).map(Keep::keep),
                pauses: Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE),
                tried: false,
            }));
        }
        lines.plan(entry, now);
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
}

/// How long one try to undo may take.
pub(crate) fn undo_limit(entry: &Entry) -> Duration {
    entry.settings.trip_timeout.min(DEFAULT_TRIP_TIMEOUT)
}
