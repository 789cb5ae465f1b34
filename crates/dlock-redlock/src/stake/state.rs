//! The states of an attempt at its nodes, and every step between them: plain data, which the model of renewals walks through too.
//!
//! One node, as the attempt sees it. Every arrow is one method, and all of them change one struct under one lock:
//!
//! ```text
//!                  begin                   gave
//!    nothing ──────────────► asked ──────────────────► has it ◄─────────┐
//!     ▲   ▲                  │   │                      │  │            │ begin and gave: the repair
//!     │   └── gave_nothing ──┘   │ no answer came,      │  └─ lost ─► says that it has lost it
//!     │                          │ or it was sent twice │
//!     │                          ▼                      │
//!     │                  in doubt: a request may        │
//!     │                  still take the lock there      │
//!     │                          │                      │
//!     └── has_not, was_freed ────┴──────────────────────┘
//! ```
//!
//! A node may also answer that the attempt *stands* in its queue: it will give the lock when its turn has come, which is nothing but an answer
//! that takes longer (`stands`, then `called`). What it then has there, or may have, is freed like everything else.
//!
//! A node that has it can say so at a renewal, but that alone does not show that it had it *all the time*: the hold may have ended
//! there, and somebody else may have had the lock, with a quorum, before the node gave it to us again. So there is a second question:
//! is it **proven** that nobody came in between?
//!
//! ```text
//!    first grant, number ≤ token ──────────────► proven      whoever held it after us would have left a higher number there
//!    repair, the same number as before ────────► as before   the node still named us: anybody else would have a higher number
//!    any other grant ──────────────────────────► unproven
//!    unproven, and a quorum of proven nodes ───► proven      while that quorum had the hold nobody else could get one, and the
//!    extended in a round begun after it                      node has had it since then
//! ```
//!
//! Only proven nodes count in a renewal.

use dlock_core::Mode;
use dlock_redis::node::Leftover;

use super::{Mask, bit};

/// What an attempt may have at which node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The mode to take it in now: it changes with a downgrade.
    pub(super) mode: Mode,
    /// The number that a quorum has agreed on: the token, or the last of several.
    token: Option<u64>,
    /// The nodes that have given it the lock.
    pub(super) holds: Mask,
    /// The nodes to which a request to take the lock went, and whose answer did not come (yet).
    pub(super) doubtful: Mask,
    /// The nodes where it stands in the queue: they have answered, and may give the lock at any time.
    pub(super) standing: Mask,
    /// The nodes whose answer is still waited for.
    pub(super) under_way: Mask,
    /// The nodes that are asked again and again in the background, until they give the hold.
    chased: Mask,
    /// The nodes that have confirmed a release.
    pub(super) freed: Mask,
    /// The nodes where nobody else can have had the lock since we have the token.
    proven: Mask,
    /// The nodes that said at a renewal that they no longer have it, and have not given it again.
    lost: Mask,
    /// The number that the last grant at each node had; 0 before the first.
    numbers: Vec<u64>,
    /// The nodes where it may be exclusive although it has been downgraded.
    too_much: Mask,
    /// How many renewals have begun.
    round: u64,
    /// The nodes that have given it since the last of them began.
    fresh: Mask,
    /// No request to take the lock may be sent any more.
    pub(super) ended: bool,
    /// The holder has been told that it is free.
    pub(super) told: bool,
}

/// What a renewal may count, as it was when the renewal began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Round {
    number: u64,
    /// The nodes whose word counts.
    pub(crate) proven: Mask,
}

/// A node's word that the attempt holds the lock there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// The number that the attempt owns there.
    pub(crate) number: u64,
    /// The node counts now.
    pub(crate) counts: bool,
    /// The request was sent twice, and the other one may follow.
    pub(crate) twice: bool,
}

/// A request to take the lock, as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    /// The mode that is asked for.
    pub(crate) mode: Mode,
    /// No earlier one is in doubt at that node.
    only: bool,
}

