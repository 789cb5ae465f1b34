//! The queue of one lock: who stands in it, in which order, and who holds.
//!
//! Each attempt has one child of the lock's node, named `_c_<attempt>-<mode>lock-<sequence>`: Curator's own form, so that
//! its `InterProcessMutex` stands in the same queue and takes every place of ours for one like its own. What an attempt may do follows
//! from the names of those who came before it; they can only leave, and nobody can come in between.

mod places;

use dlock_core::Mode;

pub(crate) use self::places::{NodeState, QueuePlace, node_data, node_prefix, places, read_data};

/// What an attempt may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It holds.
    Held,
    /// The semaphore is in use with another limit.
    Conflict(u32),
    /// It waits for one place to be left.
    Wait(Obstacle),
    /// It waits for any permit: the first waiter of a semaphore, and only that one, watches all places.
    AnyChange,
}

/// The one place that a waiter watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) node: String,
    pub(crate) mode: Mode,
    /// Nobody else is in the way: when this one is gone, the waiter holds.
    pub(crate) last: bool,
    /// Readers hold, and only writers that tried in vain are between them and a reader: these leave by themselves, at once.
    pub(crate) passing: bool,
}

/// What `mine` may do in a queue of `all`, which are in the order of creation; `None` when its node is not there any more.
pub(crate) fn verdict(mine: &QueuePlace, all: &[QueuePlace]) -> Option<Verdict> {
    let index = all.iter().position(|place| place.node == mine.node)?;
    Some(verdict_behind(mine.mode, all.get(..index)?))
}

/// What somebody may do who stands behind these, which are in the order of creation.
pub(crate) fn verdict_behind(mode: Mode, ahead: &[QueuePlace]) -> Verdict {
    match mode {
        Mode::Shared => {
            let is_writer = |place: &&QueuePlace| place.mode != Mode::Shared;
            let mut writers = ahead.iter().rev().filter(is_writer);
            let (nearest, last) = (writers.next(), writers.next().is_none());
            let readers_hold = ahead.first().is_some_and(|place| place.mode == mode);
            let passing = readers_hold && ahead.iter().filter(is_writer).all(|place| place.tries);
            behind(nearest, last, passing)
        }
        Mode::Permit { limit } => permit(limit, ahead),
        _ => behind(ahead.last(), ahead.len() == 1, false),
    }
}

/// Behind this one, if there is one.
fn behind(nearest: Option<&QueuePlace>, last: bool, passing: bool) -> Verdict {
    match nearest {
        None => Verdict::Held,
        Some(nearest) => Verdict::Wait(Obstacle {
            node: nearest.node.clone(),
            mode: nearest.mode,
            last,
            passing,
        }),
    }
}

fn permit(limit: u32, ahead: &[QueuePlace]) -> Verdict {
    let other = ahead.iter().find_map(|place| match place.mode {
        Mode::Permit { limit: used } if used != limit => Some(used),
        _ => None,
    });
    if let Some(used) = other {
        return Verdict::Conflict(used);
    }
    let limit = limit as usize;
    let is_permit = |place: &&QueuePlace| matches!(place.mode, Mode::Permit { .. });
    let since_other = ahead.iter().rev().take_while(is_permit).count();
    match (ahead.len() - since_other, since_other) {
        (0, permits) if permits < limit => Verdict::Held,
        // Any of the permits may come back first: the watch of one of them would miss the others.
        (0, permits) if permits == limit => Verdict::AnyChange,
        // Readers or writers go first, and then there may be a permit for us.
        (others, permits) if others > 0 && permits < limit => {
            let nearest = others.checked_sub(1).and_then(|index| ahead.get(index));
            behind(nearest, others == 1, false)
        }
        // Behind a waiter like us, which tells when it is granted.
        _ => behind(ahead.last(), false, false),
    }
}

