//! The watches of a session. They outlast connections: a new one is told of all of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use tokio::sync::{mpsc, oneshot};

use super::jute::Writer;
use super::serve::TaskMessage;

/// The paths that are named in one request to watch again. A server refuses requests of a mebibyte.
const MOST_BYTES: usize = 64 * 1024;

/// What a watch has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Deleted,
    Changed,
    SessionEnded,
}

/// What of a node is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Its data, and whether it is there.
    Data,
    Children,
}

/// One watch at the server: however many wait for it, it has it once.
pub(super) type Key = (Kind, String);

/// A watch that the server has set. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct NodeWatch {
    told: oneshot::Receiver<Seen>,
    key: Key,
    number: u64,
    asks: mpsc::WeakUnboundedSender<TaskMessage>,
}

impl NodeWatch {
    pub(crate) async fn seen(mut self) -> Seen {
        // It says nothing when the session's task is gone: with the session, or with the runtime.
        (&mut self.told).await.unwrap_or(Seen::SessionEnded)
    }
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        // One that has fired is not known any more, and nothing happens.
        if let Some(asks) = self.asks.upgrade() {
            let key = std::mem::replace(&mut self.key, (Kind::Data, String::new()));
            let _ = asks.send(TaskMessage::Unwatch(key, self.number));
        }
    }
}

/// All watches of a session.
#[derive(Debug, Default)]
pub(super) struct Watches {
    set: HashMap<Key, BTreeMap<u64, oneshot::Sender<Seen>>>,
    next: u64,
    /// Requests under way that set a watch.
    under_way: HashMap<Key, usize>,
    /// Nobody waits for these any more, but such a request is under way.
    unwanted: HashSet<Key>,
}

impl Watches {
    /// A request that sets a watch is sent.
    pub(super) fn asked(&mut self, key: &Key) {
        *self.under_way.entry(key.clone()).or_default() += 1;
    }

    /// It was answered, and the watch is set.
    pub(super) fn add(
        &mut self,
        key: Key,
        asks: mpsc::WeakUnboundedSender<TaskMessage>,
    ) -> NodeWatch {
        let (tell, told) = oneshot::channel();
        self.next += 1;
        let number = self.next;
        let waiting = self.set.entry(key.clone()).or_default();
        waiting.insert(number, tell);
        NodeWatch {
            told,
            key,
            number,
            asks,
        }
    }

    /// It was answered. True when the server is to be told that the watch is not wanted any more.
    #[must_use]
    pub(super) fn answered(&mut self, key: &Key) -> bool {
        match self.under_way.get_mut(key) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                self.under_way.remove(key);
                self.unwanted.remove(key) && !self.set.contains_key(key)
            }
        }
    }

    /// Somebody does not wait any more. True when the server is to be told.
    ///
    /// Not while a request is under way that sets the same watch again: the removal would come behind it, and take that one away.
    #[must_use]
    pub(super) fn remove(&mut self, key: &Key, number: u64) -> bool {
        let Some(waiting) = self.set.get_mut(key) else {
            return false;
        };
        if waiting.remove(&number).is_none() || !waiting.is_empty() {
            return false;
        }
        self.set.remove(key);
        if self.under_way.contains_key(key) {
            self.unwanted.insert(key.clone());
            return false;
        }
        true
    }

    /// An event of the server: its watches have fired, and are gone there.
    pub(super) fn fire(&mut self, event: i32, path: &str) {
        let (kinds, seen): (&[Kind], _) = match event {
            DELETED => (&[Kind::Data, Kind::Children], Seen::Deleted),
            CREATED | DATA_CHANGED => (&[Kind::Data], Seen::Changed),
            CHILDREN_CHANGED => (&[Kind::Children], Seen::Changed),
            _ => return,
        };
        for kind in kinds {
            for tell in self
                .set
                .remove(&(*kind, path.to_owned()))
                .into_iter()
                .flatten()
            {
                let _ = tell.1.send(seen);
            }
        }
    }

    /// The connection is gone, and with it what was under way.
    pub(super) fn disconnected(&mut self) {
        self.under_way.clear();
        self.unwanted.clear();
    }

    /// The session is gone.
    pub(super) fn end(&mut self) {
        for (_, tell) in self.set.drain().flat_map(|(_, waiting)| waiting) {
            let _ = tell.send(Seen::SessionEnded);
        }
    }

    /// The bodies of the requests that set all watches again on a new connection, and fire those that have missed something since
    /// the transaction `zxid`. Each has a number of its own, as other requests: with one number for all, answers could not be told apart.
    pub(super) fn again(&self, zxid: i64) -> Vec<Vec<u8>> {
        let mut keys: Vec<(u64, &Key)> = self
            .set
            .iter()
            .filter_map(|(key, waiting)| Some((*waiting.keys().next()?, key)))
            .collect();
        // In the order in which they were first set.
        keys.sort_unstable();
        let mut bodies = Vec::new();
        let mut part: Vec<&Key> = Vec::new();
        let mut bytes = 0;
        for (_, key) in keys {
            if bytes > 0 && bytes + key.1.len() > MOST_BYTES {
                bodies.push(body(zxid, &part));
                part.clear();
                bytes = 0;
            }
            bytes += key.1.len();
            part.push(key);
        }
        if !part.is_empty() {
            bodies.push(body(zxid, &part));
        }
        bodies
    }
}

