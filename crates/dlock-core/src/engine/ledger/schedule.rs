//! What is looked at when. A room takes from here what is due, as much as it has room for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::life::OVERDUE;
use super::undo::undo_limit;
use super::{Freed, Ledger, Lines};
use crate::engine::entry::{Entry, Life, Phase};
use crate::engine::keep_alive::Keep;
use crate::engine::post::{LAG, Post};
use crate::sync::locked;
use crate::{Moment, Name};

/// How many entries one look goes through at most, so that nobody waits long for the lock.
const LOOK_AT: usize = 8192;
/// After so many that find no room, a look ends: those behind them would find none either.
const ENOUGH: usize = 512;

/// A room looks so often while there is anything new or left, so that a release that nobody drives is found without a ring for each
/// of them.
pub(super) const AT_LEAST_EVERY: Duration = Duration::from_secs(15);

/// Entries by the moment at which they have to be looked at.
pub(super) type Schedule = BTreeMap<(Moment, u64), Arc<Entry>>;

/// What a room has to do now.
#[derive(Debug)]
pub(crate) struct Work {
    /// To be declared lost.
    pub(crate) lost: Vec<Arc<Entry>>,
    /// To be renewed, those whose last renewal failed apart: they may wait for a part of the store that does not answer.
    pub(crate) renew: Vec<(Arc<Entry>, u32)>,
    pub(crate) renew_again: Vec<(Arc<Entry>, u32)>,
    pub(crate) undo: Vec<(Arc<Entry>, u32)>,
    /// Holds for which it shall be heard whether others wait.
    pub(crate) watch: Vec<Arc<Entry>>,
    /// Undos that were given up: the lease has ended what they were for.
    pub(crate) given_up: Vec<Name>,
    /// Of the standby: home should have looked, and has not.
    pub(crate) home_is_late: bool,
    /// When to look again, if nobody rings.
    pub(crate) next: Moment,
}

/// How many more entries a room can take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) renew: usize,
    pub(crate) renew_again: usize,
    pub(crate) undo: usize,
}

enum Look {
    Done,
    Freed(Freed),
    NoRoom,
}

impl Ledger {
    /// Looks at everything whose moment has come, begins a trip for what a room can take, and plans the next look.
    ///
    /// The standby looks a little later than home, so that it finds only what home has left.
    pub(crate) fn take_work(
        &self,
        post: Post,
        now: Moment,
        capacity: Capacity,
        client: Option<&dyn Keep>,
    ) -> Work {
        let mut work = Work {
            lost: Vec::new(),
            renew: Vec::new(),
            renew_again: Vec::new(),
            undo: Vec::new(),
            watch: Vec::new(),
            given_up: Vec::new(),
            home_is_late: false,
            next: Moment::NEVER,
        };
        let mut freed = Vec::new();
        let mut lines = self.lines();
        let mut left = false;
        for chores in [false, true] {
            let room = if chores {
                capacity.undo
            } else {
                capacity.renew + capacity.renew_again
            };
            let most = room.saturating_add(ENOUGH).min(LOOK_AT);
            let due = lines.due(chores, post, now, most);
            left |= due.len() == most;
            let mut without_room = 0;
            for entry in due {
                match self.look(&mut lines, post, now, capacity, client, &entry, &mut work) {
                    Look::Done => {}
                    Look::Freed(set_free) => freed.push(set_free),
                    Look::NoRoom => {
                        left = true;
                        without_room += 1;
                        if without_room > ENOUGH {
                            break;
                        }
                    }
                }
            }
        }
        work.watch = lines.take_unwatched(match post {
            Post::Home => Moment::NEVER,
            Post::Standby => now.earlier(LAG),
        });
        let found = !(work.renew.is_empty() && work.renew_again.is_empty() && work.undo.is_empty());
        // A home that has not looked yet is late only if there was something to do.
        let late = lines.home_looks.map_or(found, |looks| looks + LAG <= now);
        work.home_is_late = post == Post::Standby && late;
        if work.home_is_late {
            work.watch.extend(lines.watched_by_home_alone());
        }
        let seen = match post {
            Post::Home => 0,
            Post::Standby => 1,
        };
        let last = lines.last_id;
        let anything_new = lines
            .seen_ids
            .get_mut(seen)
            .is_some_and(|id| std::mem::replace(id, last) != last);
        let mut next = lines.next_look(post);
        if let Some((since, _)) = lines.unwatched.first() {
            next = next.min(*since + LAG);
        }
        if anything_new || !(lines.holds.is_empty() && lines.chores.is_empty()) {
            next = next.min(now + AT_LEAST_EVERY);
        }
        // What found no room is looked at again when a trip has ended, and for its loss after a short while.
        let blocked = now + Duration::from_millis(10);
        work.next = if left {
            next.max(blocked)
        } else {
            next.max(now)
        };
        let next = work.next;
        match post {
            Post::Home => lines.home_looks = Some(next),
            Post::Standby => lines.standby_looks = Some(next),
        }
        drop(lines);
        if !freed.is_empty() {
            drop(freed);
            self.quieter.notify_waiters();
        }
        work
    }

