//! How an attempt waits: it stands in the queue of every node, and collects what they give it until it has a quorum.
//!
//! A place in a node's queue is nothing but a question that is answered later: the node gives the lock when everybody before us has had it
//! there, and says so through our inbox. So the vote is the same as without a queue, by the same rules; only that nobody asks in vain.
//!
//! ```text
//!              ask                      called                            quorum
//!    outside ───────► stands ─────────────────────────► has the node ───────────────► holds the lock
//!                      ▲  │ ask again: a sign of life          │
//!                      │  └────────┐                           │ too few nodes, for a while
//!                      └───────────┴──────── give way ◄────────┘
//! ```
//!
//! All nodes have the same order: waiters bring their ticket, which they choose before they ask anybody. So mostly all nodes call the same one. When
//! nodes were given to several (they asked for a free lock at the same time, or a node did not know everybody), those who have too few *give way*:
//! each node then takes it back and gives it to the lowest ticket it knows, in one step. By then everybody's ticket is everywhere, so one of them
//! gets all.

mod asker;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Busy, Lease, Outcome, Request};
use dlock_core::{Error, HeldNow, Moment, Result};
use futures::future::ready;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

use self::asker::{Asker, Question, StepOutcome, Steps};
use crate::acquire::Said;
use crate::connect::{Nodes, beside, unasked};
use crate::error::{Word, Words};
use crate::fence::{clock_hint, first_of};
use crate::stake::{Stake, bit};
use crate::vote::{Ballot, Verdict, Vote};

/// How long somebody who has too few nodes waits before it gives way, beside the time that the nodes take to answer; and then again, each time
/// longer.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// One attempt that waits.
struct Waiting<'a> {
    nodes: &'a Arc<Nodes>,
    request: &'a Request,
    asker: Arc<Asker>,
    /// What is waited for at each node: an answer, a call, or the next time to ask.
    steps: Steps,
    ballot: Ballot,
    words: Words,
    at: Vec<AtNode>,
    /// How long a node's answer is waited for.
    limit: Duration,
    /// The longest time that an answer took.
    slowest: Duration,
    /// How long to wait before it gives way the next time.
    pause: Duration,
    /// Since when it has nodes, but too few.
    partly_since: Option<Instant>,
}

/// What is known of one node.
#[derive(Debug, Clone, Copy, Default)]
struct AtNode {
    /// When it was asked, while its answer is waited for.
    asked: Option<Instant>,
    /// The counter it named when it said that we stand in its queue.
    stands: Option<u64>,
    /// The moment from which our lease counts there, if it has given us the lock.
    held_from: Option<Moment>,
}

impl Nodes {
    /// Waits in the queues of the nodes until the lock is ours or the deadline has passed.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &Request) -> Result<Outcome> {
        self.accepts(request)?;
        let mut waiting = Waiting::new(self, request);
        loop {
            match waiting.verdict() {
                Verdict::Agreed(token) => return waiting.hold(token),
                Verdict::Apart => {
                    let token = waiting.bring_together().await;
                    if let Some(token) = token {
                        return waiting.hold(token);
                    }
                }
                Verdict::Failed => return Err(waiting.failed()),
                Verdict::Open | Verdict::Others | Verdict::Split => {}
            }
            let alarm = waiting.alarm();
            let deadline = request.deadline();
            tokio::select! {
                biased;
                Some((node, answer)) = waiting.steps.next() => waiting.hear(node, answer),
                () = at(alarm) => waiting.on_alarm(),
                () = request.clock().sleep_until(deadline.unwrap_or(Moment::NEVER)),
                    if deadline.is_some() => return waiting.leave().await,
            }
        }
    }
}

/// Resolves at a moment; never when there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

impl<'a> Waiting<'a> {
    fn new(nodes: &'a Arc<Nodes>, request: &'a Request) -> Self {
        let mut waiting = Self {
            asker: Arc::new(Asker::new(nodes, request, clock_hint())),
            nodes,
            request,
            steps: Steps::new(),
            ballot: Ballot::new(nodes.count()),
            words: Words::new(nodes.count()),
            at: vec![AtNode::default(); nodes.count()],
            limit: nodes.patience(request.lease()).min(request.trip_timeout()),
            slowest: Duration::ZERO,
            pause: SHORTEST_PAUSE,
            partly_since: None,
        };
        for node in 0..nodes.count() {
            waiting.ask(node, Question::Stand);
        }
        waiting
    }

