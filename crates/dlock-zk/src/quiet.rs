//! Locks that nobody else wants: what is known of them saves the read behind the create.
//!
//! Sequence numbers of a lock's node grow by one with every place that is taken. Who held alone with number `n` and has left knows that all places up
//! to `n` are gone; if its next place has the number `n + 1`, nobody came in between, and it is the only one. That holds as long as the
//! lock's node is the same: a watch on it tells when it is deleted or made anew, and ZooKeeper tells that before it answers a later
//! request. With the connection all of it is forgotten: a server that was put back to an older copy counts from there again, and says nothing of it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlock_core::Name;
use futures::FutureExt;

use crate::acquire::Telling;
use crate::connect::ConnectionId;

/// How many locks are remembered. Each costs a watch.
const MOST: usize = 1024;

#[derive(Default)]
pub(crate) struct Quiet {
    names: Mutex<HashMap<Name, Known>>,
}

impl std::fmt::Debug for Quiet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quiet")
            .field("names", &self.names().len())
            .finish()
    }
}

enum Known {
    /// It was used once: not worth a watch yet.
    Used,
    /// All places up to a number are gone.
    Free {
        line: ConnectionId,
        up_to: i64,
        watch: Telling,
        /// Nobody else came between our last two places.
        alone: bool,
    },
}

impl Quiet {
    fn names(&self) -> MutexGuard<'_, HashMap<Name, Known>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is worth a try without reading the queue.
    pub(crate) fn is_likely_free(&self, name: &Name, line: ConnectionId) -> bool {
        self.look(name, line, |_, alone| *alone).unwrap_or(false)
    }

    /// Whether the place with this number is the only one. Asked after the place was created.
    pub(crate) fn is_only(&self, name: &Name, line: ConnectionId, sequence: i64) -> bool {
        self.look(name, line, |up_to, alone| {
            // The counter's last number is given more than once.
            *alone = sequence == *up_to + 1 && (0..i64::from(i32::MAX)).contains(&sequence);
            *alone
        })
        .unwrap_or(false)
    }

    /// Whether a release should bring a watch with it.
    pub(crate) fn wants_watch(&self, name: &Name, line: ConnectionId) -> bool {
        if self.look(name, line, |_, _| ()).is_some() {
            return false;
        }
        let mut names = self.names();
        if names.len() >= MOST {
            names.clear();
        }
        names.insert(name.clone(), Known::Used).is_some()
    }

    /// All places up to this number are gone. `watch` was set before the last of them went.
    pub(crate) fn left(
        &self,
        name: &Name,
        line: ConnectionId,
        sequence: i64,
        watch: Option<Telling>,
    ) {
        if let Some(watch) = watch {
            let known = Known::Free {
                line,
                up_to: sequence,
                watch,
                alone: false,
            };
            self.names().insert(name.clone(), known);
            return;
        }
        self.look(name, line, |up_to, _| *up_to = sequence.max(*up_to));
    }

    /// Looks at what is known, if it still is.
    fn look<T>(
        &self,
        name: &Name,
        line: ConnectionId,
        look: impl FnOnce(&mut i64, &mut bool) -> T,
    ) -> Option<T> {
        let mut names = self.names();
        match names.get_mut(name)? {
            Known::Used => None,
            Known::Free {
                line: of,
                up_to,
                watch,
                alone,
            } => {
                if *of == line && watch.now_or_never().is_none() {
                    return Some(look(up_to, alone));
                }
                names.insert(name.clone(), Known::Used);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Seen;
    use tokio::sync::oneshot;

    const LINE: ConnectionId = ConnectionId {
        session: 1,
        breaks: 0,
    };
    const OTHER_SESSION: ConnectionId = ConnectionId {
        session: 2,
        breaks: 0,
    };

    fn watch() -> (oneshot::Sender<()>, Option<Telling>) {
        let (tell, told) = oneshot::channel();
        let watch: Telling = Box::pin(async move {
            let _ = told.await;
            Seen::Deleted
        });
        (tell, Some(watch))
    }

    #[test]
    fn a_lock_is_quiet_when_two_places_in_a_row_were_ours() {
        let (quiet, name) = (Quiet::default(), Name::new("a").expect("good"));
        assert!(!quiet.wants_watch(&name, LINE), "used once");
        assert!(quiet.wants_watch(&name, LINE), "used twice");
        let (_tell, watch) = watch();
        quiet.left(&name, LINE, 7, watch);
        assert!(!quiet.wants_watch(&name, LINE), "it is watched");
        assert!(!quiet.is_likely_free(&name, LINE));
        assert!(quiet.is_only(&name, LINE, 8));
        assert!(quiet.is_likely_free(&name, LINE));
        quiet.left(&name, LINE, 8, None);
        assert!(!quiet.is_only(&name, LINE, 10), "somebody came between");
        assert!(!quiet.is_likely_free(&name, LINE));
        assert!(
            !quiet.is_only(&name, OTHER_SESSION, 9),
            "another session has other watches"
        );
        assert!(!quiet.is_only(&name, LINE, 9), "and it was forgotten");
    }

    #[test]
    fn the_last_number_of_the_counter_says_nothing() {
        let (quiet, name) = (Quiet::default(), Name::new("a").expect("good"));
        let last = i64::from(i32::MAX);
        let (_tell, watch) = watch();
        quiet.left(&name, LINE, last - 2, watch);
        assert!(quiet.is_only(&name, LINE, last - 1));
        quiet.left(&name, LINE, last - 1, None);
        assert!(!quiet.is_only(&name, LINE, last));
    }

    #[test]
    fn a_node_that_was_made_anew_is_not_the_same() {
        let (quiet, name) = (Quiet::default(), Name::new("a").expect("good"));
        let (tell, watch) = watch();
        quiet.left(&name, LINE, 0, watch);
        assert!(quiet.is_only(&name, LINE, 1));
        tell.send(()).expect("it listens");
        assert!(!quiet.is_only(&name, LINE, 1));
    }

    #[test]
    fn what_was_known_goes_with_the_connection() {
        let (quiet, name) = (Quiet::default(), Name::new("a").expect("good"));
        let (_tell, watch) = watch();
        quiet.left(&name, LINE, 0, watch);
        assert!(quiet.is_only(&name, LINE, 1));
        assert!(!quiet.is_only(&name, ConnectionId { breaks: 1, ..LINE }, 2));
    }

    #[test]
    fn memory_is_bounded() {
        let quiet = Quiet::default();
        for number in 0..3 * MOST {
            quiet.wants_watch(&Name::new(format!("n{number}")).expect("good"), LINE);
        }
        assert!(quiet.names().len() <= MOST);
    }
}
