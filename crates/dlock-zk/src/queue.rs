//! The queue of one lock: who stands in it, in which order, and who holds.
//!
//! Each attempt has one child of the lock's node, named `_c_<attempt>-<mode>lock-<sequence>`: Curator's own form, so that
//! its `InterProcessMutex` stands in the same queue and takes every place of ours for one like its own. What an attempt may do follows
//! from the names of those who came before it; they can only leave, and nobody can come in between.

use dlock_core::{AttemptId, Mode};
use uuid::Uuid;

/// One place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The node's name.
    pub(crate) node: String,
    /// Who stands there; `None` for a node that another library made without an id.
    pub(crate) attempt: Option<Uuid>,
    /// As the name says it. A writer that was downgraded says so in the node's data.
    pub(crate) mode: Mode,
    pub(crate) sequence: i64,
}

/// The start of a node's name; ZooKeeper adds the sequence number.
pub(crate) fn node_prefix(attempt: AttemptId, mode: Mode) -> String {
    let id = attempt.as_uuid().hyphenated();
    match mode {
        Mode::Exclusive => format!("_c_{id}-lock-"),
        Mode::Shared => format!("_c_{id}-shared-lock-"),
        Mode::Permit { limit } => format!("_c_{id}-permit{limit}-lock-"),
    }
}

impl Place {
    /// Reads a node's name; `None` when it has no sequence number, and so no place in the queue.
    pub(crate) fn parse(node: &str) -> Option<Self> {
        let (attempt, rest) = match split_id(node) {
            Some((id, rest)) => (Some(id), rest),
            None => (None, node),
        };
        let (kind, sequence) = match rest.rsplit_once("lock-") {
            Some((kind, sequence)) => (kind, sequence.parse().ok()?),
            None => ("", trailing_number(rest)?),
        };
        let permit = || kind.strip_prefix("permit")?.strip_suffix('-')?.parse().ok();
        let mode = match (attempt, kind) {
            (Some(_), "shared-") => Mode::Shared,
            (Some(_), _) => permit().map_or(Mode::Exclusive, |limit| Mode::Permit { limit }),
            // Whatever a stranger wants, to stand behind it is safe.
            (None, _) => Mode::Exclusive,
        };
        Some(Self {
            node: node.to_owned(),
            attempt,
            mode,
            sequence,
        })
    }

    pub(crate) fn is_of(&self, attempt: AttemptId) -> bool {
        self.attempt.as_ref() == Some(attempt.as_uuid())
    }

    /// Where another place stands, seen from this one: negative when it came before.
    ///
    /// The sequence number of a ZooKeeper node is a signed 32-bit counter that wraps. All who stand in one queue at the same time are
    /// far less than half of its range apart, so the wrapped difference tells the order of creation across the wrap too.
    fn distance_to(&self, other: &Self) -> i64 {
        match (i32::try_from(self.sequence), i32::try_from(other.sequence)) {
            (Ok(mine), Ok(theirs)) => i64::from(theirs.wrapping_sub(mine)),
            // A later ZooKeeper may count in 64 bits, which do not wrap.
            _ => other.sequence.saturating_sub(self.sequence),
        }
    }
}

fn split_id(node: &str) -> Option<(Uuid, &str)> {
    let rest = node.strip_prefix("_c_")?;
    let (id, rest) = rest.split_at_checked(36)?;
    Some((Uuid::try_parse(id).ok()?, rest.strip_prefix('-')?))
}

fn trailing_number(node: &str) -> Option<i64> {
    // Ten digits, as every ZooKeeper writes them.
    let (_, digits) = node.split_at_checked(node.len().checked_sub(10)?)?;
    digits.parse().ok()
}

/// Reads the names of all children.
pub(crate) fn places(children: &[String]) -> Vec<Place> {
    children
        .iter()
        .filter_map(|node| Place::parse(node))
        .collect()
}

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
}

/// What `mine` may do in a queue of `all`; `None` when its node is not there any more.
pub(crate) fn verdict(mine: &Place, all: &[Place]) -> Option<Verdict> {
    if !all.iter().any(|place| place.node == mine.node) {
        return None;
    }
    let mut ahead: Vec<(i64, &Place)> = all
        .iter()
        .map(|place| (mine.distance_to(place), place))
        .filter(|(distance, _)| *distance < 0)
        .collect();
    ahead.sort_by_key(|(distance, _)| *distance);
    let ahead: Vec<&Place> = ahead.into_iter().map(|(_, place)| place).collect();
    Some(match mine.mode {
        Mode::Exclusive => behind(&ahead, ahead.len() == 1),
        Mode::Shared => {
            let writers: Vec<&Place> = ahead
                .into_iter()
                .filter(|place| place.mode != Mode::Shared)
                .collect();
            behind(&writers, writers.len() == 1)
        }
        Mode::Permit { limit } => permit(limit, &ahead),
    })
}

/// Behind the nearest of these.
fn behind(ahead: &[&Place], last: bool) -> Verdict {
    match ahead.last() {
        None => Verdict::Held,
        Some(nearest) => Verdict::Wait(Obstacle {
            node: nearest.node.clone(),
            mode: nearest.mode,
            last,
        }),
    }
}