/// Taking it.
impl State {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            token: None,
            holds: 0,
            doubtful: 0,
            standing: 0,
            under_way: 0,
            chased: 0,
            freed: 0,
            proven: 0,
            lost: 0,
            numbers: Vec::new(),
            too_much: 0,
            round: 0,
            fresh: 0,
            ended: false,
            told: false,
        }
    }

    /// For a hold of unknown making: anything is possible at every node.
    pub(super) fn unknown(mode: Mode, token: Option<u64>) -> Self {
        Self {
            token,
            doubtful: Mask::MAX,
            proven: Mask::MAX,
            ..Self::new(mode)
        }
    }

    /// A quorum has agreed on this number.
    pub(crate) fn held(&mut self, token: u64) {
        self.token = Some(token);
        // Whoever was given the lock there after our token was settled, and before us, has left a higher number.
        let numbers = self.numbers.iter().enumerate();
        let above = numbers.filter(|(_, number)| **number > token);
        let above = above.fold(0, |all, (node, _)| all | bit(node));
        self.proven &= !above;
    }

    /// A request to take the lock goes out now; `None` when it must not: the hold has ended, or another request is under way there.
    pub(crate) fn begin(&mut self, node: usize) -> Option<Asked> {
        if self.ended || self.under_way & bit(node) != 0 {
            return None;
        }
        let only = self.doubtful & bit(node) == 0;
        self.under_way |= bit(node);
        self.doubtful |= bit(node);
        Some(Asked {
            mode: self.mode,
            only,
        })
    }

    /// Its answer is waited for no longer.
    pub(crate) fn settled(&mut self, node: usize) {
        self.under_way &= !bit(node);
    }

    /// The node has given the lock.
    pub(crate) fn gave(&mut self, node: usize, asked: Asked, grant: Grant) {
        // A release that overtook the answer, but not the request, has freed it already.
        if self.freed & bit(node) == 0 {
            self.holds |= bit(node);
        }
        self.standing &= !bit(node);
        if asked.only && !grant.twice {
            self.doubtful &= !bit(node);
        }
        if asked.mode != self.mode {
            self.too_much |= bit(node);
        }
        self.granted(node, grant);
    }

    /// The node has not given the lock, or was not asked.
    pub(crate) fn gave_nothing(&mut self, node: usize, asked: Asked, twice: bool) {
        if asked.only && !twice {
            self.has_not(node);
        }
    }

    /// Nothing was sent: what the node had of it before, it has.
    pub(crate) fn was_not_asked(&mut self, node: usize, asked: Asked) {
        if asked.only {
            self.doubtful &= !bit(node);
        }
    }

    /// The node has not given the lock yet, and will when it is our turn.
    pub(crate) fn stands(&mut self, node: usize, asked: Asked, twice: bool) {
        self.gave_nothing(node, asked, twice);
        if self.freed & bit(node) == 0 {
            self.standing |= bit(node);
        }
    }

    /// The node has called: it has given the lock to who stood in its queue.
    pub(crate) fn called(&mut self, node: usize, asked: Asked, grant: Grant) {
        self.gave(
            node,
            Asked {
                only: false,
                ..asked
            },
            grant,
        );
    }

    /// The node is asked to give the lock to whoever stands before us: the number of the grant that is given up. Whatever it answers is a first
    /// grant, or none.
    ///
    /// Until it answers we stand there at least; if the request is never sent, it is a hold that is there to be freed.
    pub(crate) fn gives_way(&mut self, node: usize) -> u64 {
        self.holds &= !bit(node);
        self.proven &= !bit(node);
        self.standing |= bit(node);
        self.numbers.get_mut(node).map_or(0, std::mem::take)
    }

    /// Somebody begins to ask the node again and again; `false` when somebody does already, or the hold has ended.
    pub(crate) fn chase(&mut self, node: usize) -> bool {
        let free = !self.ended && self.chased & bit(node) == 0;
        if free {
            self.chased |= bit(node);
        }
        free
    }

    /// Nobody asks the node again and again any more.
    pub(crate) fn chased(&mut self, node: usize) {
        self.chased &= !bit(node);
    }

    /// Notes a grant, and whether it is proven that nobody else came before it.
    fn granted(&mut self, node: usize, grant: Grant) {
        if self.numbers.len() <= node {
            self.numbers.resize(node + 1, 0);
        }
        let Some(number) = self.numbers.get_mut(node) else {
            return;
        };
        let last = std::mem::replace(number, grant.number);
        let proven = match last {
            // Before there is a token, `held` decides.
            0 => grant.counts && self.token.is_none_or(|token| grant.number <= token),
            last => self.proven & bit(node) != 0 && grant.number == last,
        };
        if proven {
            self.proven |= bit(node);
        } else {
            self.proven &= !bit(node);
        }
        self.lost &= !bit(node);
        self.fresh |= bit(node);
    }

    /// It is certain that the node has nothing of it.
    pub(super) fn has_not(&mut self, node: usize) {
        self.holds &= !bit(node);
        self.doubtful &= !bit(node);
        self.standing &= !bit(node);
    }
}

