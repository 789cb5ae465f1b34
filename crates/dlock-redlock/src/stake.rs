//! What an attempt may have at which node. It belongs to a hold for as long as that lives, and to the clean-up after it.
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

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::{AttemptId, Lease, Request};
use dlock_core::{Mode, Name};
use dlock_redis::node::Wish;
use tokio::sync::Notify;

/// A set of nodes, by their place in the list.
pub(crate) type Mask = u64;

pub(crate) fn bit(node: usize) -> Mask {
    1_u64
        .checked_shl(u32::try_from(node).unwrap_or(u32::MAX))
        .unwrap_or(0)
}

#[derive(Debug)]
pub(crate) struct Stake {
    pub(crate) name: Name,
    pub(crate) attempt: AttemptId,
    pub(crate) lease: Duration,
    pub(crate) label: String,
    state: Mutex<State>,
    /// Told when an answer is waited for no longer, and at the end.
    answered: Notify,
}

#[derive(Debug)]
struct State {
    /// The mode to take it in now: it changes with a downgrade.
    mode: Mode,
    /// The token, as soon as a quorum has agreed.
    token: Option<u64>,
    /// The nodes that have given it the lock.
    holds: Mask,
    /// The nodes to which a request to take the lock went, and whose answer did not come (yet).
    doubtful: Mask,
    /// The nodes whose answer is still waited for.
    under_way: Mask,
    /// The nodes that have confirmed a release.
    freed: Mask,
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
    ended: bool,
    /// The holder has been told that it is free.
    told: bool,
}

/// What a renewal may count, as it was when the renewal began.
#[derive(Debug, Clone, Copy)]
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

impl Stake {
    pub(crate) fn of(request: &Request) -> Self {
        Self::new(
            request.name(),
            request.attempt(),
            request.lease(),
            request.mode(),
            request.label(),
        )
    }

    fn new(name: &Name, attempt: AttemptId, lease: Duration, mode: Mode, label: &str) -> Self {
        Self {
            name: name.clone(),
            attempt,
            lease,
            label: label.to_owned(),
            answered: Notify::new(),
            state: Mutex::new(State {
                mode,
                token: None,
                holds: 0,
                doubtful: 0,
                under_way: 0,
                freed: 0,
                proven: 0,
                lost: 0,
                numbers: Vec::new(),
                too_much: 0,
                round: 0,
                fresh: 0,
                ended: false,
                told: false,
            }),
        }
    }

    /// The same for another attempt.
    pub(crate) fn for_attempt(mut self, attempt: AttemptId) -> Self {
        self.attempt = attempt;
        self
    }

    /// What was kept with the lease; for a lease of unknown making, anything is possible at every node.
    pub(crate) fn from_lease(lease: &Lease) -> Arc<Self> {
        if let Some(stake) = lease.native::<Arc<Self>>() {
            return stake.clone();
        }
        let stake = Self::new(
            lease.name(),
            lease.attempt(),
            lease.duration(),
            lease.mode(),
            "",
        );
        {
            let mut state = stake.locked();
            state.token = lease.token().map(|token| token.get());
            state.doubtful = Mask::MAX;
            state.proven = Mask::MAX;
        }
        Arc::new(stake)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wish(&self, mode: Mode) -> Wish<'_> {
        Wish {
            name: &self.name,
            mode,
            attempt: self.attempt,
            lease: self.lease,
            label: &self.label,
        }
    }

    /// A quorum has agreed on this token.
    pub(crate) fn held(&self, token: u64) {
        let mut state = self.locked();
        state.token = Some(token);
        // Whoever was given the lock there after our token was settled, and before us, has left a higher number.
        let numbers = state.numbers.iter().enumerate();
        let above = numbers.filter(|(_, number)| **number > token);
        let above = above.fold(0, |all, (node, _)| all | bit(node));
        state.proven &= !above;
    }

    /// Requests of it may be under way to these nodes, and nobody here waits for their answers.
    pub(crate) fn doubt(&self, nodes: Mask) {
        self.locked().doubtful |= nodes;
    }