/// How many of these, in order of creation and with their real modes, hold.
pub(crate) fn holding(modes: &[Mode]) -> usize {
    match modes.first() {
        None => 0,
        Some(Mode::Exclusive) => 1,
        Some(Mode::Shared) => modes
            .iter()
            .take_while(|mode| **mode == Mode::Shared)
            .count(),
        Some(first @ Mode::Permit { limit }) => modes
            .iter()
            .take(*limit as usize)
            .take_while(|mode| *mode == first)
            .count(),
        Some(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::backend::AttemptId;

    const SHARED: Mode = Mode::Shared;
    const EXCLUSIVE: Mode = Mode::Exclusive;
    const PERMIT: Mode = Mode::Permit { limit: 2 };

    fn queue(places: &[(Mode, i64)]) -> Vec<QueuePlace> {
        places
            .iter()
            .map(|(mode, sequence)| {
                let node = format!(
                    "{}{sequence:010}",
                    node_prefix(crate::Style::Mutex, AttemptId::new(), *mode, false)
                );
                QueuePlace::parse(&node).expect("our own form")
            })
            .collect()
    }

    /// The verdict for the last one, with the place it waits for by its number.
    fn last(places: &[(Mode, i64)]) -> (Verdict, Option<usize>) {
        let all = queue(places);
        let mine = all.last().expect("one").clone();
        let verdict = verdict(&mine, &all).expect("it is there");
        let watched = match &verdict {
            Verdict::Wait(obstacle) => all.iter().position(|p| p.node == obstacle.node),
            _ => None,
        };
        (verdict, watched)
    }

    fn waits_for(places: &[(Mode, i64)]) -> Option<(usize, bool)> {
        match last(places) {
            (Verdict::Wait(obstacle), Some(index)) => Some((index, obstacle.last)),
            _ => None,
        }
    }

    #[test]
    fn the_first_holds_and_the_next_watches_only_the_one_before() {
        assert_eq!(last(&[(EXCLUSIVE, 4)]).0, Verdict::Held);
        assert_eq!(
            waits_for(&[(EXCLUSIVE, 4), (EXCLUSIVE, 5)]),
            Some((0, true))
        );
        assert_eq!(
            waits_for(&[(EXCLUSIVE, 1), (SHARED, 4), (EXCLUSIVE, 5)]),
            Some((1, false))
        );
    }

    #[test]
    fn order_outlasts_the_counter() {
        // As ZooKeeper 3.8 numbers: the last number for all, and negative ones among them.
        let mut all = queue(&[
            (EXCLUSIVE, 2_147_483_646),
            (EXCLUSIVE, 2_147_483_647),
            (EXCLUSIVE, 2_147_483_647),
            (EXCLUSIVE, -2_147_483_648),
            (EXCLUSIVE, 2_147_483_647),
        ]);
        let worn_out: Vec<bool> = all.iter().map(QueuePlace::is_worn_out).collect();
        assert_eq!(worn_out, [false, true, true, true, true]);
        for (czxid, place) in (100..).zip(&mut all) {
            place.czxid = Some(czxid);
        }
        assert_eq!(verdict(&all[0], &all), Some(Verdict::Held));
        for place in 1..all.len() {
            let Some(Verdict::Wait(obstacle)) = verdict(&all[place], &all) else {
                panic!("{place} does not wait");
            };
            assert_eq!(obstacle.node, all[place - 1].node);
            assert_eq!(obstacle.last, place == 1);
        }
    }

    #[test]
    fn readers_wait_for_the_nearest_writer_alone() {
        assert_eq!(last(&[(SHARED, 1), (SHARED, 2)]).0, Verdict::Held);
        assert_eq!(
            waits_for(&[(SHARED, 1), (EXCLUSIVE, 2), (SHARED, 3), (SHARED, 4)]),
            Some((1, true))
        );
        assert_eq!(
            waits_for(&[(EXCLUSIVE, 1), (EXCLUSIVE, 2), (SHARED, 3)]),
            Some((1, false))
        );
    }

    #[test]
    fn writers_that_tried_in_vain_are_no_obstacle_for_long() {
        let passing = |places: &[(Mode, bool)]| {
            let mut all = Vec::new();
            for (sequence, (mode, tries)) in places.iter().enumerate() {
                let prefix = node_prefix(crate::Style::Mutex, AttemptId::new(), *mode, *tries);
                all.push(
                    QueuePlace::parse(&format!("{prefix}{sequence:010}")).expect("our own form"),
                );
            }
            match verdict_behind(SHARED, &all) {
                Verdict::Wait(obstacle) => obstacle.passing,
                other => panic!("{other:?}"),
            }
        };
        assert!(passing(&[(SHARED, false), (EXCLUSIVE, true)]));
        assert!(passing(&[
            (SHARED, false),
            (EXCLUSIVE, true),
            (SHARED, true)
        ]));
        // It may hold; and one that waits is to have its turn.
        assert!(!passing(&[(EXCLUSIVE, true), (SHARED, false)]));
        assert!(!passing(&[
            (SHARED, false),
            (EXCLUSIVE, false),
            (EXCLUSIVE, true)
        ]));
    }

    #[test]
    fn permits_are_granted_up_to_the_limit_and_the_first_waiter_watches_all() {
        assert_eq!(last(&[(PERMIT, 1), (PERMIT, 2)]).0, Verdict::Held);
        let three = [(PERMIT, 1), (PERMIT, 2), (PERMIT, 3)];
        assert_eq!(last(&three).0, Verdict::AnyChange);
        let four = [(PERMIT, 1), (PERMIT, 2), (PERMIT, 3), (PERMIT, 4)];
        assert_eq!(waits_for(&four), Some((2, false)));
        assert_eq!(
            last(&[(Mode::Permit { limit: 3 }, 1), (PERMIT, 2)]).0,
            Verdict::Conflict(3)
        );
    }

    #[test]
    fn permits_and_others_keep_the_order_of_arrival() {
        assert_eq!(
            waits_for(&[(EXCLUSIVE, 1), (PERMIT, 2), (PERMIT, 3)]),
            Some((0, true))
        );
        let full = [(EXCLUSIVE, 1), (PERMIT, 2), (PERMIT, 3), (PERMIT, 4)];
        assert_eq!(waits_for(&full), Some((2, false)));
        assert_eq!(waits_for(&[(PERMIT, 1), (SHARED, 2)]), Some((0, true)));
    }

    #[test]
    fn a_node_that_is_gone_has_no_verdict() {
        let all = queue(&[(EXCLUSIVE, 1), (EXCLUSIVE, 2)]);
        assert_eq!(verdict(&all[1], &all[..1]), None);
    }

    #[test]
    fn who_holds() {
        for (modes, count) in [
            (&[][..], 0),
            (&[EXCLUSIVE, SHARED][..], 1),
            (&[SHARED, SHARED, EXCLUSIVE, SHARED][..], 2),
            (&[PERMIT, PERMIT, PERMIT][..], 2),
            (&[PERMIT, SHARED][..], 1),
        ] {
            assert_eq!(holding(modes), count, "{modes:?}");
        }
    }
}
