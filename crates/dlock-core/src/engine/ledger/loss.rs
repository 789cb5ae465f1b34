//! Holds that are lost: by the clock, by the store's word, or because the client closes ([C8](crate::contract#c8), [C9](crate::contract#c9)).

use std::sync::Arc;
use std::time::Duration;

use super::{Freed, Ledger, Lines};
use crate::engine::entry::{Ending, Entry, Life, Phase};
use crate::engine::keep_alive::Keep;
use crate::sync::locked;
use crate::{LossReason, Moment};

impl Ledger {
    /// Held → Undoing or Over: a loss, unless the hold has ended otherwise. It is counted when anybody can see it. Whether somebody is
    /// to be told.
    pub(crate) fn lose(
        &self,
        entry: &Arc<Entry>,
        reason: LossReason,
        client: &dyn Keep,
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
        client: &dyn Keep,
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

    pub(super) fn lose_in(
        &self,
        lines: &mut Lines,
        entry: &Arc<Entry>,
        reason: LossReason,
        client: Option<&dyn Keep>,
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
}

/// Why a hold is lost that has come to its end by the clock.
pub(super) fn clock_reason(life: &Life, now: Moment) -> LossReason {
    if now + Duration::from_millis(2) >= life.ends_at {
        LossReason::MaxHold
    } else {
        LossReason::Expired
    }
}