    fn stake(&self) -> &Arc<Stake> {
        &self.asker.stake
    }

    fn ask(&mut self, node: usize, question: Question) {
        if self.nodes.undoing.of(self.request.attempt()) & bit(node) != 0 {
            let why = "an earlier question of this attempt is still being undone there";
            return self.hear(node, StepOutcome::Failed(unasked(why)));
        }
        if let Some(at) = self.at.get_mut(node) {
            at.asked = Some(Instant::now());
        }
        self.steps.push(self.asker.ask(node, question));
    }

    fn hear(&mut self, node: usize, answer: StepOutcome) {
        let Some(at) = self.at.get_mut(node) else {
            return;
        };
        if let Some(asked) = at.asked.take() {
            self.slowest = self.slowest.max(asked.elapsed());
        }
        match answer {
            StepOutcome::Held(grant) => {
                at.held_from = Some(grant.sent);
                at.stands = None;
                let said = Said::granted(grant.counter, grant.uncounted);
                self.nodes
                    .hear(node, said, &mut self.ballot, &mut self.words);
                self.partly_since.get_or_insert_with(Instant::now);
            }
            StepOutcome::Stands(place) => {
                self.request.mark_contended();
                at.stands = Some(place.counter);
                self.ballot.withdraw(node);
                self.words.note(node, Word::Against("held by others"));
                self.steps.push(self.asker.stay(node, place));
            }
            StepOutcome::Due => self.ask(node, Question::StandAgain),
            StepOutcome::Failed(error) => {
                at.stands = None;
                self.ballot.cast(node, Vote::Failed);
                self.words.note(node, Word::Failed(error));
                self.steps.push(self.asker.pause(node));
            }
        }
    }

    /// What the answers so far mean. Nodes where we stand may still give us the lock.
    fn verdict(&self) -> Verdict {
        match self.ballot.verdict() {
            decided @ (Verdict::Open | Verdict::Agreed(_) | Verdict::Apart) => decided,
            // There will be no quorum with these nodes as they are. Is that for lack of nodes, or do others hold it and the rest may count again?
            _ => {
                let mut seen = self.ballot.clone();
                for (node, at) in self.at.iter().enumerate() {
                    if let Some(counter) = at.stands
                        && self.nodes.twin(node, seen.answered()).is_none()
                    {
                        seen.cast(node, Vote::Others(counter, None));
                    }
                }
                match seen.verdict() {
                    Verdict::Failed => Verdict::Failed,
                    _ => Verdict::Open,
                }
            }
        }
    }

    /// When something is to be done although nobody says anything.
    fn alarm(&self) -> Option<Instant> {
        let asked = self.at.iter().filter_map(|at| at.asked).min();
        if let Some(asked) = asked {
            return Some(asked + self.limit);
        }
        // All have answered.
        self.partly_since
            .map(|since| since + self.pause + self.limit.min(self.slowest * 2))
    }

    fn on_alarm(&mut self) {
        let now = Instant::now();
        let mut silent = false;
        for (node, at) in self.at.iter_mut().enumerate() {
            if at.asked.is_some_and(|asked| asked + self.limit <= now) {
                // It counts when it answers after all.
                at.asked = None;
                silent = true;
                self.ballot.cast(node, Vote::Failed);
                self.words.forget(node);
                self.words.time_up(self.limit);
            }
        }
        if !silent && self.at.iter().all(|at| at.asked.is_none()) {
            self.give_way();
        }
    }

    /// It has too few nodes: each is given to whoever stands before us there.
    fn give_way(&mut self) {
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        self.partly_since = None;
        for node in 0..self.at.len() {
            let Some(at) = self.at.get_mut(node) else {
                continue;
            };
            if at.held_from.take().is_some() {
                self.ballot.withdraw(node);
                let number = self.stake().gives_way(node);
                self.ask(node, Question::GiveWay { number });
            }
        }
    }

