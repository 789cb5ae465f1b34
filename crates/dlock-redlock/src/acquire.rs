//! One attempt: all nodes are asked at once, and the first quorum decides.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, Busy, Lease, Outcome, Request};
use dlock_core::{Error, ErrorKind, HeldNow, Mode, Result};
use dlock_redis::node::{Raised, Taken};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use crate::connect::{Nodes, beside, unasked};
use crate::error::{Word, Words};
use crate::fence::{clock_hint, first_of};
use crate::stake::{Grant, LateReleases, Stake, bit};
use crate::vote::{Ballot, Verdict, Vote};

/// How often counters that differ are raised before the attempt gives way. More than once is needed only when readers meet.
const RAISES: usize = 3;

/// How often an attempt asks before it takes a split vote for an answer.
const VOTES: usize = 6;
/// Long enough for one of those who collided to come before the others, with all its questions.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What one vote came to.
enum VoteResult {
    Decided(Outcome),
    Split(Busy),
}

/// What a node answered, and what that is worth.
pub(crate) struct Said {
    pub(crate) vote: Vote,
    pub(crate) word: Word,
}

impl Said {
    /// The node has given the lock; why that does not count, if it does not.
    pub(crate) fn granted(counter: u64, uncounted: Option<String>) -> Self {
        match uncounted {
            None => Self {
                vote: Vote::Granted(counter),
                word: Word::Agreed("granted"),
            },
            Some(why) => Self {
                vote: Vote::Uncounted,
                word: Word::Uncounted(why),
            },
        }
    }

    fn failed(error: Error) -> Self {
        Self {
            vote: Vote::Failed,
            word: Word::Failed(error),
        }
    }
}

impl Nodes {
    /// One attempt. A vote that is split, so that nobody has the lock, is repeated after a random pause: each of those who ask
    /// would else be told that others hold it.
    pub(crate) async fn try_acquire(self: &Arc<Self>, request: &Request) -> Result<Outcome> {
        self.accepts(request)?;
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let late = LateReleases::default();
        for _ in 1..VOTES {
            match self.vote(request, &late).await? {
                VoteResult::Decided(attempt) => return Ok(attempt),
                VoteResult::Split(_) => {}
            }
            let again = request.now() + backoff.pause();
            if request.deadline().is_some_and(|deadline| deadline <= again) {
                break;
            }
            request.clock().sleep_until(again).await;
        }
        Ok(match self.vote(request, &late).await? {
            VoteResult::Decided(attempt) => attempt,
            VoteResult::Split(busy) => Outcome::Busy(busy),
        })
    }

    /// `late`: the releases of earlier votes of the same attempt that may still come.
    async fn vote(self: &Arc<Self>, request: &Request, late: &LateReleases) -> Result<VoteResult> {
        let limit = self.patience(request.lease()).min(request.trip_timeout());
        let mut ballot = Ballot::new(self.count());
        let mut words = Words::new(self.count());
        let stake = Arc::new(Stake::of(request).after(late));
        let proposed = clock_hint();
        // Read before the first byte is sent (C7).
        let sent = request.now();
        let undoing = self.undoing.of(request.attempt()) | late.nodes();
        for node in (0..self.count()).filter(|node| undoing & bit(*node) != 0) {
            ballot.cast(node, Vote::Failed);
            let why = "an earlier question of this attempt is still being undone there, or its release may still come";
            words.note(node, Word::Failed(unasked(why)));
        }
        let mut asks = self.each(self.all() & !undoing, |nodes, node| {
            nodes.ask(node, stake.clone(), proposed)
        });
        let mut verdict = self
            .collect(&mut asks, limit, &mut ballot, &mut words)
            .await;
        let mut late_grants = false;
        if verdict == Verdict::Apart {
            let raised = self.bring_together(&stake, limit, &mut ballot, &mut words);
            let (raised, meanwhile) = beside(raised, &mut asks).await;
            (verdict, late_grants) = (raised, !meanwhile.is_empty());
        }
        match verdict {
            Verdict::Agreed(token) => {
                self.check_time(request, request.now().since(sent))?;
                stake.held(token);
                let first = first_of(token, request.mode());
                let lease = Lease::new(request, sent).with_token(first);
                let lease = lease.with_native(Arc::new(stake));
                if !asks.is_empty() || late_grants {
                    // Late grants belong to the hold, and are freed with it.
                    let (nodes, lease) = (self.clone(), lease.clone());
                    self.in_background(async move {
                        while let Some((node, _)) = asks.next().await {
                            nodes.downgrade_if_late(node, &lease).await;
                        }
                        nodes.vouch_soon(lease).await;
                    });
                }
                Ok(VoteResult::Decided(Outcome::Held(lease)))
            }
            Verdict::Others | Verdict::Split | Verdict::Apart => {
                let busy = Busy {
                    retry_after: ballot.free_in(),
                };
                self.give_back(stake, asks, limit).await;
                Ok(match verdict {
                    Verdict::Others => VoteResult::Decided(Outcome::Busy(busy)),
                    _ => VoteResult::Split(busy),
                })
            }
            // Core abandons the attempt, everywhere.
            Verdict::Open | Verdict::Failed => Err(self.quorum_error(words, self.quorum)),
        }
    }

