//! What an attempt may have left is undone: confirmed by a quorum, and at the other nodes in the background until each of them has confirmed or the
//! lease is over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Result;
use dlock_core::backend::{AttemptId, Backoff, Request};
use dlock_redis::node::Leftover;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, timeout};

use crate::acquire::Said;
use crate::connect::{Nodes, beside};
use crate::error::{Word, Words};
use crate::stake::{Mask, Stake, bit};

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// At which nodes an attempt that may ask again is being undone: it must not ask there before, or its own undo would free what
/// it counts on.
#[derive(Debug, Default)]
pub(crate) struct Undoing {
    nodes: Mutex<HashMap<AttemptId, Mask>>,
    /// How many attempts are in the map, to be read without its lock.
    count: AtomicUsize,
}

impl Undoing {
    fn locked(&self) -> MutexGuard<'_, HashMap<AttemptId, Mask>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, attempt: AttemptId) -> Mask {
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.locked().get(&attempt).copied().unwrap_or(0)
    }

    fn begin(&self, attempt: AttemptId, nodes: Mask) {
        let mut map = self.locked();
        *map.entry(attempt).or_default() |= nodes;
        self.count.store(map.len(), Ordering::Release);
    }

    fn done(&self, attempt: AttemptId, nodes: Mask) {
        let mut map = self.locked();
        if let Some(left) = map.get_mut(&attempt) {
            *left &= !nodes;
            if *left == 0 {
                map.remove(&attempt);
            }
        }
        self.count.store(map.len(), Ordering::Release);
    }
}

/// Clears the mark also when the runtime ends in between.
struct Mark {
    nodes: Arc<Nodes>,
    attempt: AttemptId,
    mask: Mask,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.nodes.undoing.done(self.attempt, self.mask);
    }
}

impl Nodes {
    /// Undoes an attempt, at every node.
    ///
    /// It is done when a quorum has confirmed that it has nothing of the attempt and will refuse what is still under way. Then
    /// no quorum can ever give it the lock, since every two quorums have a node in common; and others can get the lock from those
    /// that confirmed. The rest is undone in the background, until each node has confirmed or the lease is over.
    pub(crate) async fn abandon(self: &Arc<Self>, request: &Request) -> Result<()> {
        let stake = Arc::new(Stake::of(request));
        stake.doubt(self.all());
        self.clear(stake, self.all()).await.map(|_| ())
    }

    /// Frees, and refuses what is under way, until a quorum has confirmed. Tells at how many nodes there was something.
    pub(crate) async fn clear(self: &Arc<Self>, stake: Arc<Stake>, nodes: Mask) -> Result<usize> {
        stake.end();
        let limit = self.patience(stake.lease);
        let mut words = Words::new(self.count());
        let mut frees = self.each(nodes, |nodes, node| {
            let stake = stake.clone();
            async move { (node, nodes.release_at(node, &stake).await) }
        });
        let enough = self
            .agreement(&mut frees, limit, &mut words, |_| Word::Agreed("undone"))
            .await;
        if !enough {
            return Err(self.quorum_error(words, self.quorum));
        }
        let found = stake.freed();
        self.abandon_later(stake, frees);
        Ok(found)
    }

    /// Frees what an attempt has got that did not get enough: now, where it is certain, and in the background where an answer has
    /// not come.
    pub(crate) async fn give_back<F>(
        self: &Arc<Self>,
        stake: Arc<Stake>,
        mut asks: FuturesUnordered<F>,
        limit: Duration,
    ) where
        F: Future<Output = (usize, Said)> + Send + 'static,
    {
        let certain = (0..self.count()).filter(|node| !stake.is_doubtful(*node));
        let certain = certain.map(bit).fold(0, |all, bit| all | bit) & stake.anywhere();
        if certain != 0 {
            let frees = self.each(certain, |nodes, node| {
                let stake = stake.clone();
                async move { (node, nodes.release_at(node, &stake).await) }
            });
            // What is not confirmed in time is still in the stake.
            let freed = timeout(limit, frees.collect::<Vec<_>>());
            let _ = beside(freed, &mut asks).await;
        }
        self.abandon_later(stake, asks);
    }

