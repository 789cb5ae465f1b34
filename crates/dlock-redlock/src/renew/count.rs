//! What the nodes said to one renewal, and what that comes to: plain data, which the model of renewals walks through too.

use crate::stake::{Mask, Round, bit};

/// The answers to one renewal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Count {
    round: Round,
    /// The nodes that extended it and count.
    extended: Mask,
    /// The nodes that extended it, without a proof that nobody else had the lock there meanwhile.
    unproven: Mask,
    /// The nodes that have it no longer.
    lost: Mask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Open,
    Extended,
    Lost,
}

/// What it is worth that a node has extended a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extension {
    Counts,
    /// Given after the question: it counts in the next round.
    GivenAgain,
    Unproven,
}

impl Count {
    pub(crate) fn new(round: Round) -> Self {
        Self {
            round,
            extended: 0,
            unproven: 0,
            lost: 0,
        }
    }

    pub(crate) fn outcome(&self, nodes: usize, quorum: usize) -> Progress {
        let count = |nodes: Mask| nodes.count_ones() as usize;
        if count(self.extended) >= quorum {
            Progress::Extended
        } else if count(self.lost | self.unproven) > nodes - quorum {
            // Those who are unproven can only be vouched for by a quorum of the others, and there is none.
            Progress::Lost
        } else {
            Progress::Open
        }
    }

    pub(crate) fn round(&self) -> Round {
        self.round
    }

    pub(crate) fn answered(&self) -> Mask {
        self.extended | self.unproven | self.lost
    }

    /// A node has extended it; by now it is proven there, or not.
    pub(crate) fn extended(&mut self, node: usize, proven_now: bool) -> Extension {
        if self.round.proven & bit(node) != 0 {
            self.extended |= bit(node);
            Extension::Counts
        } else if proven_now {
            Extension::GivenAgain
        } else {
            self.unproven |= bit(node);
            Extension::Unproven
        }
    }

    /// A node has it no longer.
    pub(crate) fn lost(&mut self, node: usize) {
        self.lost |= bit(node);
    }

    /// While a quorum that counts has the hold, nobody else can get the lock: so it vouches for the nodes that got it meanwhile. Gives those,
    /// if there are any.
    pub(crate) fn vouches_for(&self, nodes: usize, quorum: usize) -> Option<(Round, Mask)> {
        let vouches = self.outcome(nodes, quorum) == Progress::Extended;
        (vouches && self.unproven != 0).then_some((self.round, self.unproven))
    }
}
