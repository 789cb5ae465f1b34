//! What an attempt may have at which node. It belongs to a hold for as long as that lives, and to the clean-up after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{AttemptId, Lease, Mode, Name, Request};
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
    pub(crate) mode: Mode,
    pub(crate) attempt: AttemptId,
    pub(crate) lease: Duration,
    pub(crate) label: String,
    /// The nodes that have given it the lock.
    holds: AtomicU64,
    /// The nodes to which a request to take the lock went, and whose answer did not come (yet).
    doubtful: AtomicU64,
    /// The nodes whose answer is still waited for.
    under_way: AtomicU64,
    /// Told when one of them is waited for no longer.
    answered: Notify,
    /// The nodes that have confirmed a release.
    freed: AtomicU64,
    /// No request to take the lock may be sent any more.
    ended: AtomicBool,
    /// The holder has been told that it is free.
    told: AtomicBool,
}

impl Stake {
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            name: request.name().clone(),
            mode: request.mode(),
            attempt: request.attempt(),
            lease: request.lease(),
            label: request.label().to_owned(),
            holds: AtomicU64::new(0),
            doubtful: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            answered: Notify::new(),
            freed: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            told: AtomicBool::new(false),
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
        Arc::new(Self {
            name: lease.name().clone(),
            mode: lease.mode(),
            attempt: lease.attempt(),
            lease: lease.duration(),
            label: String::new(),
            holds: AtomicU64::new(0),
            doubtful: AtomicU64::new(Mask::MAX),
            under_way: AtomicU64::new(0),
            answered: Notify::new(),
            freed: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            told: AtomicBool::new(false),
        })
    }

    /// `mode` is the one to take it in now: it changes with a downgrade.
    pub(crate) fn wish(&self, mode: Mode) -> Wish<'_> {
        Wish {
            name: &self.name,
            mode,
            attempt: self.attempt,
            lease: self.lease,
            label: &self.label,
        }
    }

    /// Requests of it may be under way to these nodes, and nobody here waits for their answers.
    pub(crate) fn doubt(&self, nodes: Mask) {
        self.doubtful.fetch_or(nodes, Ordering::SeqCst);
    }

    /// A request to take the lock goes out now; `None` when it must not: the hold has ended, or another request is under way there.
    pub(crate) fn begin(&self, node: usize) -> Option<UnderWay<'_>> {
        if self.under_way.fetch_or(bit(node), Ordering::SeqCst) & bit(node) != 0 {
            return None;
        }
        let only = self.doubtful.fetch_or(bit(node), Ordering::SeqCst) & bit(node) == 0;
        let under_way = UnderWay {
            stake: self,
            node,
            only,
        };
        // Whoever ends it looks at the doubts after that: one of the two sees the other.
        if self.ended.load(Ordering::SeqCst) {
            under_way.gave_nothing(false);
            return None;
        }
        Some(under_way)
    }

    /// Resolves when no answer from these nodes is waited for.
    pub(crate) async fn answered(&self, nodes: Mask) {
        loop {
            let told = self.answered.notified();
            let mut told = std::pin::pin!(told);
            told.as_mut().enable();
            if self.under_way.load(Ordering::SeqCst) & nodes == 0 {
                return;
            }
            told.await;
        }
    }

    /// It is certain that the node has nothing of it.
    pub(crate) fn has_not(&self, node: usize) {
        self.holds.fetch_and(!bit(node), Ordering::SeqCst);
        self.doubtful.fetch_and(!bit(node), Ordering::SeqCst);
    }

    /// The node had it until now.
    pub(crate) fn was_freed(&self, node: usize) {
        self.freed.fetch_or(bit(node), Ordering::SeqCst);
        self.has_not(node);
    }

    /// The node had it until now, but whether that was the only request is known when it has been answered.
    pub(crate) fn was_freed_before_the_answer(&self, node: usize) {
        self.freed.fetch_or(bit(node), Ordering::SeqCst);
        self.holds.fetch_and(!bit(node), Ordering::SeqCst);
    }

    /// At how many nodes it was good until it was released.
    pub(crate) fn freed(&self) -> usize {
        self.freed.load(Ordering::SeqCst).count_ones() as usize
    }

    /// Whether this is the first time that somebody is told of the release.
    pub(crate) fn tell(&self) -> bool {
        !self.told.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// The nodes that may have something of it.
    pub(crate) fn anywhere(&self) -> Mask {
        self.holds.load(Ordering::SeqCst) | self.doubtful.load(Ordering::SeqCst)
    }

    /// Whether an answer of this node is waited for.
    pub(crate) fn is_under_way(&self, node: usize) -> bool {
        self.under_way.load(Ordering::SeqCst) & bit(node) != 0
    }

    /// Whether a request to take the lock may still be under way to this node.
    pub(crate) fn is_doubtful(&self, node: usize) -> bool {
        self.doubtful.load(Ordering::SeqCst) & bit(node) != 0
    }
}

/// A request to take the lock whose answer is waited for. Dropped without a word, it stays in doubt.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    stake: &'a Stake,
    node: usize,
    /// No earlier one is in doubt at that node.
    only: bool,
}

impl UnderWay<'_> {
    /// The node has given the lock. If the request was sent twice, the other may follow.
    pub(crate) fn gave(self, twice: bool) {
        let Self { stake, node, only } = &self;
        // A release that overtook the answer, but not the request, has freed it already.
        if stake.freed.load(Ordering::SeqCst) & bit(*node) == 0 {
            stake.holds.fetch_or(bit(*node), Ordering::SeqCst);
        }
        if *only && !twice {
            stake.doubtful.fetch_and(!bit(*node), Ordering::SeqCst);
        }
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
        let Self { stake, node, .. } = self;
        stake.under_way.fetch_and(!bit(*node), Ordering::SeqCst);
        stake.answered.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::SystemClock;

    #[test]
    fn an_ended_stake_asks_nobody() {
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let stake = Stake::of(&request);
        let [zero, one, two] = [0, 1, 2].map(|node| stake.begin(node).expect("allowed"));
        assert!(stake.begin(2).is_none(), "one is under way");
        zero.gave(false);
        one.gave_nothing(false);
        drop(two);
        assert_eq!(stake.anywhere(), 0b101);
        assert!(stake.is_doubtful(2) && !stake.is_doubtful(0));
        stake.end();
        assert!(stake.begin(3).is_none());
    }

    #[tokio::test]
    async fn a_release_between_request_and_answer_is_settled_by_the_answer() {
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let stake = Stake::of(&request);
        let [first, second, third] = [0, 1, 2].map(|node| stake.begin(node).expect("allowed"));
        stake.was_freed_before_the_answer(0);
        stake.was_freed_before_the_answer(2);
        assert_eq!(stake.freed(), 2);
        first.gave(false);
        third.gave(true);
        stake.answered(0b101).await;
        assert_eq!(stake.anywhere(), 0b110, "another request may follow");
        // Nobody waits for the second any more, so nobody learns what came of it.
        drop(second);
        stake.answered(0b11).await;
        assert!(stake.is_doubtful(1));
        // Not even a later answer tells.
        stake.begin(1).expect("allowed").gave(false);
        assert!(stake.is_doubtful(1));
    }
}
