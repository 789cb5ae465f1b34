//! Extend if still the owner: one trip to every node for all leases. A quorum decides for each lease.

mod count;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{Error, LossReason, Result};
use futures::StreamExt;
use futures::future::Ready;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

pub(crate) use self::count::{Count, Extension, Progress};
use crate::connect::Nodes;
use crate::error::{Word, Words};
use crate::stake::{Stake, bit};

/// Longer than most holds of a reader: those cost nothing more.
const VOUCH_AFTER: Duration = Duration::from_millis(500);

/// What one node said about all leases, and why that does not count if it does not.
type Answers = (Vec<Renewal>, Option<String>);

/// What the nodes said about one lease.
struct Tally {
    stake: Arc<Stake>,
    count: Count,
    reason: LossReason,
    words: Words,
}

impl Tally {
    fn outcome(&self, nodes: &Nodes) -> Progress {
        self.count.outcome(nodes.count(), nodes.quorum)
    }
}

impl Nodes {
    /// Renews holds, of which core ends those that are lost: they want no node any more.
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let renewals = self.round(leases).await;
        for (lease, renewal) in leases.iter().zip(&renewals) {
            if matches!(renewal, Renewal::Lost(_)) {
                self.is_lost(lease);
            }
        }
        renewals
    }

    /// A quorum says that the hold is gone: nothing more is taken for it. What single nodes still have of it is given back, since core takes
    /// the word for it that nothing is left; but only when the holder must know of the loss, however long the word takes to come to it: until
    /// then nobody else may get these nodes.
    pub(crate) fn is_lost(self: &Arc<Self>, lease: &Lease) {
        let stake = Stake::from_lease(lease);
        if !stake.end() {
            return;
        }
        self.later(lease.duration(), |nodes| {
            nodes.abandon_later(stake, FuturesUnordered::<Ready<(usize, ())>>::new());
        });
    }

    async fn round(self: &Arc<Self>, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if leases.is_empty() {
            return Vec::new();
        }
        let leases: Arc<[Arc<Lease>]> = leases.into();
        let shortest = leases.iter().map(|lease| lease.duration()).min();
        let limit = self.patience(shortest.unwrap_or_default());
        // Core drops a renewal that takes too long, and with it what the nodes have answered.
        let given = leases.iter().map(|lease| lease.renewal_limit()).min();
        let limit = limit.min(given.unwrap_or(limit) * 9 / 10);
        let mut tallies: Vec<Tally> = leases.iter().map(|lease| self.tally(lease)).collect();
        let mut asks = self.each(self.all(), |nodes, node| {
            let leases = leases.clone();
            async move { (node, nodes.renew_at(node, &leases, limit).await) }
        });
        let mut time_up = std::pin::pin!(sleep_until(Instant::now() + limit));
        let mut gone = Vec::new();
        while tallies
            .iter()
            .any(|tally| matches!(tally.outcome(self), Progress::Open))
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
            gone.extend(self.count_in(node, answers, &mut tallies));
        }
        let mut renewals = Vec::with_capacity(leases.len());
        for tally in &mut tallies {
            renewals.push(match tally.outcome(self) {
                Progress::Extended => Renewal::Extended,
                Progress::Lost => Renewal::Lost(tally.reason),
                Progress::Open => {
                    let words = std::mem::replace(&mut tally.words, Words::new(self.count()));
                    Renewal::Failed(self.quorum_error(words, self.quorum))
                }
            });
            tally.vouch(self);
        }
        let late = tallies.iter().any(|tally| tally.stake.to_share() != 0);
        if !asks.is_empty() || !gone.is_empty() || late {
            let nodes = self.clone();
            self.in_background(async move {
                nodes.repair(&leases, &tallies, gone);
                while let Some((node, answers)) = asks.next().await {
                    let gone = nodes.count_in(node, answers, &mut tallies);
                    tallies.iter().for_each(|tally| tally.vouch(&nodes));
                    nodes.repair(&leases, &tallies, gone);
                }
                nodes.downgrade_late(&leases).await;
            });
        }
        renewals
    }

    /// Late grants to a reader are often unproven, since other readers have come in between. Until the first renewal vouches for them
    /// the hold would have no node to spare; so there is a round before that, unless the hold is given back first.
    pub(crate) async fn vouch_soon(self: &Arc<Self>, lease: Lease) {
        let stake = Stake::from_lease(&lease);
        if !stake.is_partly_unproven() {
            return;
        }
        tokio::select! {
            () = stake.ended() => {}
            () = self.stopped() => {}
            () = tokio::time::sleep(VOUCH_AFTER.min(lease.duration() / 20)) => {
                // Whatever comes of it: the renewals of the hold decide.
                let _ = self.round(&[Arc::new(lease)]).await;
            }
        }
    }

    fn tally(&self, lease: &Lease) -> Tally {
        let stake = Stake::from_lease(lease);
        Tally {
            count: Count::new(stake.begin_round()),
            stake,
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
            let met = self.meet(node).await?;
            let answers = peer.node.renew(leases).await;
            // One trip has failed as a whole or not at all.
            match answers.first() {
                Some(Renewal::Failed(_)) => Err(first_error(answers)),
                _ => Ok((answers, self.why_uncounted(node, met).await)),
            }
        })
        .await
    }

    /// Takes the lock anew at nodes that have lost it. They never count in this round: somebody else may have held the lock there in
    /// between. Whether they count in a later one is a matter of proof, which the stake keeps.
    fn repair(
        self: &Arc<Self>,
        leases: &[Arc<Lease>],
        tallies: &[Tally],
        gone: Vec<(usize, usize)>,
    ) {
        for (node, index) in gone {
            let (Some(lease), Some(tally)) = (leases.get(index), tallies.get(index)) else {
                continue;
            };
            if matches!(tally.outcome(self), Progress::Lost) {
                continue;
            }
            self.chase(node, lease, &tally.stake);
        }
    }

    /// Tells nodes of a downgrade that they have missed.
    async fn downgrade_late(&self, leases: &[Arc<Lease>]) {
        for lease in leases {
            let nodes = Stake::from_lease(lease).to_share();
            for node in (0..self.count()).filter(|node| nodes & bit(*node) != 0) {
                self.downgrade_if_late(node, lease).await;
            }
        }
    }

    /// Adds a node's answers to the tallies. Gives the node and the place in the list of each lease that it has lost.
    fn count_in(
        &self,
        node: usize,
        answers: Result<Answers>,
        tallies: &mut [Tally],
    ) -> Vec<(usize, usize)> {
        let mut gone = Vec::new();
        match answers {
            Ok((answers, uncounted)) => {
                for (index, (answer, tally)) in answers.into_iter().zip(tallies).enumerate() {
                    let twin = self.twin(node, tally.count.answered());
                    let word = match (answer, twin.or_else(|| uncounted.clone())) {
                        (Renewal::Extended, None) => tally.extended_at(node),
                        (Renewal::Extended, Some(why)) => Word::Uncounted(why),
                        (Renewal::Lost(reason), _) => {
                            gone.push((node, index));
                            tally.lost_at(node, reason)
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
}

impl Tally {
    fn extended_at(&mut self, node: usize) -> Word {
        self.stake.extended(self.count.round(), node);
        match self.count.extended(node, self.stake.is_proven(node)) {
            Extension::Counts => Word::Agreed("extended"),
            Extension::GivenAgain => {
                Word::Uncounted("it was given the hold again a moment ago".to_owned())
            }
            Extension::Unproven => Word::Against(
                "it has the hold again, but somebody else may have held the lock there in between",
            ),
        }
    }

    fn lost_at(&mut self, node: usize, reason: LossReason) -> Word {
        self.count.lost(node);
        self.reason = reason;
        self.stake.lost(node);
        Word::Against("it no longer has the hold")
    }

    fn vouch(&self, nodes: &Nodes) {
        if let Some((round, unproven)) = self.count.vouches_for(nodes.count(), nodes.quorum) {
            self.stake.vouch(round, unproven);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::stake::Grant;
    use dlock_core::backend::Request;
    use dlock_core::{Mode, Name, SystemClock};

    /// A hold that two of three nodes gave, and the third has lost.
    fn held_at_two() -> (Arc<Nodes>, Arc<Stake>, Lease) {
        let urls = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
        let config = Config::from_url(urls).expect("a URL");
        let nodes = Arc::new(Nodes::new(&config).expect("nodes"));
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let stake = Arc::new(Stake::of(&request));
        let grant = Grant {
            number: 7,
            counts: true,
            twice: false,
        };
        for node in [0, 1] {
            stake.begin(node).expect("allowed").gave(grant);
        }
        stake.held(7);
        let lease = Lease::new(&request, request.now()).with_native(Arc::new(stake.clone()));
        (nodes, stake, lease)
    }

    /// What it gave would be freed by the release, while the hold counts on it.
    #[tokio::test]
    async fn a_node_to_which_a_release_may_still_come_is_not_repaired() {
        let (nodes, stake, lease) = held_at_two();
        let _ = stake.release(2);
        nodes.chase(2, &lease, &stake);
        let chase = stake.chase(2);
        assert!(chase.is_some(), "it is asked for the lock again");
        drop(chase);
        // And where none may come, it is.
        let (nodes, stake, lease) = held_at_two();
        nodes.chase(2, &lease, &stake);
        assert!(stake.chase(2).is_none(), "nobody repairs it");
    }

    /// What is left of a lost hold is freed when its lease has passed, and nobody who closes the client waits for that.
    #[tokio::test]
    async fn a_close_does_not_wait_for_what_is_left_of_a_lost_hold() {
        let (nodes, _, lease) = held_at_two();
        nodes.is_lost(&lease);
        let closed = tokio::time::timeout(nodes.node_timeout(), nodes.close()).await;
        closed.expect("at once");
    }

    /// A node gives the hold to who stands in its queue, and the message is lost; nobody asks there again, since the node says at the
    /// renewals that it has the hold.
    #[tokio::test]
    async fn a_node_that_extends_what_it_was_not_known_to_have_has_it() {
        let (nodes, stake, lease) = held_at_two();
        let _ = stake.begin(2).expect("allowed").stands(false);
        for round in 1..=2 {
            let mut tallies = vec![nodes.tally(&lease)];
            for node in 0..3 {
                let answers = Ok((vec![Renewal::Extended], None));
                assert!(nodes.count_in(node, answers, &mut tallies).is_empty());
            }
            tallies[0].vouch(&nodes);
            // It may have been given after the first question was sent.
            assert_eq!(stake.is_proven(2), round == 2, "round {round}");
        }
    }
}