    /// The nodes of a quorum gave the lock with different counters: raises them. Gives way when that fails.
    async fn bring_together(&mut self) -> Option<u64> {
        let asker = self.asker.clone();
        let raised =
            self.nodes
                .bring_together(&asker.stake, self.limit, &mut self.ballot, &mut self.words);
        let (verdict, meanwhile) = beside(raised, &mut self.steps).await;
        // To be heard when this is decided.
        let meanwhile = meanwhile.into_iter().map(|step| ready(step).boxed());
        self.steps.extend(meanwhile);
        if let Verdict::Agreed(token) = verdict {
            return Some(token);
        }
        // It has counted those as failed who have not given us the lock: they may still.
        for (node, at) in self.at.iter().enumerate() {
            if at.asked.is_some() || at.stands.is_some() {
                self.ballot.withdraw(node);
            }
        }
        self.give_way();
        None
    }

    fn hold(self, token: u64) -> Result<Outcome> {
        let (nodes, request) = (self.nodes, self.request);
        // Each node counts the lease from its own answer, which came after its question was sent (C7).
        let sent = self.at.iter().filter_map(|at| at.held_from).min();
        let sent = sent.unwrap_or_else(|| request.now());
        nodes.check_time(request, request.now().since(sent))?;
        let stake = self.stake().clone();
        stake.held(token);
        let lease = Lease::new(request, sent).with_token(first_of(token, request.mode()));
        let lease = lease.with_native(Arc::new(stake.clone()));
        if !self.steps.is_empty() {
            let missing = self.at.iter().enumerate();
            let missing = missing.filter(|(_, at)| at.held_from.is_none());
            let chases = missing.filter_map(|(node, _)| stake.chase(node)).collect();
            self.asker.go_on(self.steps, lease.clone(), chases);
        }
        Ok(Outcome::Held(lease))
    }

    /// Too few nodes answer. What the others have of us, core abandons.
    fn failed(self) -> Error {
        let left = self.stake().anywhere() & self.nodes.all();
        let error = self.nodes.quorum_error(self.words, self.nodes.quorum);
        if left == 0 {
            error
        } else {
            error.with_held(HeldNow::Unknown)
        }
    }

    /// The deadline has passed: gives up all places.
    async fn leave(self) -> Result<Outcome> {
        let (nodes, stake) = (self.nodes, self.stake().clone());
        drop(self.steps);
        if nodes.clear(stake, nodes.all()).await.is_err() {
            // Core drops this future in a moment and abandons the attempt until the nodes confirm it.
            std::future::pending::<()>().await;
        }
        Ok(Outcome::Busy(Busy::default()))
    }
}

impl Nodes {
    /// Takes a hold anew at a node that has lost it, before everybody who waits there: none of them could have the lock anyway.
    ///
    /// Not at one to which a release of the same attempt may still come, or an undo: a vote that was split may have been followed by another one.
    /// What the node gave now would be taken away while it counts.
    pub(crate) fn chase(self: &Arc<Self>, node: usize, lease: &Lease, stake: &Arc<Stake>) {
        let given_back = stake.late_releases() | self.undoing.of(lease.attempt());
        if given_back & bit(node) != 0 {
            return;
        }
        let Some(chase) = stake.chase(node) else {
            return;
        };
        tracing::debug!(name = %lease.name(), node = self.place(node), "a node has lost a hold");
        let asker = Arc::new(Asker::of_holder(self, stake, node));
        let steps: Steps = [asker.ask(node, Question::StandAgain)]
            .into_iter()
            .collect();
        asker.go_on(steps, lease.clone(), vec![chase]);
    }

    /// Whether somebody of another client waits, as far as the nodes answer.
    pub(crate) async fn others_wait(self: &Arc<Self>, name: &dlock_core::Name) -> bool {
        let limit = self.node_timeout();
        let mut asks = self.each(self.all(), |nodes, node| {
            let name = name.clone();
            async move {
                let Ok(peer) = nodes.peer(node) else {
                    return (node, false);
                };
                let asked = peer.call(limit, peer.node.others_wait(&name));
                let answer = tokio::time::timeout(limit, asked).await;
                (node, matches!(answer, Ok(Ok(true))))
            }
        });
        while let Some((_, waits)) = asks.next().await {
            if waits {
                return true;
            }
        }
        false
    }

    /// Resolves when somebody of another client waits for what is held.
    pub(crate) async fn wanted(&self, lease: &Lease) {
        let each = (0..self.count()).filter_map(|node| self.peer(node).ok());
        let told: futures::stream::FuturesUnordered<_> =
            each.map(|peer| peer.node.wanted(lease)).collect();
        let mut told = std::pin::pin!(told);
        if told.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