    /// A request to take the lock goes out now; `None` when it must not: the hold has ended, or another request is under way there.
    pub(crate) fn begin(&self, node: usize) -> Option<UnderWay<'_>> {
        let mut state = self.locked();
        if state.ended || state.under_way & bit(node) != 0 {
            return None;
        }
        let only = state.doubtful & bit(node) == 0;
        state.under_way |= bit(node);
        state.doubtful |= bit(node);
        Some(UnderWay {
            stake: self,
            node,
            mode: state.mode,
            only,
        })
    }

    /// Resolves when no answer from these nodes is waited for.
    pub(crate) async fn answered(&self, nodes: Mask) {
        loop {
            let told = self.answered.notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable();
            if self.locked().under_way & nodes == 0 {
                return;
            }
            told.await;
        }
    }

    /// It is certain that the node has nothing of it.
    pub(crate) fn has_not(&self, node: usize) {
        self.locked().has_not(node);
    }

    /// The node had it until now.
    pub(crate) fn was_freed(&self, node: usize) {
        let mut state = self.locked();
        state.freed |= bit(node);
        state.has_not(node);
    }

    /// The node had it until now, and has not yet answered the request that took it.
    ///
    /// The doubt stays: only that answer tells whether the request was sent once, so that nothing of it can come any more, or a
    /// second time on a new connection, so that the node must be told to refuse it.
    pub(crate) fn was_freed_before_the_answer(&self, node: usize) {
        let mut state = self.locked();
        state.freed |= bit(node);
        state.holds &= !bit(node);
    }

    /// At how many nodes it was good until it was released.
    pub(crate) fn freed(&self) -> usize {
        self.locked().freed.count_ones() as usize
    }

    /// Whether this is the first time that somebody is told of the release.
    pub(crate) fn tell(&self) -> bool {
        !std::mem::replace(&mut self.locked().told, true)
    }

    pub(crate) fn end(&self) {
        self.locked().ended = true;
        self.answered.notify_waiters();
    }

    /// Resolves when it has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let mut told = std::pin::pin!(self.answered.notified());
            told.as_mut().enable();
            if self.locked().ended {
                return;
            }
            told.await;
        }
    }

    /// The nodes that may have something of it.
    pub(crate) fn anywhere(&self) -> Mask {
        let state = self.locked();
        state.holds | state.doubtful
    }

    /// Whether an answer of this node is waited for.
    pub(crate) fn is_under_way(&self, node: usize) -> bool {
        self.locked().under_way & bit(node) != 0
    }

    /// Whether a request to take the lock may still be under way to this node.
    pub(crate) fn is_doubtful(&self, node: usize) -> bool {
        self.locked().doubtful & bit(node) != 0
    }
}

/// What renewals must know.
impl Stake {
    /// A renewal begins: what was given by now, and is proven, counts.
    pub(crate) fn begin_round(&self) -> Round {
        let mut state = self.locked();
        state.round += 1;
        state.fresh = 0;
        Round {
            number: state.round,
            proven: state.proven & !state.lost,
        }
    }

    /// The number to propose to a node that is to be given the hold again.
    ///
    /// Where nobody else has been, the node still names the attempt with the number it had, and says that one. So the proposal is
    /// another: a node that has forgotten everything would repeat it.
    pub(crate) fn proposal(&self, node: usize, token: u64) -> u64 {
        match self.locked().numbers.get(node).copied() {
            None | Some(0) => token,
            Some(last) => last.max(token) + 2,
        }
    }

    /// Whether a node has it that does not count yet.
    pub(crate) fn is_partly_unproven(&self) -> bool {
        let state = self.locked();
        state.holds & !state.proven != 0
    }

    /// Whether the node counts by now.
    pub(crate) fn is_proven(&self, node: usize) -> bool {
        let state = self.locked();
        state.proven & !state.lost & bit(node) != 0
    }

    /// The node says that it has the hold no longer.
    pub(crate) fn lost(&self, node: usize) {
        self.locked().lost |= bit(node);
    }