const CREATED: i32 = 1;
const DELETED: i32 = 2;
const DATA_CHANGED: i32 = 3;
const CHILDREN_CHANGED: i32 = 4;

fn body(zxid: i64, keys: &[&Key]) -> Vec<u8> {
    let of = |kind: Kind| -> Vec<&str> {
        let paths = keys.iter().filter(|key| key.0 == kind);
        paths.map(|key| key.1.as_str()).collect()
    };
    let (data, children) = (of(Kind::Data), of(Kind::Children));
    Writer::default()
        .long(zxid)
        .texts(data.into_iter())
        // Nodes that are waited to come: we have none.
        .texts(std::iter::empty())
        .texts(children.into_iter())
        .0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        (Kind::Data, path.to_owned())
    }

    fn set(watches: &mut Watches, path: &str) -> NodeWatch {
        let (asks, _) = mpsc::unbounded_channel();
        watches.add(key(path), asks.downgrade())
    }

    #[tokio::test]
    async fn events_reach_all_who_wait_and_nobody_twice() {
        let mut watches = Watches::default();
        let (one, two, other) = (
            set(&mut watches, "/a"),
            set(&mut watches, "/a"),
            set(&mut watches, "/b"),
        );
        watches.fire(DELETED, "/a");
        watches.fire(DATA_CHANGED, "/b");
        assert_eq!(one.seen().await, Seen::Deleted);
        assert_eq!(two.seen().await, Seen::Deleted);
        assert_eq!(other.seen().await, Seen::Changed);
        assert!(watches.again(1).is_empty());
        let children = watches.add((Kind::Children, "/a".to_owned()), {
            let (asks, _) = mpsc::unbounded_channel();
            asks.downgrade()
        });
        watches.fire(DATA_CHANGED, "/a");
        watches.end();
        assert_eq!(children.seen().await, Seen::SessionEnded);
    }

    #[test]
    fn the_server_is_told_with_the_last_and_not_behind_a_new_one() {
        let mut watches = Watches::default();
        let (one, two) = (set(&mut watches, "/a"), set(&mut watches, "/a"));
        assert!(!watches.remove(&one.key, one.number), "another waits");
        assert!(!watches.remove(&one.key, one.number), "only once");
        watches.asked(&key("/a"));
        assert!(!watches.remove(&two.key, two.number), "a new one comes");
        assert!(watches.answered(&key("/a")), "it did not come");
        let three = set(&mut watches, "/a");
        watches.asked(&key("/a"));
        assert!(!watches.remove(&three.key, three.number));
        let four = set(&mut watches, "/a");
        assert!(!watches.answered(&key("/a")), "it came");
        assert!(watches.remove(&four.key, four.number));
    }

    #[test]
    fn thousands_are_set_again_in_parts_that_a_server_takes() {
        let mut watches = Watches::default();
        let kept: Vec<NodeWatch> = (0..5000)
            .map(|number| set(&mut watches, &format!("/{number:0200}")))
            .collect();
        let parts = watches.again(7);
        assert!(parts.len() > 10, "{}", parts.len());
        assert!(parts.iter().all(|part| part.len() < 2 * MOST_BYTES));
        let count: usize = parts
            .iter()
            .map(|part| {
                let mut reader = super::super::jute::Reader(part);
                assert_eq!(reader.long(), Ok(7));
                reader.texts().expect("paths").len()
            })
            .sum();
        assert_eq!(count, kept.len());
    }
}
