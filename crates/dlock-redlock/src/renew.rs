//! Extend if still the owner: one trip to every node for all leases. A quorum decides for each lease.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, Lease, LossReason, Renewal, Result};
use futures::StreamExt;
use tokio::time::{Instant, sleep_until};

use crate::connect::Nodes;
use crate::error::{Word, Words};
use crate::peer::is_of_age;
use crate::stake::Stake;

/// What one node said about all leases, and why that does not count if it does not.
type Answers = (Vec<Renewal>, Option<String>);

/// What the nodes said about one lease.
struct Tally {
    extended: usize,
    lost: usize,
    reason: LossReason,
    words: Words,
}

enum Outcome {
    Open,
    Extended,
    Lost,
}

impl Tally {
    fn outcome(&self, nodes: &Nodes) -> Outcome {
        if self.extended >= nodes.quorum {
            Outcome::Extended
        } else if self.lost > nodes.count() - nodes.quorum {
            Outcome::Lost
        } else {
            Outcome::Open
        }
    }
}

impl Nodes {
    pub(crate) async fn extend(self: &Arc<Self>, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if leases.is_empty() {
            return Vec::new();
        }
        let leases: Arc<[Arc<Lease>]> = leases.into();
        let shortest = leases.iter().map(|lease| lease.duration()).min();
        let limit = self.patience(shortest.unwrap_or_default());
        let mut tallies: Vec<Tally> = leases.iter().map(|_| self.tally()).collect();
        let mut asks = self.each(self.all(), |nodes, node| {
            let leases = leases.clone();
            async move { (node, nodes.renew_at(node, &leases, limit).await) }
        });
        let mut time_up = std::pin::pin!(sleep_until(Instant::now() + limit));
        let mut gone = Vec::new();
        while tallies
            .iter()
            .any(|tally| matches!(tally.outcome(self), Outcome::Open))
        {
            let answer = tokio::select! {
                biased;
                answer = asks.next() => answer,
                () = &mut time_up => None,
            };
            let Some((node, answers)) = answer else {
                for tally in &mut tallies {
                    tally.words.time_up(limit);
                }
                break;
            };
            gone.extend(count(node, answers, &mut tallies));
        }
        let mut lost = Vec::with_capacity(leases.len());
        let mut renewals = Vec::with_capacity(leases.len());
        for tally in tallies {
            let outcome = tally.outcome(self);
            lost.push(matches!(outcome, Outcome::Lost));
            renewals.push(match outcome {
                Outcome::Extended => Renewal::Extended,
                Outcome::Lost => Renewal::Lost(tally.reason),
                Outcome::Open => Renewal::Failed(self.explain(tally.words, self.quorum)),
            });
        }
        let nodes = self.clone();
        if !asks.is_empty() || !gone.is_empty() {
            self.in_background(async move {
                nodes.repair(&leases, &lost, gone).await;
                while let Some((node, answers)) = asks.next().await {
                    let mut tallies: Vec<Tally> = leases.iter().map(|_| nodes.tally()).collect();
                    let gone = count(node, answers, &mut tallies);
                    nodes.repair(&leases, &lost, gone).await;
                }
            });
        }
        renewals
    }

    fn tally(&self) -> Tally {
        Tally {
            extended: 0,
            lost: 0,
            reason: LossReason::Gone,
            words: Words::new(self.count()),
        }
    }

    async fn renew_at(
        &self,
        node: usize,
        leases: &[Arc<Lease>],
        patience: Duration,
    ) -> Result<Answers> {
        let peer = self.peer(node)?;
        peer.call(patience, async {
            let life = match self.persistent {
                true => None,
                false => Some(peer.node.life().await?),
            };
            let answers = peer.node.renew(leases).await;
            let counts = match life {
                None => Ok(()),
                Some(life) if peer.node.is_same(&life) => is_of_age(&life, self.longest_lease),
                Some(_) => Err("the connection was replaced meanwhile".to_owned()),
            };
            // One trip has failed as a whole or not at all.
            match answers.first() {
                Some(Renewal::Failed(_)) => Err(first_error(answers)),
                _ => Ok((answers, counts.err())),
            }
        })
        .await
    }

    /// Takes the lock anew at nodes that have lost it, so that they can count in the next round. They never count in this one:
    /// somebody else may have held the lock there in between.
    async fn repair(
        self: &Arc<Self>,
        leases: &[Arc<Lease>],
        lost: &[bool],
        gone: Vec<(usize, usize)>,
    ) {
        for (node, index) in gone {
            let (Some(lease), Some(false)) = (leases.get(index), lost.get(index)) else {
                continue;
            };
            let stake = Stake::from_lease(lease);
            let token = lease.token().map_or(0, |token| token.get());
            let (_, said) = self.clone().ask(node, stake, lease.mode(), token).await;
            tracing::debug!(name = %lease.name(), node = self.place(node), said = ?said.word, "a node had lost a hold");
        }
    }
}

/// Adds a node's answers to the tallies. Gives the node and the place in the list of each lease that it has lost.
fn count(node: usize, answers: Result<Answers>, tallies: &mut [Tally]) -> Vec<(usize, usize)> {
    let mut gone = Vec::new();
    match answers {
        Ok((answers, uncounted)) => {
            for (index, (answer, tally)) in answers.into_iter().zip(tallies).enumerate() {
                let word = match (answer, &uncounted) {
                    (Renewal::Extended, None) => {
                        tally.extended += 1;
                        Word::Agreed("extended")
                    }
                    (Renewal::Extended, Some(why)) => Word::Uncounted(why.clone()),
                    (Renewal::Lost(reason), _) => {
                        tally.lost += 1;
                        tally.reason = reason;
                        gone.push((node, index));
                        Word::Against("it no longer has the hold")
                    }
                    (Renewal::Failed(error), _) => Word::Failed(error),
                };
                tally.words.note(node, word);
            }
        }
        Err(error) => {
            for tally in tallies {
                tally.words.note(node, Word::Failed(again(&error)));
            }
        }
    }
    gone
}

fn first_error(answers: Vec<Renewal>) -> Error {
    let failed = answers.into_iter().find_map(|answer| match answer {
        Renewal::Failed(error) => Some(error),
        _ => None,
    });
    failed.unwrap_or_else(|| Error::new(dlock_core::ErrorKind::Store, "no answer"))
}

/// The same for another lease: errors cannot be cloned, because of their source.
fn again(error: &Error) -> Error {
    Error::new(error.kind(), error.message().to_owned())
        .with_held(error.held_now())
        .with_retryable(error.is_retryable())
}
