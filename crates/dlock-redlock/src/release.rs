//! Free if still the owner, downgrade: at all nodes, confirmed by a quorum.

use std::sync::Arc;

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, Released, Result};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use crate::connect::Nodes;
use crate::error::{Word, Words};
use crate::stake::{Stake, bit};

impl Nodes {
    /// Frees a hold at every node that may have it. It was good to the end if a quorum still had it.
    pub(crate) async fn release(self: &Arc<Self>, lease: &Lease) -> Result<Released> {
        let stake = Stake::from_lease(lease);
        stake.end();
        let limit = self.patience(lease.duration());
        let nodes = stake.anywhere() & self.all();
        let mut open = nodes.count_ones() as usize;
        // Nodes that may have had it, for all we know.
        let mut unknown = 0;
        let mut words = Words::new(self.count());
        for node in (0..self.count()).filter(|node| nodes & bit(*node) == 0) {
            words.note(node, Word::Against("it had not given the lock"));
        }
        let mut frees = self.each(nodes, |nodes, node| {
            let stake = stake.clone();
            async move {
                let stray = stake.is_doubtful(node);
                (node, (stray, nodes.release_behind(node, &stake).await))
            }
        });
        let mut time_up = std::pin::pin!(sleep_until(Instant::now() + limit));
        let released = loop {
            if stake.freed() >= self.quorum {
                break Some(Released::Freed);
            }
            if stake.freed() + unknown + open < self.quorum {
                break Some(Released::AlreadyLost);
            }
            let answer = tokio::select! {
                biased;
                answer = frees.next() => answer,
                () = &mut time_up => None,
            };
            let Some((node, (stray, answer))) = answer else {
                words.time_up(limit);
                break None;
            };
            open -= 1;
            match answer {
                Ok(true) => words.note(node, Word::Agreed("freed")),
                Ok(false) => {
                    // Where the grant itself was in doubt, so is whether it was there.
                    unknown += usize::from(stray);
                    words.note(node, Word::Against("it had nothing to free"));
                }
                Err(error) => {
                    unknown += 1;
                    words.note(node, Word::Failed(error));
                }
            }
        };
        match released {
            Some(Released::Freed) => {
                self.abandon_later(stake.clone(), frees);
                let first = stake.tell();
                Ok(if first {
                    Released::Freed
                } else {
                    Released::AlreadyLost
                })
            }
            Some(released) => {
                self.abandon_later(stake, frees);
                Ok(released)
            }
            // Core tries again.
            None => Err(self.quorum_error(words, self.quorum)),
        }
    }

    /// Shared from now on, at a quorum at least. Where it is not confirmed, the next renewals ask for it again.
    pub(crate) async fn downgrade(self: &Arc<Self>, lease: &Lease) -> Result<()> {
        // Before anything is sent: whoever asks for the lock from now on asks for less.
        Stake::from_lease(lease).downgrade();
        let lease = Arc::new(lease.clone());
        let limit = self.patience(lease.duration());
        let mut words = Words::new(self.count());
        let mut shares = self.each(self.all(), |nodes, node| {
            let lease = lease.clone();
            async move { (node, nodes.downgrade_at(node, &lease).await) }
        });
        let word = |shared: &bool| match shared {
            true => Word::Agreed("shared"),
            false => Word::Against("it has no such hold"),
        };
        let enough = self.agreement(&mut shares, limit, &mut words, word).await;
        if !enough {
            let lost = words.against() > self.count() - self.quorum;
            if lost {
                self.is_lost(&lease);
            }
            let error = self.quorum_error(words, self.quorum);
            return Err(if lost {
                Error::new(ErrorKind::Lost, error.message().to_owned())
            } else {
                error
            });
        }
        self.in_background(async move { while shares.next().await.is_some() {} });
        Ok(())
    }

    /// Shared at one node; `false` when it has no such hold.
    async fn downgrade_at(&self, node: usize, lease: &Lease) -> Result<bool> {
        let peer = self.peer(node)?;
        let shared = peer.call(self.patience(lease.duration()), async {
            let _ = self.meet(node).await;
            let next = Stake::from_lease(lease).next_number();
            peer.node.downgrade(lease, next).await
        });
        let shared = match shared.await {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::Lost => false,
            Err(error) => return Err(error),
        };
        Stake::from_lease(lease).is_shared(node);
        Ok(shared)
    }

    /// A node may have given the lock to a writer who is a reader by now: it is told, so that it does not keep other readers out.
    pub(crate) async fn downgrade_if_late(&self, node: usize, lease: &Lease) {
        if Stake::from_lease(lease).to_share() & bit(node) == 0 {
            return;
        }
        if let Err(error) = self.downgrade_at(node, lease).await {
            tracing::debug!(name = %lease.name(), node = self.place(node), %error, "a node may still have a reader's hold as a writer's");
        }
    }

    /// Waits until a quorum has agreed; `false` when it cannot, or the time is up.
    pub(crate) async fn agreement<F, T>(
        &self,
        asks: &mut FuturesUnordered<F>,
        limit: std::time::Duration,
        words: &mut Words,
        word: impl Fn(&T) -> Word,
    ) -> bool
    where
        F: Future<Output = (usize, Result<T>)>,
    {
        let mut time_up = std::pin::pin!(sleep_until(Instant::now() + limit));
        loop {
            if words.agreed() >= self.quorum {
                return true;
            }
            let answer = tokio::select! {
                biased;
                answer = asks.next() => answer,
                () = &mut time_up => None,
            };
            let Some((node, answer)) = answer else {
                words.time_up(limit);
                return false;
            };
            let word = match answer {
                Ok(answer) => word(&answer),
                Err(error) => Word::Failed(error),
            };
            let word = match self.twin(node, words.answered()) {
                Some(why) if !matches!(word, Word::Failed(_)) => Word::Uncounted(why),
                _ => word,
            };
            words.note(node, word);
        }
    }
}