    pub(crate) fn accepts(&self, request: &Request) -> Result<()> {
        if let Mode::Permit { .. } = request.mode() {
            return Err(no_permits());
        }
        if !self.persistent && request.lease() > self.longest_lease {
            return Err(Error::invalid(format!(
                "the lease is {:?}, but nodes that restarted are trusted again after longest_lease={:?}: set that, for all clients, \
                 to the longest lease that anybody uses",
                request.lease(),
                self.longest_lease
            )));
        }
        Ok(())
    }

    pub(crate) fn check_time(&self, request: &Request, spent: Duration) -> Result<()> {
        let lease = request.lease();
        if spent + lease / 100 + Duration::from_millis(2) < lease {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooLate,
            format!(
                "a quorum of {} nodes gave the lock, but only after {spent:?}, when the lease of {lease:?} was over: use a longer one",
                self.quorum
            ),
        )
        .with_held(HeldNow::Unknown))
    }

    /// Asks one node for the lock, and notes in the stake what came of it.
    pub(crate) async fn ask(
        self: Arc<Self>,
        node: usize,
        stake: Arc<Stake>,
        proposed: u64,
    ) -> (usize, Said) {
        let Some(under_way) = stake.begin(node) else {
            let why = "the hold has ended, or is being asked for there";
            return (node, Said::failed(unasked(why)));
        };
        let taken = self.take_at(node, &stake, under_way.mode(), proposed);
        let said = match taken.await {
            Ok((Taken::Held { counter }, twice, why)) => {
                under_way.gave(Grant {
                    number: counter,
                    counts: why.is_none(),
                    twice,
                });
                Said::granted(counter, why)
            }
            Ok((Taken::Others { free_in, counter }, twice, _)) => {
                under_way.gave_nothing(twice);
                Said {
                    vote: Vote::Others(counter, free_in),
                    word: Word::Against("held by others"),
                }
            }
            Err(error) => {
                if error.held_now() == HeldNow::No {
                    under_way.gave_nothing(false);
                }
                Said::failed(error)
            }
        };
        (node, said)
    }

    /// The answer, whether the request was sent twice, and why it does not count if it does not.
    async fn take_at(
        &self,
        node: usize,
        stake: &Stake,
        mode: Mode,
        proposed: u64,
    ) -> Result<(Taken, bool, Option<String>)> {
        let peer = self.peer(node)?;
        let patience = self.patience(stake.lease);
        peer.call(patience, async {
            let met = self.meet(node).await?;
            let (taken, twice) = peer.node.take(stake.wish(mode), proposed).await?;
            Ok((taken, twice, self.why_uncounted(node, met).await))
        })
        .await
    }

    /// The nodes of a quorum gave the lock with different counters. They are raised to one number while the attempt still holds it
    /// there, so that whoever takes the lock at any of them later gets a higher one.
    pub(crate) async fn bring_together(
        self: &Arc<Self>,
        stake: &Arc<Stake>,
        limit: Duration,
        ballot: &mut Ballot,
        words: &mut Words,
    ) -> Verdict {
        for _ in 0..RAISES {
            let token = ballot.target();
            let until = Instant::now() + limit;
            let mut time_up = std::pin::pin!(sleep_until(until));
            let lower = ballot
                .to_raise(token)
                .into_iter()
                .map(bit)
                .fold(0, |all, bit| all | bit);
            let mut raises = self.each(lower, |nodes, node| {
                let stake = stake.clone();
                async move { (node, nodes.raise_at(node, &stake, token).await) }
            });
            loop {
                if ballot.verdict() == Verdict::Agreed(token) {
                    return Verdict::Agreed(token);
                }
                let answer = tokio::select! {
                    biased;
                    answer = raises.next() => answer,
                    () = &mut time_up => None,
                };
                let Some((node, raised)) = answer else { break };
                match raised {
                    Ok(Raised::Yes) => ballot.cast(node, Vote::Granted(token)),
                    Ok(Raised::TooLow { counter }) => ballot.found_above(counter),
                    Ok(Raised::Gone) => {
                        ballot.cast(node, Vote::Failed);
                        words.note(
                            node,
                            Word::Against("it gave the lock, and then had it no more"),
                        );
                    }
                    Err(error) => {
                        ballot.cast(node, Vote::Failed);
                        words.note(node, Word::Failed(error));
                    }
                }
            }
            if ballot.verdict() != Verdict::Apart {
                break;
            }
        }
        ballot.close();
        match ballot.verdict() {
            // The time was up, or the last answers came, just when a quorum had the same number. Whether it is the one of this round or of
            // an earlier one makes no difference: what a quorum owns is a token.
            verdict @ (Verdict::Agreed(_) | Verdict::Apart) => verdict,
            _ => Verdict::Failed,
        }
    }

    async fn raise_at(&self, node: usize, stake: &Stake, token: u64) -> Result<Raised> {
        let peer = self.peer(node)?;
        let patience = self.patience(stake.lease);
        peer.call(patience, peer.node.raise(&stake.name, stake.attempt, token))
            .await
    }

    /// Waits for answers until they decide, or the time is up.
    async fn collect<F>(
        &self,
        asks: &mut FuturesUnordered<F>,
        limit: Duration,
        ballot: &mut Ballot,
        words: &mut Words,
    ) -> Verdict
    where
        F: Future<Output = (usize, Said)>,
    {
        let mut time_up = std::pin::pin!(sleep_until(Instant::now() + limit));
        loop {
            match ballot.verdict() {
                Verdict::Open => {}
                verdict => return verdict,
            }
            let answer = tokio::select! {
                biased;
                answer = asks.next() => answer,
                () = &mut time_up => None,
            };
            match answer {
                Some((node, said)) => self.hear(node, said, ballot, words),
                None => {
                    words.time_up(limit);
                    ballot.close();
                }
            }
        }
    }

    /// One answer; that of a server which has answered under another name already is none.
    pub(crate) fn hear(&self, node: usize, said: Said, ballot: &mut Ballot, words: &mut Words) {
        match self.twin(node, ballot.answered()) {
            None => {
                ballot.cast(node, said.vote);
                words.note(node, said.word);
            }
            Some(why) => {
                ballot.cast(node, Vote::Failed);
                words.note(node, Word::Uncounted(why));
            }
        }
    }
}

pub(crate) fn no_permits() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a quorum cannot keep permits: two clients may count different nodes, and together give out more than the limit; use \
         another backend for semaphores",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use dlock_core::{Name, SystemClock};

    /// A split vote is repeated with the same attempt. Where its release may come after that, what the node gives could be taken away again.
    #[tokio::test]
    async fn a_node_to_which_a_release_may_still_come_is_not_asked_again() {
        let urls = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
        let config = Config::from_url(urls).expect("a URL");
        let nodes = Arc::new(Nodes::new(&config).expect("nodes"));
        let name = Name::new("a").expect("a name");
        let request = Request::new(name, Mode::Exclusive, Arc::new(SystemClock));
        let late = LateReleases::default();
        let stake = Stake::of(&request).after(&late);
        // Nobody hears the answer of the first; the second is answered, but an earlier one was not.
        let _ = stake.release(0);
        let _ = stake.release(1);
        stake.release(1).answered_once();
        stake.release(2).answered_once();
        assert_eq!(late.nodes(), 0b011);
        let vote = nodes.vote(&request, &late).await;
        let error = vote.err().expect("no quorum").to_string();
        assert_eq!(error.matches("its release may still come").count(), 2);
    }
}
