//! The line of one client: its own waiters for a lock, when there are many.
//!
//! A server goes through the whole queue to tell a newcomer who is before it, and each watch is a stream of its own there. A thousand tasks of
//! one client need neither. Whoever comes when many of its client wait already stands behind the last one of them, on the sole condition that this one
//! is there; nothing is watched, because that one will tell, in this process, when it does not wait any more:
//!
//! ```text
//!  the lock's queue:   holder   a1   b1   a2   b2   b3   a3          a1 .. a3: waiters of one client, b1 .. b3: of another
//!  watched:               ◄─────┘◄───┘
//!  waits for:                    a1 ◄──── a2 ◄─────────── a3         by word of mouth; then it looks who is before it now
//! ```
//!
//! It is before us, so it leaves the queue, or is granted, before our turn comes. Then the next of our own who is before us takes its place; who has
//! none any more asks the store, and finds who of others is between. So one of a client asks, however many wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::{Mode, Name};
use tokio::sync::Notify;

use crate::acquire::Entry;
use crate::watched::Sight;

/// From so many waiters of one client on, the next ones stand in its line.
const MANY: usize = 64;

/// The waiters of a client, by what they want and in the order of the store's queue.
#[derive(Debug, Default)]
pub(crate) struct Lines(Arc<Mutex<Known>>);

type Known = HashMap<(Name, Mode), BTreeMap<i64, Waiting>>;

#[derive(Debug, Clone)]
struct Waiting {
    key: Vec<u8>,
    left: Arc<Left>,
}

impl Waiting {
    fn ahead(&self, created: i64) -> Ahead {
        Ahead {
            key: self.key.clone(),
            created,
            left: self.left.clone(),
        }
    }
}

/// Whether a waiter does not wait any more, whatever became of it.
#[derive(Debug, Default)]
struct Left {
    told: AtomicBool,
    tell: Notify,
}

fn known(lines: &Mutex<Known>) -> MutexGuard<'_, Known> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lines {
    /// The last one who waits, if there are many.
    pub(crate) fn last(&self, name: &Name, mode: Mode) -> Option<Ahead> {
        // A reader waits for writers alone, of whom there are few.
        if mode == Mode::Shared {
            return None;
        }
        let known = known(&self.0);
        let line = known.get(&(name.clone(), mode))?;
        let (created, waiting) = line.last_key_value().filter(|_| line.len() >= MANY)?;
        Some(waiting.ahead(*created))
    }

    /// When the entry was created of the first one who waits, for whatever.
    pub(crate) fn first(&self, name: &Name) -> Option<i64> {
        let known = known(&self.0);
        let lines = known.iter().filter(|((of, _), _)| of == name);
        lines
            .filter_map(|(_, line)| line.keys().next().copied())
            .min()
    }

    /// The nearest one who waits before an entry that was created then.
    pub(crate) fn before(&self, name: &Name, mode: Mode, created: i64) -> Option<Ahead> {
        let known = known(&self.0);
        let line = known.get(&(name.clone(), mode))?;
        let (created, waiting) = line.range(..created).next_back()?;
        Some(waiting.ahead(*created))
    }

    /// Takes a place, for as long as it waits.
    pub(crate) fn stand(&self, name: &Name, mode: Mode, entry: &Entry) -> Standing {
        let left = Arc::new(Left::default());
        let waiting = Waiting {
            key: entry.key.clone(),
            left: left.clone(),
        };
        let line = (name.clone(), mode);
        let mut known = known(&self.0);
        let places = known.entry(line.clone()).or_default();
        places.insert(entry.created, waiting);
        Standing {
            lines: self.0.clone(),
            line,
            created: entry.created,
            left,
        }
    }
}

/// A place in a line. Dropping it tells those behind.
#[derive(Debug)]
pub(crate) struct Standing {
    lines: Arc<Mutex<Known>>,
    line: (Name, Mode),
    created: i64,
    left: Arc<Left>,
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut known = known(&self.lines);
        if let Some(line) = known.get_mut(&self.line) {
            line.remove(&self.created);
            if line.is_empty() {
                known.remove(&self.line);
            }
        }
        drop(known);
        self.left.told.store(true, Ordering::Release);
        self.left.tell.notify_waiters();
    }
}

/// One of our own who is before us.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    left: Arc<Left>,
}

impl Ahead {
    /// Resolves when it does not wait any more.
    pub(crate) async fn left(&self) {
        loop {
            // First, so that a word in between is not missed.
            let told = self.left.tell.notified();
            if self.left.told.load(Ordering::Acquire) {
                return;
            }
            told.await;
        }
    }

    /// What tells in the store that nothing has changed: its task may never get to run again, and so never tell.
    pub(crate) fn sight(&self, entry: &Entry) -> Sight {
        Sight::of_two(entry, &self.key, self.created)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dlock_core::SystemClock;
    use futures::FutureExt;

    use super::*;
    use crate::session::Session;

    fn entry(created: i64) -> Entry {
        let session = Session::new(
            1,
            Duration::from_secs(9),
            dlock_core::Clock::now(&SystemClock),
        );
        Entry {
            key: format!("key {created}").into_bytes(),
            created,
            session: Arc::new(session),
        }
    }

    #[test]
    fn the_last_of_many_tells_when_it_is_gone() {
        let lines = Lines::default();
        let name = Name::new("a").expect("a name");
        let stand = |created| lines.stand(&name, Mode::Exclusive, &entry(created));
        let mut places: Vec<_> = (1..MANY as i64).map(stand).collect();
        assert!(lines.last(&name, Mode::Exclusive).is_none(), "few");
        // They may come to know of their places in another order.
        let newest = stand(1000);
        places.push(stand(500));
        let ahead = lines.last(&name, Mode::Exclusive).expect("many");
        assert_eq!(ahead.created, 1000);
        assert_eq!(lines.first(&name), Some(1));
        let other = Mode::Permit { limit: 2 };
        assert!(lines.last(&name, other).is_none(), "another line");
        assert!(ahead.left().now_or_never().is_none());
        let mut waits = Box::pin(ahead.left());
        assert!((&mut waits).now_or_never().is_none());
        drop(newest);
        assert!(waits.now_or_never().is_some(), "told");
        assert!(ahead.left().now_or_never().is_some(), "told for ever");
        let next = lines.last(&name, Mode::Exclusive).expect("many");
        assert_eq!(next.created, 500);
        let before = |created| lines.before(&name, Mode::Exclusive, created);
        assert_eq!(
            before(500).map(|ahead| ahead.created),
            Some(MANY as i64 - 1)
        );
        assert_eq!(before(3).map(|ahead| ahead.created), Some(2));
        assert!(before(1).is_none(), "the first of them");
        places.clear();
        assert_eq!(lines.first(&name), None);
        assert!(known(&lines.0).is_empty(), "nothing is left");
    }
}