fn permit(limit: u32, ahead: &[&Place]) -> Verdict {
    let other = ahead.iter().find_map(|place| match place.mode {
        Mode::Permit { limit: used } if used != limit => Some(used),
        _ => None,
    });
    if let Some(used) = other {
        return Verdict::Conflict(used);
    }
    let limit = limit as usize;
    let is_permit = |place: &&Place| matches!(place.mode, Mode::Permit { .. });
    let since_other = ahead
        .iter()
        .rev()
        .take_while(|place| is_permit(place))
        .count();
    match (ahead.len() - since_other, since_other) {
        (0, permits) if permits < limit => Verdict::Held,
        // Any of the permits may come back first: the watch of one of them would miss the others.
        (0, permits) if permits == limit => Verdict::AnyChange,
        // Readers or writers go first, and then there may be a permit for us.
        (others, permits) if others > 0 && permits < limit => {
            let (rest, _) = ahead.split_at(others);
            behind(rest, others == 1)
        }
        // Behind a waiter like us, which tells when it is granted.
        _ => behind(ahead, false),
    }
}

/// What the data of a node says: `dlock:<state>:<label>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// As it was created.
    Plain,
    /// A writer that became a reader.
    Downgraded,
    /// A permit that was granted after a wait; its successor waits for this word.
    Granted,
}

/// The data of a node.
pub(crate) fn node_data(state: State, label: &str) -> Vec<u8> {
    let state = match state {
        State::Plain => 'p',
        State::Downgraded => 's',
        State::Granted => 'g',
    };
    format!("dlock:{state}:{label}").into_bytes()
}

/// Reads the data of a node. What another library wrote is a label.
pub(crate) fn read_data(data: &[u8]) -> (State, String) {
    let text = String::from_utf8_lossy(data);
    let parts = text
        .strip_prefix("dlock:")
        .and_then(|rest| rest.split_once(':'));
    let (state, label) = match parts {
        Some(("p", label)) => (State::Plain, label),
        Some(("s", label)) => (State::Downgraded, label),
        Some(("g", label)) => (State::Granted, label),
        _ => (State::Plain, text.as_ref()),
    };
    (state, label.to_owned())
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Mode = Mode::Shared;
    const EXCLUSIVE: Mode = Mode::Exclusive;
    const PERMIT: Mode = Mode::Permit { limit: 2 };

    fn queue(places: &[(Mode, i64)]) -> Vec<Place> {
        places
            .iter()
            .map(|(mode, sequence)| {
                let node = format!("{}{sequence:010}", node_prefix(AttemptId::new(), *mode));
                Place::parse(&node).expect("our own form")
            })
            .collect()
    }

    /// The verdict for the last one, with the place it waits for by its number.
    fn last(places: &[(Mode, i64)]) -> (Verdict, Option<usize>) {
        let all = queue(places);
        let mine = all.last().expect("one").clone();
        // ZooKeeper lists children in no order.
        let mut shuffled = all.clone();
        shuffled.reverse();
        let verdict = verdict(&mine, &shuffled).expect("it is there");
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
    fn names_are_curators_and_come_back() {
        let attempt = AttemptId::new();
        for mode in [EXCLUSIVE, SHARED, Mode::Permit { limit: 17 }] {
            for sequence in ["0000000000", "2147483647", "-2147483648", "-000000005"] {
                let node = format!("{}{sequence}", node_prefix(attempt, mode));
                let place = Place::parse(&node).expect(&node);
                assert_eq!(place.mode, mode);
                assert!(place.is_of(attempt));
                assert_eq!(place.sequence, sequence.parse::<i64>().expect("a number"));
                // Curator sorts by what follows the last "lock-".
                assert!(node.ends_with(&format!("lock-{sequence}")));
            }
        }
    }

    #[test]
    fn strangers_with_a_number_are_writers_and_others_are_nobody() {
        let curator = "_c_0a3d2c46-7a3e-4f1c-8d6f-6d6a8f3f6f11-lock-0000000007";
        assert_eq!(Place::parse(curator).expect("Curator").mode, EXCLUSIVE);
        let writer = "_c_0a3d2c46-7a3e-4f1c-8d6f-6d6a8f3f6f11-__WRIT__0000000007";
        assert_eq!(Place::parse(writer).expect("Curator").mode, EXCLUSIVE);
        let kazoo = "9f2d0d3f4a__lock__0000000003";
        assert_eq!(Place::parse(kazoo).expect("kazoo").attempt, None);
        for nobody in ["", "leases", "é", "lock-", "lock-x", "12345"] {
            assert_eq!(Place::parse(nobody), None, "{nobody}");
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
    fn order_survives_the_wrap_of_the_sequence_number() {
        let wrapped = [
            (EXCLUSIVE, 2_147_483_646),
            (EXCLUSIVE, 2_147_483_647),
            (EXCLUSIVE, -2_147_483_648),
            (EXCLUSIVE, -2_147_483_647),
        ];
        for count in 2..=wrapped.len() {
            assert_eq!(
                waits_for(&wrapped[..count]),
                Some((count - 2, count == 2)),
                "{count}"
            );
        }
        let all = queue(&wrapped);
        assert_eq!(verdict(&all[0], &all), Some(Verdict::Held));
        // And over zero, which follows -1.
        assert_eq!(
            waits_for(&[(EXCLUSIVE, -1), (EXCLUSIVE, 0)]),
            Some((0, true))
        );
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
    fn labels_and_states_come_back() {
        for state in [State::Plain, State::Downgraded, State::Granted] {
            for label in ["", "a:b", "é🔒"] {
                let data = node_data(state, label);
                assert_eq!(read_data(&data), (state, label.to_owned()));
            }
        }
        assert_eq!(
            read_data(b"10.0.0.1"),
            (State::Plain, "10.0.0.1".to_owned())
        );
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