    /// A quorum of proven nodes has extended it, and so have these.
    pub(crate) fn vouch(&self, round: Round, nodes: Mask) {
        let mut state = self.locked();
        // An answer to an older question may tell of a hold that has ended there since; and what was given after the question may have
        // come when the quorum was no more.
        if state.round == round.number {
            let there = nodes & state.holds & !state.lost & !state.fresh;
            state.proven |= there;
        }
    }
}

/// The downgrade.
impl Stake {
    /// Shared from now on, wherever it is asked for. Where it may be exclusive, the nodes must be told.
    pub(crate) fn share(&self) {
        let mut state = self.locked();
        if state.mode == Mode::Exclusive {
            state.mode = Mode::Shared;
            state.too_much |= state.holds | state.doubtful;
        }
    }

    /// The node has it shared, or not at all. If an earlier request may still come, it could give it exclusively.
    pub(crate) fn is_shared(&self, node: usize) {
        let mut state = self.locked();
        if state.doubtful & bit(node) == 0 {
            state.too_much &= !bit(node);
        }
    }

    /// The nodes that must be told that it is shared.
    pub(crate) fn to_share(&self) -> Mask {
        let state = self.locked();
        match state.ended {
            true => 0,
            false => state.too_much & (state.holds | state.doubtful),
        }
    }
}

impl State {
    fn has_not(&mut self, node: usize) {
        self.holds &= !bit(node);
        self.doubtful &= !bit(node);
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
}

/// A request to take the lock whose answer is waited for. Dropped without a word, it stays in doubt.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    stake: &'a Stake,
    node: usize,
    /// The mode that is asked for.
    pub(crate) mode: Mode,
    /// No earlier one is in doubt at that node.
    only: bool,
}

