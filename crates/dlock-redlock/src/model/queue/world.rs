//! What there is: nodes with their queues, waiters, and what is under way between them.

use super::{Mistake, NODES, PATIENCE};
use crate::vote::quorum_of;

/// Between a waiter and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wire {
    Nothing,
    Ask,
    /// With the number of the grant that is given up.
    GiveWay(u8),
    Release,
    /// The answer, or the call: the node has given the lock, with this number.
    Granted(u8),
    /// The answer: it stands in the queue.
    Queued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Outside,
    Waiting,
    Held,
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Node {
    pub(super) holder: Option<usize>,
    /// Tickets in order, with the waiters that brought them.
    pub(super) queue: Vec<(usize, usize)>,
    /// How many have come, for the mistake.
    pub(super) came: usize,
    /// The number of the last grant: 0 up to the one that a late request names, 1 after it. More would make more states, and no difference.
    pub(super) number: u8,
    /// Whether there is such a request.
    pub(super) is_named: bool,
    /// Whose late requests it refuses: they have been freed there, with such a request in doubt.
    pub(super) refuses: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) phase: Phase,
    pub(super) wires: [Wire; NODES],
    /// The nodes that it has, as far as it knows, with the numbers of the grants.
    pub(super) has: [Option<u8>; NODES],
    /// The nodes where it stands in the queue, as far as it knows.
    pub(super) stands: [bool; NODES],
    /// The nodes to which a request may still come.
    pub(super) doubts: [bool; NODES],
    pub(super) patience: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) nodes: [Node; NODES],
    pub(super) waiters: Vec<Waiter>,
    pub(super) lost_calls: u8,
    pub(super) lost_places: u8,
    pub(super) late: u8,
    /// Requests to give way that are still under way on old connections: who, to which node, and for which grant.
    pub(super) strays: Vec<(usize, usize, u8)>,
}

impl Node {
    pub(super) fn enter(&mut self, who: usize, mistake: Mistake) {
        if self.queue.iter().any(|(_, other)| *other == who) {
            return;
        }
        let ticket = match mistake {
            Mistake::NodesNumber => {
                self.came += 1;
                self.came
            }
            _ => who,
        };
        self.queue.push((ticket, who));
        self.queue.sort_unstable();
    }

    /// Whether it has the lock there now.
    pub(super) fn ask(&mut self, who: usize, mistake: Mistake) -> bool {
        if self.holder.is_none() && self.queue.iter().all(|(_, other)| *other == who) {
            self.queue.clear();
            self.give(who);
        }
        if self.holder != Some(who) {
            self.enter(who, mistake);
        }
        self.holder == Some(who)
    }

    /// Gives a free lock to the first of the queue, and tells who that is.
    pub(super) fn give_on(&mut self) -> Option<usize> {
        if self.holder.is_some() || self.queue.is_empty() {
            return None;
        }
        let (_, next) = self.queue.remove(0);
        self.give(next);
        Some(next)
    }

    pub(super) fn give(&mut self, who: usize) {
        self.holder = Some(who);
        self.number = u8::from(self.is_named);
    }
}

impl World {
    /// A node has given the lock on: its call is on the way.
    pub(super) fn call(&mut self, node: usize, except: usize) {
        if let Some(next) = self.nodes[node].give_on()
            && next != except
        {
            // Where an answer is under way, it was given before; the next question finds the grant.
            let number = self.nodes[node].number;
            let wire = &mut self.waiters[next].wires[node];
            if *wire == Wire::Nothing {
                *wire = Wire::Granted(number);
            }
        }
    }

    /// Something has happened: who gave way in vain has a reason to try again.
    pub(super) fn renew_patience(&mut self) {
        for waiter in &mut self.waiters {
            waiter.patience = PATIENCE;
        }
    }

    pub(super) fn is_quiet(&self, ignored: impl Fn(&Wire) -> bool) -> bool {
        let mut wires = self.waiters.iter().flat_map(|waiter| &waiter.wires);
        wires.all(|wire| *wire == Wire::Nothing || ignored(wire))
    }
}

impl Waiter {
    pub(super) fn nodes(&self) -> usize {
        self.has.iter().flatten().count()
    }

    pub(super) fn decide(&mut self) {
        if self.phase == Phase::Waiting && self.nodes() >= quorum_of(NODES) {
            self.phase = Phase::Held;
        }
    }
}

/// Two waiters have a node each. The third was given to the second waiter, and that call was lost; and the second one's node has forgotten the place of
/// the first, which comes before the second. From the beginning there are too many ways to here for a test.
pub(super) fn split(world: &mut World) {
    for (node, holder) in [1, 1, 0].into_iter().enumerate() {
        world.nodes[node].give(holder);
    }
    world.nodes[1].queue = vec![(0, 0)];
    world.nodes[2].queue = vec![(1, 1)];
    let number = world.nodes[0].number;
    for waiter in &mut world.waiters {
        waiter.phase = Phase::Waiting;
        waiter.stands = [true; NODES];
    }
    for (who, node) in [(1, 0), (0, 2)] {
        world.waiters[who].has[node] = Some(number);
        world.waiters[who].stands[node] = false;
    }
}
