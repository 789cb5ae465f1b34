//! What a node's name and data say.

use dlock_core::Mode;
use dlock_core::backend::AttemptId;
use uuid::Uuid;

use crate::Style;

/// One place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    /// The node's name.
    pub(crate) node: String,
    /// Who stands there; `None` for a node that another library made without an id.
    pub(crate) attempt: Option<Uuid>,
    /// As the name says it. A writer that was downgraded says so in the node's data.
    pub(crate) mode: Mode,
    /// It was taken by a try, which holds at once or leaves at once.
    pub(crate) tries: bool,
    pub(crate) sequence: i64,
    /// The number of the transaction that created it; known of all places of a queue in which a number is worn out, and else of none.
    pub(crate) czxid: Option<i64>,
}

/// What stands before the number in the name of a mutex of Curator's, and of readers and writers of its read-write lock. Each of its recipes
/// sorts by what follows its own word, and puts a name without that word last, whatever its number.
const MUTEX: &str = "lock-";
const READER: &str = "__READ__";
const WRITER: &str = "__WRIT__";

/// The start of a node's name; ZooKeeper adds the sequence number.
pub(crate) fn node_prefix(style: Style, attempt: AttemptId, mode: Mode, tries: bool) -> String {
    let id = attempt.as_uuid().hyphenated();
    let tries = if tries { "try-" } else { "" };
    let word = match style {
        Style::Mutex => MUTEX,
        Style::ReadWrite if mode == Mode::Shared => READER,
        Style::ReadWrite => WRITER,
    };
    match mode {
        Mode::Shared => format!("_c_{id}-{tries}shared-{word}"),
        Mode::Permit { limit } => format!("_c_{id}-{tries}permit{limit}-{word}"),
        // Also a mode of a later core, which asks only for those that the capabilities name: alone is always safe.
        _ => format!("_c_{id}-{tries}{word}"),
    }
}

impl QueuePlace {
    /// Reads a node's name; `None` when it has no sequence number, and so no place in the queue.
    pub(crate) fn parse(node: &str) -> Option<Self> {
        let (attempt, rest) = match split_id(node) {
            Some((id, rest)) => (Some(id), rest),
            None => (None, node),
        };
        let words = [MUTEX, READER, WRITER].into_iter();
        let mut known = words.filter_map(|word| Some((word, rest.rsplit_once(word)?)));
        let (word, kind, sequence) = match known.next() {
            Some((word, (kind, sequence))) => (word, kind, sequence.parse().ok()?),
            None => ("", "", trailing_number(rest)?),
        };
        let (kind, tries) = match kind.strip_prefix("try-") {
            Some(kind) if attempt.is_some() => (kind, true),
            _ => (kind, false),
        };
        let permit = || kind.strip_prefix("permit")?.strip_suffix('-')?.parse().ok();
        let mode = match (attempt, kind) {
            (Some(_), "shared-") => Mode::Shared,
            // A reader of Curator's.
            (Some(_), "") if word == READER => Mode::Shared,
            (Some(_), _) => permit().map_or(Mode::Exclusive, |limit| Mode::Permit { limit }),
            // Whatever a stranger wants, to stand behind it is safe.
            (None, _) => Mode::Exclusive,
        };
        Some(Self {
            node: node.to_owned(),
            attempt,
            mode,
            tries,
            sequence,
            czxid: None,
        })
    }

    pub(crate) fn is_of(&self, attempt: AttemptId) -> bool {
        self.attempt.as_ref() == Some(attempt.as_uuid())
    }

    /// Whether the number does not tell the order of creation. The counter of a lock's node has 32 bits. When it is used up, ZooKeeper 3.8
    /// gives its last number to everybody, with negative ones in between while requests are under way.
    pub(crate) fn is_worn_out(&self) -> bool {
        self.sequence < 0 || self.sequence == i64::from(i32::MAX)
    }

