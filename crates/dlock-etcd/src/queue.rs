//! The queue of a lock as it stands in the store, and who of it holds: the one place that knows the rules ([C18](dlock_core::contract#c18),
//! [C19](dlock_core::contract#c19)).

use dlock_core::backend::AttemptId;
use dlock_core::{Mode, Name};

use crate::key::Keys;
use crate::txn::Row;

/// One entry: a holder or a waiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) name: Name,
    pub(crate) attempt: String,
    /// How it holds or wants to hold, as its value says: a downgrade changes it.
    pub(crate) mode: Mode,
    pub(crate) label: String,
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

/// Attempt, mode and label as an entry's value. None of them holds a line break.
pub(crate) fn value(attempt: AttemptId, mode: Mode, label: &str) -> Vec<u8> {
    let attempt = attempt.to_string();
    match mode {
        Mode::Exclusive => [&attempt, "\nexclusive\n", label].concat(),
        Mode::Shared => [&attempt, "\nshared\n", label].concat(),
        Mode::Permit { limit } => format!("{attempt}\npermit {limit}\n{label}"),
        // A mode of a later core, which asks only for those that the capabilities name: alone is always safe.
        _ => [&attempt, "\nexclusive\n", label].concat(),
    }
    .into_bytes()
}

/// What an entry's value says; `None` for one that somebody else put there.
fn words(value: &[u8]) -> Option<(&str, Mode, &str)> {
    let mut lines = std::str::from_utf8(value).ok()?.splitn(3, '\n');
    let attempt = lines.next()?;
    let mode = match lines.next()? {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        permit => Mode::Permit {
            limit: permit.strip_prefix("permit ")?.parse().ok()?,
        },
    };
    Some((attempt, mode, lines.next()?))
}

/// The mode in an entry's value.
pub(crate) fn mode_of(value: &[u8]) -> Option<Mode> {
    words(value).map(|(_, mode, _)| mode)
}

/// Whether an entry is of this attempt.
pub(crate) fn is_of(value: &[u8], attempt: AttemptId) -> bool {
    words(value).is_some_and(|(owner, ..)| owner == attempt.to_string())
}

impl QueueEntry {
    /// Reads an entry; `None` for keys that somebody else put there.
    pub(crate) fn read(keys: &Keys, row: &Row) -> Option<Self> {
        let (attempt, mode, label) = words(&row.value)?;
        Some(Self {
            name: keys.parse(&row.key)?,
            attempt: attempt.to_owned(),
            mode,
            label: label.to_owned(),
            key: row.key.clone(),
            created: row.created,
            lease: row.lease,
        })
    }
}

pub(crate) fn read_all(keys: &Keys, rows: &[Row]) -> Vec<QueueEntry> {
    let mut queue: Vec<QueueEntry> = rows
        .iter()
        .filter_map(|row| QueueEntry::read(keys, row))
        .collect();
    queue.sort_by_key(|ticket| ticket.created);
    queue
}

/// Splits a queue into those who hold and those who wait, each in order.
///
/// Holders are the first ones, all in the mode of the first, as many as that mode admits.
pub(crate) fn split(queue: &[QueueEntry]) -> (Vec<&QueueEntry>, Vec<&QueueEntry>) {
    let first = queue.first().map(|ticket| ticket.mode);
    let most = match first {
        None => 0,
        Some(Mode::Shared) => usize::MAX,
        Some(Mode::Permit { limit }) => limit as usize,
        Some(_) => 1,
    };
    let holders = queue
        .iter()
        .take(most)
        .take_while(|ticket| Some(ticket.mode) == first)
        .count();
    let (holders, waiters) = queue.split_at_checked(holders).unwrap_or((queue, &[]));
    (holders.iter().collect(), waiters.iter().collect())
}

/// The limit that others use, if it is not ours.
pub(crate) fn other_limit(permits: &[Row], mode: Mode) -> Option<u32> {
    let Mode::Permit { limit } = mode else {
        return None;
    };
    permits.iter().find_map(|row| match mode_of(&row.value) {
        Some(Mode::Permit { limit: used }) if used != limit => Some(used),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Mode = Mode::Exclusive;
    const R: Mode = Mode::Shared;
    const P: Mode = Mode::Permit { limit: 2 };

    fn queue(modes: &[Mode]) -> Vec<QueueEntry> {
        read_all(&Keys::new("p"), &rows(modes))
    }

    fn rows(modes: &[Mode]) -> Vec<Row> {
        let name = Name::new("a").expect("a name");
        let keys = Keys::new("p");
        modes
            .iter()
            .zip(1..)
            .map(|(mode, created)| Row {
                key: keys.lock(&name).entry(*mode, created, 0),
                value: value(AttemptId::new(), *mode, "label"),
                created,
                modified: created,
                lease: created,
            })
            .collect()
    }

    #[test]
    fn holders_are_those_with_nobody_in_their_way() {
        for (modes, holders) in [
            (&[][..], 0),
            (&[W], 1),
            (&[W, W, R], 1),
            (&[R, R, W, R], 2),
            (&[R, P], 1),
            (&[P, P, P], 2),
            (&[P, W, P], 1),
            (&[P, R], 1),
        ] {
            let queue = queue(modes);
            let (holds, waits) = split(&queue);
            assert_eq!(holds.len(), holders, "{modes:?}");
            assert_eq!(holds.len() + waits.len(), modes.len());
            // They are the first.
            assert!(holds.iter().zip(&queue).all(|(a, b)| *a == b), "{modes:?}");
        }
    }

    #[test]
    fn a_downgraded_writer_lets_readers_in() {
        let mut queue = queue(&[W, R, W, R]);
        queue[0].mode = R;
        assert_eq!(split(&queue).0.len(), 2);
    }

    #[test]
    fn values_lead_back_to_attempts_modes_and_labels() {
        let attempt = AttemptId::new();
        for mode in [W, R, P] {
            let value = value(attempt, mode, "permit 9");
            assert_eq!(mode_of(&value), Some(mode));
            assert!(is_of(&value, attempt));
            assert!(!is_of(&value, AttemptId::new()));
            let read = words(&value).map(|(_, _, label)| label);
            assert_eq!(read, Some("permit 9"));
        }
        for foreign in [&b"id\npermit x\n"[..], b"\xff", b"", b"exclusive\nlabel"] {
            assert_eq!(mode_of(foreign), None);
            assert!(!is_of(foreign, attempt));
        }
    }

    #[test]
    fn another_limit_is_found() {
        let queue = rows(&[P, P]);
        assert_eq!(other_limit(&queue, Mode::Permit { limit: 3 }), Some(2));
        assert_eq!(other_limit(&queue, P), None);
        assert_eq!(other_limit(&queue, R), None);
    }
}
