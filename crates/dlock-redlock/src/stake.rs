//! What an attempt may have at which node. It belongs to a hold for as long as that lives, and to the clean-up after it.
//! `state.rs` has the diagram: every arrow there is one method here, and all of them change one struct under one lock.

mod state;
#[cfg(test)]
mod tests;
mod under_way;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dlock_core::backend::{AttemptId, Lease, Request};
use dlock_core::{Mode, Name};
use dlock_redis::node::{Leftover, Wish};
use tokio::sync::Notify;

use crate::fence::{clock_hint, last_of};

pub(crate) use self::state::{Asked, Grant, Round, State};
pub(crate) use self::under_way::{Chase, LateReleases, ReleaseUnderWay, UnderWay};

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
    next_number: OnceLock<u64>,
    late_releases: LateReleases,
    /// Told when an answer is waited for no longer, and at the end.
    answered: Notify,
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
            next_number: OnceLock::new(),
            late_releases: LateReleases::default(),
            state: Mutex::new(State::new(mode)),
        }
    }

    /// The same for another attempt.
    pub(crate) fn for_attempt(mut self, attempt: AttemptId) -> Self {
        self.attempt = attempt;
        self
    }

    /// For a vote after others of the same attempt.
    pub(crate) fn after(self, late_releases: &LateReleases) -> Self {
        Self {
            late_releases: late_releases.clone(),
            ..self
        }
    }

    /// A release goes out to the node.
    pub(crate) fn release(&self, node: usize) -> ReleaseUnderWay<'_> {
        self.late_releases.begin(bit(node))
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
        *stake.locked() = State::unknown(
            lease.mode(),
            lease
                .token()
                .map(|token| last_of(token.get(), lease.mode())),
        );
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

    /// A quorum has agreed on this number: the token, or the last of several.
    pub(crate) fn held(&self, token: u64) {
        self.locked().held(token);
    }

    /// Requests of it may be under way to these nodes, and nobody here waits for their answers.
    pub(crate) fn doubt(&self, nodes: Mask) {
        self.locked().doubtful |= nodes;
    }

    /// A request to take the lock goes out now; `None` when it must not: the hold has ended, or another request is under way there.
    pub(crate) fn begin(&self, node: usize) -> Option<UnderWay<'_>> {
        let asked = self.locked().begin(node)?;
        Some(UnderWay::new(self, node, asked))
    }

    /// The node has called: it has given the lock to who stood in its queue.
    pub(crate) fn called(&self, node: usize, asked: Asked, grant: Grant) {
        self.locked().called(node, asked, grant);
    }

    /// The node is asked to give the lock to whoever stands before us.
    pub(crate) fn gives_way(&self, node: usize) -> u64 {
        self.locked().gives_way(node)
    }

    /// Somebody begins to ask the node again and again; `None` when somebody does already, or the hold has ended.
    pub(crate) fn chase(self: &Arc<Self>, node: usize) -> Option<Chase> {
        let begun = self.locked().chase(node);
        begun.then(|| Chase::new(self, node))
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

    /// No request to take the lock is sent from now on; `false` when that was so already.
    pub(crate) fn end(&self) -> bool {
        let ended = std::mem::replace(&mut self.locked().ended, true);
        self.answered.notify_waiters();
        !ended
    }

    /// Nodes to which a release of an earlier vote of the same attempt may still come.
    pub(crate) fn late_releases(&self) -> Mask {
        self.late_releases.nodes()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.locked().ended
    }

    /// The number to propose for whoever is given the lock when it ends: the same to every node, so that they agree.
    pub(crate) fn next_number(&self) -> u64 {
        *self.next_number.get_or_init(clock_hint)
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
        state.holds | state.doubtful | state.standing
    }

    /// Whether an answer of this node is waited for.
    pub(crate) fn is_under_way(&self, node: usize) -> bool {
        self.locked().under_way & bit(node) != 0
    }

    /// Whether the node had given us something, or a place, before the request whose answer is waited for.
    pub(crate) fn had_something(&self, node: usize) -> bool {
        let state = self.locked();
        (state.holds | state.standing) & bit(node) != 0
    }

    /// What there may be to free at this node.
    pub(crate) fn left_at(&self, node: usize) -> Leftover {
        let state = self.locked();
        if state.doubtful & bit(node) != 0 {
            Leftover::Stray
        } else if state.standing & bit(node) != 0 {
            Leftover::Place
        } else {
            state.hold_left()
        }
    }

    /// The same, where there can be nothing but a hold.
    pub(crate) fn hold_left(&self) -> Leftover {
        self.locked().hold_left()
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
        self.locked().begin_round()
    }

    /// The number to propose to a node that is to be given the hold again.
    pub(crate) fn proposal(&self, node: usize) -> u64 {
        self.locked().proposal(node)
    }

    /// Whether a node has it that does not count yet.
    pub(crate) fn is_partly_unproven(&self) -> bool {
        self.locked().is_partly_unproven()
    }

    /// Whether the node counts by now.
    pub(crate) fn is_proven(&self, node: usize) -> bool {
        self.locked().is_proven(node)
    }

    /// The node says that it has the hold no longer.
    pub(crate) fn lost(&self, node: usize) {
        self.locked().lost(node);
    }

    /// The node has extended it.
    pub(crate) fn extended(&self, round: Round, node: usize) {
        self.locked().extended(round, node);
    }

    /// A quorum of proven nodes has extended it, and so have these.
    pub(crate) fn vouch(&self, round: Round, nodes: Mask) {
        self.locked().vouch(round, nodes);
    }
}

/// The downgrade.
impl Stake {
    /// Shared from now on, wherever it is asked for. Where it may be exclusive, the nodes must be told.
    pub(crate) fn downgrade(&self) {
        self.locked().downgrade();
    }

    /// The node has it shared, or not at all. If an earlier request may still come, it could give it exclusively.
    pub(crate) fn is_shared(&self, node: usize) {
        self.locked().is_shared(node);
    }

    /// The nodes that must be told that it is shared.
    pub(crate) fn to_share(&self) -> Mask {
        self.locked().to_share()
    }
}
