//! One question to one node, and what follows from its answer: each a step of its own, which may go on in the background.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Lease, Request};
use dlock_core::{Clock, Error, HeldNow, Moment, SystemClock};
use dlock_redis::node::{NodePlace, Taken};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{sleep, timeout};

use crate::connect::{Nodes, unasked};
use crate::lives::Met;
use crate::stake::{Asked, Chase, Grant, Stake};

/// The ticket of somebody who holds the lock, and wants it at a node that has lost it: before everybody who waits.
const HOLDER: u64 = 0;

/// The steps under way, at most one for each node.
pub(super) type Steps = FuturesUnordered<BoxFuture<'static, (usize, StepOutcome)>>;

/// Whoever asks the nodes for an attempt.
pub(super) struct Asker {
    nodes: Arc<Nodes>,
    pub(super) stake: Arc<Stake>,
    /// Where the nodes' messages arrive.
    places: Vec<Option<NodePlace>>,
    /// The place in the queue: lower ones come first, and of equal ones the lower attempt.
    ticket: u64,
    /// The number to propose as the token.
    proposed: Option<u64>,
    clock: Arc<dyn Clock>,
}

/// What is asked of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// The lock, or a place in the queue.
    Stand,
    /// The same, of who has asked before: a sign of life, or a holder whom the node has lost.
    StandAgain,
    /// To give the grant of this number, which we have there, to whoever stands before us.
    GiveWay { number: u64 },
}

/// What a step came to.
pub(super) enum StepOutcome {
    /// The node has given us the lock.
    Held(Held),
    /// We stand in its queue.
    Stands(Standing),
    /// It is time to ask again.
    Due,
    Failed(Error),
}

pub(super) struct Held {
    pub(super) counter: u64,
    /// Why it does not count, if it does not.
    pub(super) uncounted: Option<String>,
    /// The lease counts from here.
    pub(super) sent: Moment,
}

/// A place in a node's queue, as it was answered.
pub(super) struct Standing {
    /// The node's counter then: a grant with a higher one was made later.
    pub(super) counter: u64,
    /// When the question was sent.
    sent: Moment,
    /// When to ask again.
    again: Duration,
    asked: Asked,
    met: Met,
}

impl Asker {
    pub(super) fn new(nodes: &Arc<Nodes>, request: &Request, now: u64) -> Self {
        let stake = Arc::new(Stake::of(request));
        let enter = |node| {
            let peer = nodes.peer(node).ok()?;
            Some(peer.node.enter(request.attempt()))
        };
        Self {
            places: (0..nodes.count()).map(enter).collect(),
            nodes: nodes.clone(),
            stake,
            ticket: now,
            proposed: Some(now),
            clock: request.clock().clone(),
        }
    }

    /// For a hold that a node has lost.
    pub(super) fn of_holder(nodes: &Arc<Nodes>, stake: &Arc<Stake>, missing: usize) -> Self {
        let enter = |node| {
            let peer = nodes.peer(node).ok().filter(|_| node == missing)?;
            Some(peer.node.enter(stake.attempt))
        };
        Self {
            places: (0..nodes.count()).map(enter).collect(),
            nodes: nodes.clone(),
            stake: stake.clone(),
            ticket: HOLDER,
            proposed: None,
            clock: Arc::new(SystemClock),
        }
    }