impl UnderWay<'_> {
    /// The node has given the lock.
    pub(crate) fn gave(self, grant: Grant) {
        let mut state = self.stake.locked();
        // A release that overtook the answer, but not the request, has freed it already.
        if state.freed & bit(self.node) == 0 {
            state.holds |= bit(self.node);
        }
        if self.only && !grant.twice {
            state.doubtful &= !bit(self.node);
        }
        if self.mode != state.mode {
            state.too_much |= bit(self.node);
        }
        state.granted(self.node, grant);
    }

    /// The node has not given the lock, or was not asked.
    pub(crate) fn gave_nothing(self, twice: bool) {
        if self.only && !twice {
            self.stake.has_not(self.node);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.stake.locked().under_way &= !bit(self.node);
        self.stake.answered.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::SystemClock;

    fn stake() -> Stake {
        let name = Name::new("a").expect("a name");
        Stake::of(&Request::new(name, Mode::Exclusive, Arc::new(SystemClock)))
    }

    fn number(number: u64) -> Grant {
        Grant {
            number,
            counts: true,
            twice: false,
        }
    }

    fn twice(grant: Grant) -> Grant {
        Grant {
            twice: true,
            ..grant
        }
    }

    fn give(stake: &Stake, node: usize, grant: Grant) {
        stake.begin(node).expect("allowed").gave(grant);
    }

    /// A hold with token 7, given by the first two nodes.
    fn held() -> Stake {
        let stake = stake();
        give(&stake, 0, number(7));
        give(&stake, 1, number(5));
        stake.held(7);
        stake
    }

    #[test]
    fn an_ended_stake_asks_nobody() {
        let stake = stake();
        let [zero, one, two] = [0, 1, 2].map(|node| stake.begin(node).expect("allowed"));
        assert!(stake.begin(2).is_none(), "one is under way");
        zero.gave(number(1));
        one.gave_nothing(false);
        drop(two);
        assert_eq!(stake.anywhere(), 0b101);
        assert!(stake.is_doubtful(2) && !stake.is_doubtful(0));
        stake.end();
        assert!(stake.begin(3).is_none());
    }

    #[tokio::test]
    async fn a_release_between_request_and_answer_is_settled_by_the_answer() {
        let stake = stake();
        let [first, second, third] = [0, 1, 2].map(|node| stake.begin(node).expect("allowed"));
        stake.was_freed_before_the_answer(0);
        stake.was_freed_before_the_answer(2);
        assert_eq!(stake.freed(), 2);
        first.gave(number(1));
        third.gave(twice(number(1)));
        stake.answered(0b101).await;
        assert_eq!(stake.anywhere(), 0b110, "another request may follow");
        // Nobody waits for the second any more, so nobody learns what came of it.
        drop(second);
        stake.answered(0b11).await;
        assert!(stake.is_doubtful(1));
        // Not even a later answer tells.
        give(&stake, 1, number(1));
        assert!(stake.is_doubtful(1));
    }

    #[test]
    fn a_late_grant_counts_if_nobody_with_a_higher_token_was_there() {
        let stake = held();
        assert_eq!(stake.begin_round().proven, 0b11);
        give(&stake, 2, number(7));
        assert_eq!(stake.begin_round().proven, 0b111);
        give(&stake, 3, number(8));
        assert_eq!(stake.begin_round().proven, 0b111);
        let young = Grant {
            counts: false,
            ..number(7)
        };
        give(&stake, 4, young);
        assert_eq!(stake.begin_round().proven, 0b111);
    }

    #[test]
    fn a_number_above_the_token_that_came_before_it_does_not_count() {
        let stake = stake();
        for (node, its) in [8, 7, 7].into_iter().enumerate() {
            give(&stake, node, number(its));
        }
        stake.held(7);
        assert_eq!(stake.begin_round().proven, 0b110);
    }

    #[test]
    fn a_repair_counts_if_the_node_still_named_us() {
        let stake = held();
        assert_eq!([0, 1, 2].map(|node| stake.proposal(node, 7)), [9, 9, 7]);
        stake.lost(0);
        assert_eq!(stake.begin_round().proven, 0b10);
        give(&stake, 0, number(7));
        assert_eq!(stake.begin_round().proven, 0b11);
        stake.lost(0);
        give(&stake, 0, number(9));
        assert_eq!(stake.begin_round().proven, 0b10, "somebody was there");
        stake.lost(0);
        give(&stake, 0, number(9));
        assert_eq!(stake.begin_round().proven, 0b10, "before that");
    }

    #[test]
    fn a_quorum_vouches_for_what_was_there_when_it_was_asked() {
        let stake = held();
        give(&stake, 2, number(9));
        let old = stake.begin_round();
        let new = stake.begin_round();
        stake.vouch(old, 0b100);
        assert_eq!(stake.begin_round().proven, 0b11, "an old answer");
        stake.vouch(new, 0b100);
        assert_eq!(stake.begin_round().proven, 0b11, "a newer one has begun");
        let round = stake.begin_round();
        stake.lost(2);
        stake.vouch(round, 0b100);
        assert_eq!(stake.begin_round().proven, 0b11, "it is lost by now");
        let round = stake.begin_round();
        give(&stake, 2, number(20));
        stake.vouch(round, 0b100);
        assert_eq!(stake.begin_round().proven, 0b11, "given after the question");
        let round = stake.begin_round();
        stake.vouch(round, 0b100);
        assert_eq!(stake.begin_round().proven, 0b111);
    }

    #[test]
    fn what_is_given_after_the_downgrade_as_it_was_asked_for_before_is_too_much() {
        let stake = held();
        let late = stake.begin(2).expect("allowed");
        stake.share();
        assert_eq!(stake.to_share(), 0b111);
        stake.is_shared(0);
        // Its answer has not come: the request may come after the downgrade.
        stake.is_shared(2);
        assert_eq!(stake.to_share(), 0b110);
        late.gave(number(7));
        assert_eq!(stake.to_share(), 0b110);
        stake.is_shared(2);
        assert_eq!(stake.to_share(), 0b010);
        // What is asked for now is shared.
        give(&stake, 3, number(7));
        assert_eq!(stake.to_share(), 0b010);
        stake.end();
        assert_eq!(stake.to_share(), 0);
    }
}
