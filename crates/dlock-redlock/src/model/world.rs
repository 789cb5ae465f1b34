//! What there is: nodes, attempts, and what is under way between them.

use super::{NODES, RAISES, Rules, Who};
use crate::vote::{Ballot, Verdict, Vote};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Node {
    pub(super) counter: u8,
    /// Who holds it, with the counter that is its own.
    pub(super) holders: Vec<(usize, u8)>,
}

/// What is under way between an attempt and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Wire {
    Nothing,
    Ask,
    Granted(u8),
    Others(u8),
    Raise(u8),
    Raised(u8),
    TooLow(u8),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    Outside,
    Asking,
    Raising { token: u8, round: u8 },
    Held { token: u8, raised: bool },
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Attempt {
    pub(super) phase: Phase,
    /// The highest token that somebody held when this attempt began: its own must be higher.
    pub(super) floor: u8,
    pub(super) ballot: Option<Ballot>,
    pub(super) wires: [Wire; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct World {
    pub(super) nodes: [Node; NODES],
    pub(super) attempts: Vec<Attempt>,
    pub(super) strays: u8,
    pub(super) amnesia: u8,
}

impl Node {
    pub(super) fn take(&mut self, attempt: usize, rules: &Rules) -> Wire {
        if let Some((_, own)) = self.holders.iter().find(|(who, _)| *who == attempt) {
            return Wire::Granted(*own);
        }
        let reads = |who| rules.who(who) == Who::Reader;
        let fits = |(other, _): &(usize, u8)| reads(attempt) && reads(*other);
        if !self.holders.iter().all(fits) {
            return Wire::Others(self.counter);
        }
        let (_, proposed) = rules.attempts[attempt];
        self.counter = proposed.max(self.counter + rules.step(attempt));
        self.holders.push((attempt, self.counter));
        self.holders.sort_unstable();
        Wire::Granted(self.counter)
    }

    pub(super) fn raise(&mut self, attempt: usize, token: u8, careless: bool) -> Wire {
        let Some(hold) = self.holders.iter_mut().find(|(who, _)| *who == attempt) else {
            return Wire::Gone;
        };
        if hold.1 == token || careless && self.counter >= token {
            return Wire::Raised(token);
        }
        if self.counter >= token {
            return Wire::TooLow(self.counter);
        }
        self.counter = token;
        hold.1 = token;
        Wire::Raised(token)
    }
}

impl Attempt {
    pub(super) fn ballot(&mut self) -> &mut Ballot {
        self.ballot.get_or_insert_with(|| Ballot::new(NODES))
    }

    /// What `Nodes::vote` and `Nodes::bring_together` do with what they know now.
    pub(super) fn decide(&mut self, time_up: bool) {
        if time_up {
            let waits = matches!(self.phase, Phase::Asking);
            if waits {
                self.ballot().close();
            }
        }
        let verdict = self.ballot().verdict();
        match (self.phase, verdict) {
            (Phase::Asking, Verdict::Open) => {}
            (Phase::Asking, Verdict::Agreed(token)) => self.hold(token, false),
            (Phase::Asking, Verdict::Apart) => self.raise(0),
            (Phase::Raising { token, .. }, Verdict::Agreed(agreed))
                if agreed == u64::from(token) =>
            {
                self.hold(agreed, true);
            }
            (Phase::Raising { round, .. }, verdict) => {
                let waits = |wire: &Wire| {
                    matches!(
                        wire,
                        Wire::Raise(_) | Wire::Raised(_) | Wire::TooLow(_) | Wire::Gone
                    )
                };
                if !time_up && self.wires.iter().any(waits) {
                    return;
                }
                match verdict {
                    Verdict::Agreed(token) => self.hold(token, true),
                    Verdict::Apart if round + 1 < RAISES => self.raise(round + 1),
                    _ => self.fail(),
                }
            }
            (Phase::Asking, _) => self.fail(),
            _ => {}
        }
    }

    pub(super) fn raise(&mut self, round: u8) {
        let ballot = self.ballot();
        let token = ballot.target();
        let lower = ballot.to_raise(token);
        let token = u8::try_from(token).expect("small");
        self.phase = Phase::Raising { token, round };
        self.wires = [Wire::Nothing; NODES];
        for node in lower {
            self.wires[node] = Wire::Raise(token);
        }
    }

    pub(super) fn hold(&mut self, token: u64, raised: bool) {
        let token = u8::try_from(token).expect("small");
        self.end(Phase::Held { token, raised });
    }

    pub(super) fn fail(&mut self) {
        self.end(Phase::Failed);
        self.floor = 0;
    }

    /// What is still under way matters no more: late requests are strays.
    pub(super) fn end(&mut self, phase: Phase) {
        self.phase = phase;
        self.ballot = None;
        self.wires = [Wire::Nothing; NODES];
    }

    pub(super) fn answered(&mut self, node: usize) {
        let wire = std::mem::replace(&mut self.wires[node], Wire::Nothing);
        let ballot = self.ballot();
        match wire {
            Wire::Granted(counter) => ballot.cast(node, Vote::Granted(counter.into())),
            Wire::Others(counter) => ballot.cast(node, Vote::Others(counter.into(), None)),
            Wire::Raised(token) => ballot.cast(node, Vote::Granted(token.into())),
            Wire::TooLow(counter) => ballot.found_above(counter.into()),
            Wire::Gone => ballot.cast(node, Vote::Failed),
            Wire::Nothing | Wire::Ask | Wire::Raise(_) => {}
        }
        self.decide(false);
    }
}

/// Nodes are alike: of all states that differ only in their order, one is looked at.
pub(super) fn representative(world: &World) -> World {
    const ORDERS: [[usize; NODES]; 6] = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    let orders = ORDERS.iter().map(|order| world.reordered(order));
    orders.min().expect("six orders")
}

impl World {
    pub(super) fn reordered(&self, order: &[usize; NODES]) -> Self {
        let attempts = self.attempts.iter().map(|attempt| Attempt {
            ballot: attempt
                .ballot
                .as_ref()
                .map(|ballot| ballot.reordered(order)),
            wires: order.map(|node| attempt.wires[node]),
            ..attempt.clone()
        });
        Self {
            nodes: order.map(|node| self.nodes[node].clone()),
            attempts: attempts.collect(),
            ..self.clone()
        }
    }
}