    pub(super) fn ask(
        self: &Arc<Self>,
        node: usize,
        question: Question,
    ) -> BoxFuture<'static, (usize, StepOutcome)> {
        let asker = self.clone();
        async move { (node, asker.answer(node, question).await) }.boxed()
    }

    /// Waits to be called, or until it is time to ask again.
    pub(super) fn stay(
        self: &Arc<Self>,
        node: usize,
        place: Standing,
    ) -> BoxFuture<'static, (usize, StepOutcome)> {
        let asker = self.clone();
        async move { (node, asker.called(node, place).await) }.boxed()
    }

    /// Waits before a node is asked that could not be asked.
    pub(super) fn pause(self: &Arc<Self>, node: usize) -> BoxFuture<'static, (usize, StepOutcome)> {
        let asker = self.clone();
        async move {
            sleep(asker.nodes.retry).await;
            (node, StepOutcome::Due)
        }
        .boxed()
    }

    async fn answer(&self, node: usize, question: Question) -> StepOutcome {
        let Some(under_way) = self.stake.begin(node) else {
            let why = "the hold has ended, or is being asked for there";
            return StepOutcome::Failed(unasked(why));
        };
        let peer = match self.nodes.peer(node) {
            Ok(peer) => peer,
            Err(error) => return StepOutcome::Failed(error),
        };
        // Read before the first byte is sent (C7).
        let sent = self.clock.now();
        let wish = self.stake.wish(under_way.mode());
        let proposed = self.proposed.unwrap_or_else(|| self.stake.proposal(node));
        let asked = peer.call(self.nodes.patience(self.stake.lease), async {
            let met = self.nodes.meet(node).await?;
            let (taken, twice) = match question {
                Question::Stand => peer.node.stand(wish, proposed, self.ticket).await?,
                Question::StandAgain => {
                    let node = &peer.node;
                    node.stand_again(wish, proposed, self.ticket).await?
                }
                Question::GiveWay { number } => {
                    let node = &peer.node;
                    node.give_way(wish, proposed, self.ticket, number).await?
                }
            };
            Ok((taken, twice, met))
        });
        match asked.await {
            Ok((Taken::Held { counter }, twice, met)) => {
                let uncounted = self.nodes.why_uncounted(node, met).await;
                under_way.gave(Grant {
                    number: counter,
                    counts: uncounted.is_none(),
                    twice,
                });
                StepOutcome::Held(Held {
                    counter,
                    uncounted,
                    sent,
                })
            }
            Ok((Taken::Others { free_in, counter }, twice, met)) => StepOutcome::Stands(Standing {
                counter,
                sent,
                again: peer.node.next_question(free_in),
                asked: under_way.stands(twice),
                met,
            }),
            Err(error) => {
                if error.held_now() == HeldNow::No {
                    under_way.was_not_asked();
                }
                StepOutcome::Failed(error)
            }
        }
    }

    async fn called(&self, node: usize, place: Standing) -> StepOutcome {
        let Some(Some(inbox)) = self.places.get(node) else {
            return StepOutcome::Due;
        };
        tokio::select! {
            biased;
            () = inbox.called() => {}
            () = self.stake.ended() => return StepOutcome::Due,
            () = sleep(place.again) => return StepOutcome::Due,
        }
        // A grant that came after the last answer is as good as one that was the answer; when that is long ago, it is better to ask and
        // count anew (C7).
        let counter = inbox.granted().filter(|counter| *counter > place.counter);
        let recent = self.clock.now().since(place.sent) <= self.stake.lease / 4;
        let Some(counter) = counter.filter(|_| recent) else {
            return StepOutcome::Due;
        };
        let uncounted = self.nodes.why_uncounted(node, place.met).await;
        let grant = Grant {
            number: counter,
            counts: uncounted.is_none(),
            twice: false,
        };
        self.stake.called(node, place.asked, grant);
        StepOutcome::Held(Held {
            counter,
            uncounted,
            sent: place.sent,
        })
    }

    /// Goes on in the background for a hold: what nodes give later belongs to it. Ends with the hold; and with the half of its lease, since
    /// renewals begin again where a node still lacks it.
    pub(super) fn go_on(self: &Arc<Self>, mut steps: Steps, lease: Lease, chases: Vec<Chase>) {
        let (asker, nodes) = (self.clone(), self.nodes.clone());
        let vouched = nodes.clone();
        nodes.in_background(async move {
            let _chases = chases;
            let mut vouching = false;
            let late = async {
                while let Some((node, answer)) = steps.next().await {
                    match answer {
                        StepOutcome::Held(_) => {
                            asker.nodes.downgrade_if_late(node, &lease).await;
                            if !std::mem::replace(&mut vouching, true) {
                                let (nodes, lease) = (vouched.clone(), lease.clone());
                                vouched.in_background(async move { nodes.vouch_soon(lease).await });
                            }
                        }
                        StepOutcome::Stands(place) => steps.push(asker.stay(node, place)),
                        StepOutcome::Due if !asker.stake.has_ended() => {
                            steps.push(asker.ask(node, Question::StandAgain));
                        }
                        StepOutcome::Due | StepOutcome::Failed(_) => {}
                    }
                }
            };
            tokio::select! {
                _ = timeout(lease.duration() / 2, late) => {}
                () = asker.nodes.stopped() => {}
            }
        });
    }
}