    /// Waits for answers that are still to come, and frees whatever the attempt then has, node by node.
    pub(crate) fn abandon_later<F, T>(
        self: &Arc<Self>,
        stake: Arc<Stake>,
        asks: FuturesUnordered<F>,
    ) where
        F: Future<Output = (usize, T)> + Send + 'static,
        T: Send,
    {
        let mask = stake.anywhere() & self.all();
        if mask == 0 {
            return;
        }
        self.undoing.begin(stake.attempt, mask);
        let mark = Mark {
            nodes: self.clone(),
            attempt: stake.attempt,
            mask,
        };
        let nodes = self.clone();
        self.in_background(async move {
            let mark = mark;
            let mut asks = asks;
            while asks.next().await.is_some() {}
            // What has been freed between a request and its answer is settled by the answer, without a word to the node.
            let _ = timeout(nodes.node_timeout(), stake.answered(mark.mask)).await;
            let left = stake.anywhere() & nodes.all();
            nodes.undoing.done(stake.attempt, mark.mask & !left);
            let left = (0..nodes.count()).filter(|node| left & bit(*node) != 0);
            join_all(left.map(|node| nodes.release_until_confirmed(node, &stake))).await;
        });
    }

    async fn release_until_confirmed(&self, node: usize, stake: &Stake) {
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let end = Instant::now() + stake.lease;
        while let Err(error) = self.release_at(node, stake).await {
            let pause = backoff.pause();
            if Instant::now() + pause >= end {
                tracing::warn!(node = self.place(node), %error, "a node did not confirm a release; its lease ends it");
                break;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.stopped() => break,
            }
        }
        self.undoing.done(stake.attempt, bit(node));
    }

    /// Frees what the attempt has at one node. A request of it that is under way is refused when it arrives.
    pub(crate) async fn release_at(&self, node: usize, stake: &Stake) -> Result<bool> {
        let left = stake.left_at(node);
        let freed = self.release_once(node, stake, left).await?;
        if freed {
            stake.was_freed(node);
        } else {
            stake.has_not(node);
        }
        Ok(freed)
    }

    /// Frees a hold at a node that has perhaps not answered yet whether it gave it.
    ///
    /// The release mostly follows the request on the same connection, and finds the hold (one that goes alone can overtake a question that goes with
    /// others). If that was the only request, as its
    /// answer will tell, then nothing of it can come later, and the node need not remember to refuse it: that would cost it, and
    /// everybody who takes the lock in the next minute, time.
    pub(crate) async fn release_behind(&self, node: usize, stake: &Stake) -> Result<bool> {
        // What is there may also be older than the request, which then comes behind the release: it must be refused.
        if !stake.is_under_way(node) || stake.had_something(node) {
            return self.release_at(node, stake).await;
        }
        if self.release_once(node, stake, stake.hold_left()).await? {
            stake.was_freed_before_the_answer(node);
            return Ok(true);
        }
        // There was nothing, or there was nothing yet.
        let patience = self.patience(stake.lease);
        let _ = timeout(patience, stake.answered(bit(node))).await;
        if stake.anywhere() & bit(node) == 0 {
            return Ok(false);
        }
        self.release_at(node, stake).await
    }

    async fn release_once(&self, node: usize, stake: &Stake, left: Leftover) -> Result<bool> {
        let peer = self.peer(node)?;
        let freed = peer.call(self.patience(stake.lease), async {
            // It must be known who confirms; whoever cannot be asked for that can still free.
            let _ = self.meet(node).await;
            let release = stake.release(node);
            let next = stake.next_number();
            let freed = peer.node.free(&stake.name, stake.attempt, left, next);
            let (freed, twice) = freed.await?;
            if !twice {
                release.answered_once();
            }
            Ok(freed)
        });
        freed.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_until_its_node_is_done() {
        let undoing = Undoing::default();
        let (one, two) = (AttemptId::new(), AttemptId::new());
        undoing.begin(one, 0b101);
        undoing.begin(one, 0b010);
        undoing.done(one, 0b001);
        assert_eq!((undoing.of(one), undoing.of(two)), (0b110, 0));
        undoing.done(one, 0b110);
        assert_eq!(undoing.of(one), 0);
        assert!(undoing.locked().is_empty());
    }
}