/// Giving it back.
impl State {
    /// What a node has of it that has nothing but a hold.
    pub(super) fn hold_left(&self) -> Leftover {
        match self.mode {
            Mode::Exclusive => Leftover::Hold,
            _ => Leftover::SharedHold,
        }
    }
}

/// Renewing it.
impl State {
    /// A renewal begins: what was given by now, and is proven, counts.
    pub(crate) fn begin_round(&mut self) -> Round {
        self.round += 1;
        self.fresh = 0;
        Round {
            number: self.round,
            proven: self.proven & !self.lost,
        }
    }

    /// The number to propose to a node that is to be given the hold again.
    ///
    /// Where nobody else has been, the node still names the attempt with the number it had, and says that one. So the proposal is
    /// another: a node that has forgotten everything would repeat it.
    pub(crate) fn proposal(&self, node: usize) -> u64 {
        let token = self.token.unwrap_or(0);
        match self.numbers.get(node).copied() {
            None | Some(0) => token,
            Some(last) => last.max(token) + 2,
        }
    }

    /// Whether a node has it that does not count yet.
    pub(super) fn is_partly_unproven(&self) -> bool {
        self.holds & !self.proven != 0
    }

    /// Whether the node counts by now.
    pub(crate) fn is_proven(&self, node: usize) -> bool {
        self.proven & !self.lost & bit(node) != 0
    }

    /// The node says that it has the hold no longer.
    pub(crate) fn lost(&mut self, node: usize) {
        self.lost |= bit(node);
    }

    /// The node has extended it in this round: it has the hold, also where nobody had told us yet that it gave it (a call of its queue that was
    /// lost).
    pub(crate) fn extended(&mut self, round: Round, node: usize) {
        // An answer to an older question tells nothing of now; and what a release has freed is gone.
        let current = self.round == round.number && !self.ended;
        let known = self.holds & !self.lost & bit(node) != 0;
        if !current || known || self.freed & bit(node) != 0 {
            return;
        }
        self.holds |= bit(node);
        // With which number, and whether before the question or after it, is not known. So a quorum must vouch for it, in a later round.
        self.fresh |= bit(node);
        if self.lost & bit(node) != 0 {
            self.lost &= !bit(node);
            self.proven &= !bit(node);
        }
    }

    /// A quorum of proven nodes has extended it, and so have these.
    pub(crate) fn vouch(&mut self, round: Round, nodes: Mask) {
        // An answer to an older question may tell of a hold that has ended there since; and what was given after the question may have
        // come when the quorum was no more.
        if self.round == round.number {
            self.proven |= nodes & self.holds & !self.lost & !self.fresh;
        }
    }
}

/// The downgrade.
impl State {
    /// Shared from now on, wherever it is asked for. Where it may be exclusive, the nodes must be told.
    pub(super) fn downgrade(&mut self) {
        if self.mode == Mode::Exclusive {
            self.mode = Mode::Shared;
            self.too_much |= self.holds | self.doubtful | self.standing;
        }
    }

    /// The node has it shared, or not at all. If an earlier request may still come, it could give it exclusively.
    pub(super) fn is_shared(&mut self, node: usize) {
        if (self.doubtful | self.standing) & bit(node) == 0 {
            self.too_much &= !bit(node);
        }
    }

    /// The nodes that must be told that it is shared.
    pub(super) fn to_share(&self) -> Mask {
        match self.ended {
            true => 0,
            false => self.too_much & (self.holds | self.doubtful | self.standing),
        }
    }
}

/// Mistakes, for a model that must find them.
#[cfg(test)]
impl State {
    pub(crate) fn everywhere_proven() -> Round {
        Round {
            number: 0,
            proven: Mask::MAX,
        }
    }

    pub(crate) fn last_number(&self, node: usize) -> u64 {
        self.numbers.get(node).copied().unwrap_or(0)
    }
}