    /// What tells the order of creation.
    pub(crate) fn order(&self) -> i64 {
        self.czxid.unwrap_or(self.sequence)
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
pub(crate) fn places(children: &[String]) -> Vec<QueuePlace> {
    children
        .iter()
        .filter_map(|node| QueuePlace::parse(node))
        .collect()
}

/// What the data of a node says: `dlock:<state>:<label>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// As it was created.
    Plain,
    /// A writer that became a reader.
    Downgraded,
    /// A permit that was granted after a wait; its successor waits for this word.
    Granted,
}

/// The data of a node.
pub(crate) fn node_data(state: NodeState, label: &str) -> Vec<u8> {
    let state = match state {
        NodeState::Plain => 'p',
        NodeState::Downgraded => 's',
        NodeState::Granted => 'g',
    };
    format!("dlock:{state}:{label}").into_bytes()
}

/// Reads the data of a node. What another library wrote is a label.
pub(crate) fn read_data(data: &[u8]) -> (NodeState, String) {
    let text = String::from_utf8_lossy(data);
    let parts = text
        .strip_prefix("dlock:")
        .and_then(|rest| rest.split_once(':'));
    let (state, label) = match parts {
        Some(("p", label)) => (NodeState::Plain, label),
        Some(("s", label)) => (NodeState::Downgraded, label),
        Some(("g", label)) => (NodeState::Granted, label),
        _ => (NodeState::Plain, text.as_ref()),
    };
    (state, label.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_curators_and_come_back() {
        let attempt = AttemptId::new();
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { limit: 17 }] {
            for (sequence, tries) in [
                ("0000000000", false),
                ("2147483647", true),
                ("-2147483648", false),
                ("-000000005", true),
            ] {
                let node = |style| {
                    let node = format!("{}{sequence}", node_prefix(style, attempt, mode, tries));
                    let place = QueuePlace::parse(&node).expect(&node);
                    assert_eq!((place.mode, place.tries), (mode, tries), "{node}");
                    assert!(place.is_of(attempt));
                    assert_eq!(place.sequence, sequence.parse::<i64>().expect("a number"));
                    node
                };
                // Curator sorts by what follows the last of its words.
                assert!(node(Style::Mutex).ends_with(&format!("lock-{sequence}")));
                let word = match mode {
                    Mode::Shared => "__READ__",
                    _ => "__WRIT__",
                };
                assert!(node(Style::ReadWrite).ends_with(&format!("{word}{sequence}")));
            }
        }
    }

    #[test]
    fn strangers_with_a_number_are_writers_and_others_are_nobody() {
        let curator = "_c_0a3d2c46-7a3e-4f1c-8d6f-6d6a8f3f6f11-lock-0000000007";
        assert_eq!(
            QueuePlace::parse(curator).expect("Curator").mode,
            Mode::Exclusive
        );
        let writer = "_c_0a3d2c46-7a3e-4f1c-8d6f-6d6a8f3f6f11-__WRIT__0000000007";
        assert_eq!(
            QueuePlace::parse(writer).expect("Curator").mode,
            Mode::Exclusive
        );
        let reader = "_c_0a3d2c46-7a3e-4f1c-8d6f-6d6a8f3f6f11-__READ__0000000007";
        assert_eq!(
            QueuePlace::parse(reader).expect("Curator").mode,
            Mode::Shared
        );
        let kazoo = "9f2d0d3f4a__lock__0000000003";
        assert_eq!(QueuePlace::parse(kazoo).expect("kazoo").attempt, None);
        for nobody in ["", "leases", "é", "lock-", "lock-x", "12345"] {
            assert_eq!(QueuePlace::parse(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn labels_and_states_come_back() {
        for state in [NodeState::Plain, NodeState::Downgraded, NodeState::Granted] {
            for label in ["", "a:b", "é🔒"] {
                let data = node_data(state, label);
                assert_eq!(read_data(&data), (state, label.to_owned()));
            }
        }
        assert_eq!(
            read_data(b"10.0.0.1"),
            (NodeState::Plain, "10.0.0.1".to_owned())
        );
    }
}
