//! What an attempt may have at which node. It belongs to a hold for as long as that lives, and to the clean-up after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{AttemptId, Lease, Mode, Name, Request};
use dlock_redis::node::Wish;

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

    /// A request to take the lock goes out now; `false` when that is forbidden.
    pub(crate) fn begin(&self, node: usize) -> bool {
        self.doubtful.fetch_or(bit(node), Ordering::SeqCst);
        // Whoever ends it looks at the doubts after that: one of the two sees the other.
        !self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn has(&self, node: usize) {
        self.holds.fetch_or(bit(node), Ordering::SeqCst);
        self.doubtful.fetch_and(!bit(node), Ordering::SeqCst);
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

    /// Whether a request to take the lock may still be under way to this node.
    pub(crate) fn is_doubtful(&self, node: usize) -> bool {
        self.doubtful.load(Ordering::SeqCst) & bit(node) != 0
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
        assert!(stake.begin(0) && stake.begin(1) && stake.begin(2));
        stake.has(0);
        stake.has_not(1);
        assert_eq!(stake.anywhere(), 0b101);
        assert!(stake.is_doubtful(2) && !stake.is_doubtful(0));
        stake.end();
        assert!(!stake.begin(3));
    }
}