    #[allow(clippy::too_many_arguments, reason = "one step of `take_work`")]
    fn look(
        &self,
        lines: &mut Lines,
        post: Post,
        now: Moment,
        capacity: Capacity,
        client: Option<&dyn Keep>,
        entry: &Arc<Entry>,
        work: &mut Work,
    ) -> Look {
        let (phase, under_way, in_trouble, due, renew_at) = {
            let life = locked(&entry.life);
            let Life {
                phase,
                under_way,
                in_trouble,
                due,
                renew_at,
                ..
            } = *life;
            (phase, under_way, in_trouble, due, renew_at)
        };
        if post == Post::Standby && due + post.lag(entry, due) > now {
            return Look::Done;
        }
        if phase == Phase::Held {
            if now >= entry.loss_at() {
                work.lost.push(entry.clone());
                return Look::Done;
            }
            if let Some(keeps) = self.end_rest_at(lines, entry, now) {
                return Look::Freed((None, Some(keeps)));
            }
            let early = entry.settings.renew_every.unwrap_or_default() / 4;
            let soon = !under_way && !in_trouble && renew_at <= now + early;
            let renews = entry.settings.renew_every.is_some();
            if !renews || !soon && renew_at > now {
                if due <= now {
                    // Its end was moved since the look was planned, or it no longer rests.
                    let at = if renews { renew_at } else { Moment::NEVER };
                    lines.plan(entry, at.min(entry.loss_at()));
                }
                return Look::Done;
            }
            if !entry.is_taken_up() && entry.postpone() {
                let again = now + entry.settings.renew_every.unwrap_or_default() / 8;
                lines.plan(entry, again.min(entry.loss_at()));
                return Look::Done;
            }
            let (batch, room) = if in_trouble {
                (&mut work.renew_again, capacity.renew_again)
            } else {
                (&mut work.renew, capacity.renew)
            };
            if batch.len() >= room {
                return Look::NoRoom;
            }
            let limit = entry.settings.renewal_limit() + OVERDUE;
            let trip = lines.begin_trip(entry, (now + limit).min(entry.loss_at()));
            batch.push((entry.clone(), trip));
            return Look::Done;
        }
        if due > now {
            // Within the window for renewals alone.
            return Look::Done;
        }
        if phase == Phase::Releasing {
            // Whoever waited for it has gone away without a word: its runtime is not driven.
            lines.counts.releasing -= 1;
            self.undo(lines, entry, client, now);
        }
        let (over, keeps) = {
            let mut life = locked(&entry.life);
            match &mut life.undo {
                Some(undo) if undo.tried && now >= undo.until => (true, None),
                Some(undo) if now >= undo.keeps_until => (false, undo.keeps.take()),
                Some(_) => (false, None),
                None => (true, None),
            }
        };
        if over {
            work.given_up.push(entry.name());
            return Look::Freed(self.undone_in(lines, entry));
        }
        if work.undo.len() >= capacity.undo {
            return Look::NoRoom;
        }
        if let Some(undo) = &mut locked(&entry.life).undo {
            undo.tried = true;
        }
        let limit = undo_limit(entry) + OVERDUE;
        let trip = lines.begin_trip(entry, now + limit);
        work.undo.push((entry.clone(), trip));
        match keeps {
            None => Look::Done,
            keeps => Look::Freed((None, keeps)),
        }
    }
}

impl Lines {
    fn schedule(&self, chores: bool) -> &Schedule {
        if chores { &self.chores } else { &self.holds }
    }

    /// What a room looks at now. Renewing a little early lets one trip serve many holds.
    fn due(&self, chores: bool, post: Post, now: Moment, most: usize) -> Vec<Arc<Entry>> {
        let schedule = self.schedule(chores);
        let until = match schedule.first_key_value() {
            Some(((first, _), entry)) if !chores && *first <= now && post == Post::Home => {
                now + entry.settings.renew_every.unwrap_or_default() / 4
            }
            _ => now,
        };
        schedule
            .range(..=(until, u64::MAX))
            .take(most)
            .map(|(_, entry)| entry.clone())
            .collect()
    }

    /// When a room looks next. The standby comes later for what home will do first, so its next entry need not be the first.
    fn next_look(&self, post: Post) -> Moment {
        const FIRST: usize = 64;
        let next = |schedule: &Schedule| {
            schedule
                .iter()
                .take(FIRST)
                .map(|((at, _), entry)| *at + post.lag(entry, *at))
                .min()
                .unwrap_or(Moment::NEVER)
        };
        next(&self.holds).min(next(&self.chores))
    }

    /// Puts an entry into the schedule of its phase, wherever it stood before. A hold is then renewed at that moment; it stands
    /// earlier while it rests, if its rest ends before.
    pub(super) fn plan(&mut self, entry: &Arc<Entry>, at: Moment) {
        let (old, at, phase) = {
            let mut life = locked(&entry.life);
            life.renew_at = at;
            let rests_until = life.rest.as_ref().map_or(Moment::NEVER, |rest| rest.until);
            let mut at = at.min(rests_until);
            if life.phase == Phase::Held {
                at = at.min(entry.loss_at());
            }
            (std::mem::replace(&mut life.due, at), at, life.phase)
        };
        self.holds.remove(&(old, entry.id));
        self.chores.remove(&(old, entry.id));
        let schedule = match phase {
            Phase::Held => &mut self.holds,
            _ => &mut self.chores,
        };
        schedule.insert((at, entry.id), entry.clone());
    }

    /// A trip begins, and must have ended at `by`.
    pub(super) fn begin_trip(&mut self, entry: &Arc<Entry>, by: Moment) -> u32 {
        let trip = {
            let mut life = locked(&entry.life);
            life.trip = life.trip.wrapping_add(1);
            life.under_way = true;
            life.trip
        };
        self.plan(entry, by);
        trip
    }
}
