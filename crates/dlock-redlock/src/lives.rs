//! Which server is behind which name: one that has two must not count twice, whenever that shows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::Result;
use dlock_redis::node::Life;

use crate::connect::Nodes;
use crate::peer::is_of_age;
use crate::stake::{Mask, bit};

/// How old a server must be for a name that nobody has seen before to count at once. A younger one may have been another
/// node's server a moment ago, in an earlier life that has just voted: it counts from the next question on.
const NO_NEWCOMER: Duration = Duration::from_secs(10);

/// The run ids that the nodes have told.
#[derive(Debug)]
pub(crate) struct Lives {
    names: Mutex<Vec<Seen>>,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    run_id: Option<Arc<str>>,
    /// The nodes that were seen to be the same server. This is never forgotten: after a restart the run id is new, and the names
    /// would pass for two servers until both have been asked.
    same: Mask,
}

impl Lives {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            names: Mutex::new(vec![Seen::default(); nodes]),
        }
    }

    /// A node has told its run id. Gives whether it is the first that it tells.
    fn note(&self, node: usize, run_id: &str) -> bool {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.get(node).and_then(|seen| seen.run_id.as_deref());
        if known == Some(run_id) {
            return false;
        }
        let first = known.is_none();
        let mut same = 0;
        for (other, seen) in names.iter_mut().enumerate() {
            if other != node && seen.run_id.as_deref() == Some(run_id) {
                seen.same |= bit(node);
                same |= bit(other);
            }
        }
        if let Some(seen) = names.get_mut(node) {
            seen.run_id = Some(run_id.into());
            seen.same |= same;
        }
        first
    }

    /// The other names of the server behind this one.
    fn same(&self, node: usize) -> Mask {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(node).map_or(0, |seen| seen.same)
    }
}

/// Who answers at a node, as far as it tells.
pub(crate) struct Met {
    life: Option<Life>,
    newcomer: bool,
}

impl Nodes {
    /// Learns which server answers at a node: one trip for each new connection.
    pub(crate) async fn meet(&self, node: usize) -> Result<Met> {
        let peer = self.peer(node)?;
        match peer.life(self.persistent).await {
            Ok(Some(life)) => {
                let first = self.lives.note(node, life.run_id());
                let newcomer = first && life.age() < NO_NEWCOMER;
                Ok(Met {
                    life: Some(life),
                    newcomer,
                })
            }
            Ok(None) => Ok(Met {
                life: None,
                newcomer: false,
            }),
            Err(error) => Err(error),
        }
    }

    /// Why what a node answered since it was met does not count, if it does not.
    pub(crate) async fn why_uncounted(&self, node: usize, met: Met) -> Option<String> {
        let life = met.life?;
        let peer = self.peer(node).ok()?;
        if !peer.node.is_same(&life) {
            // Whoever keeps every write counts at once; but it must be known who it is.
            if !self.persistent || self.meet(node).await.is_err() {
                return Some(
                    "the connection was replaced meanwhile, so its age must be asked for again"
                        .to_owned(),
                );
            }
        } else if !self.persistent
            && let Err(why) = is_of_age(&life, self.longest_lease)
        {
            return Some(why);
        }
        let why = "it is seen for the first time, and started a moment ago: it counts from the next question on";
        met.newcomer.then(|| why.to_owned())
    }

    /// The other name of the same server, if one of them is among `counted`.
    pub(crate) fn twin(&self, node: usize, counted: Mask) -> Option<String> {
        let twins = self.lives.same(node) & counted;
        let twin = (0..self.count()).find(|other| twins & bit(*other) != 0)?;
        Some(format!(
            "it is the same server as {}, and a quorum needs independent ones: mend the list of nodes",
            self.place(twin)
        ))
    }

    /// Two names of one server, if any are known.
    pub(crate) fn twins(&self) -> Option<(usize, usize)> {
        (0..self.count()).find_map(|node| {
            let same = self.lives.same(node);
            let twin = (0..self.count()).find(|other| same & bit(*other) != 0)?;
            Some((node, twin))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_server_stay_so_after_its_restart() {
        let lives = Lives::new(3);
        assert!(lives.note(0, "x"));
        assert!(lives.note(1, "y"));
        assert!(!lives.note(0, "x"));
        assert_eq!([0, 1, 2].map(|node| lives.same(node)), [0, 0, 0]);
        assert!(lives.note(2, "x"));
        assert_eq!([0, 1, 2].map(|node| lives.same(node)), [0b100, 0, 0b001]);
        assert!(!lives.note(2, "z"));
        assert_eq!([0, 1, 2].map(|node| lives.same(node)), [0b100, 0, 0b001]);
    }
}
