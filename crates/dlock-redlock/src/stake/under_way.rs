//! What is under way to a node, until it is answered or dropped: a request to take the lock, a release, or somebody who asks again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::Mode;

use super::state::{Asked, Grant};
use super::{Mask, Stake};

/// The nodes to which a release of an attempt may still come: its answer did not, or it was sent a second time. An attempt whose vote was split asks
/// again, and what such a node then gives it could be taken away while it is counted on.
#[derive(Debug, Clone, Default)]
pub(crate) struct LateReleases(Arc<AtomicU64>);

impl LateReleases {
    /// One goes out to this node.
    pub(super) fn begin(&self, node: Mask) -> ReleaseUnderWay<'_> {
        let earlier = self.0.fetch_or(node, Ordering::AcqRel);
        ReleaseUnderWay {
            late_releases: self,
            node: node & !earlier,
        }
    }

    pub(crate) fn nodes(&self) -> Mask {
        self.0.load(Ordering::Acquire)
    }
}

/// A release whose answer is waited for. Dropped without a word, it may come at any time.
#[derive(Debug)]
pub(crate) struct ReleaseUnderWay<'a> {
    late_releases: &'a LateReleases,
    /// Nothing, where an earlier one may come too.
    node: Mask,
}

impl ReleaseUnderWay<'_> {
    /// It was sent once, and is done.
    pub(crate) fn answered_once(self) {
        let over = &self.late_releases.0;
        over.fetch_and(!self.node, Ordering::AcqRel);
    }
}

/// A request to take the lock whose answer is waited for. Dropped without a word, it stays in doubt.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    stake: &'a Stake,
    node: usize,
    asked: Asked,
}

impl<'a> UnderWay<'a> {
    pub(super) fn new(stake: &'a Stake, node: usize, asked: Asked) -> Self {
        Self { stake, node, asked }
    }
}

impl UnderWay<'_> {
    /// The mode that is asked for.
    pub(crate) fn mode(&self) -> Mode {
        self.asked.mode
    }

    /// The node has given the lock.
    pub(crate) fn gave(self, grant: Grant) {
        self.stake.locked().gave(self.node, self.asked, grant);
    }

    /// Nothing was sent.
    pub(crate) fn was_not_asked(self) {
        self.stake.locked().was_not_asked(self.node, self.asked);
    }

    /// The node will give the lock when it is our turn.
    pub(crate) fn stands(self, twice: bool) -> Asked {
        let asked = self.asked;
        self.stake.locked().stands(self.node, asked, twice);
        asked
    }

    /// The node has not given the lock, or was not asked.
    pub(crate) fn gave_nothing(self, twice: bool) {
        self.stake
            .locked()
            .gave_nothing(self.node, self.asked, twice);
    }
}

/// A node that is asked again and again, until this is dropped.
#[derive(Debug)]
pub(crate) struct Chase {
    stake: Arc<Stake>,
    node: usize,
}

impl Chase {
    pub(super) fn new(stake: &Arc<Stake>, node: usize) -> Self {
        Self {
            stake: stake.clone(),
            node,
        }
    }
}

impl Drop for Chase {
    fn drop(&mut self) {
        self.stake.locked().chased(self.node);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.stake.locked().settled(self.node);
        self.stake.answered.notify_waiters();
    }
}
