//! How a waiter asks: through the gate of a lock, one node that all who wait ask before the others.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{AttemptId, Outcome, Request};
use dlock_core::{Name, Result};

use crate::connect::Nodes;

/// One question in so many goes to all nodes at once: the gate may have kept what somebody left who is dead.
const OPEN_VOTES: u32 = 4;
/// A waiter is remembered for longer than its longest pause, since its next question may take a while.
const SLACK: Duration = Duration::from_millis(250);

/// How this client tells the others that it waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    client: String,
    /// How often it is told, as long as it is so.
    again: Duration,
}

impl Waiting {
    pub(crate) fn new(longest_pause: Duration) -> Self {
        Self {
            client: AttemptId::new().to_string(),
            again: longest_pause + SLACK,
        }
    }
}

impl Nodes {
    /// The node that those who wait for a lock ask before the others, the same for all of them: where they meet one by one,
    /// they split no votes.
    fn gate_of(&self, name: &Name) -> Option<usize> {
        (0..self.count()).max_by_key(|node| {
            // Clients that list the nodes in another order, or hash otherwise, only collide more often.
            let mut hash = DefaultHasher::new();
            (self.place(*node), name.as_str()).hash(&mut hash);
            hash.finish()
        })
    }

    /// Whether somebody of another client waits, as the gate has been told; yes when it cannot be asked.
    pub(crate) async fn others_wait(&self, name: &Name) -> bool {
        let Some(Ok(gate)) = self.gate_of(name).map(|gate| self.peer(gate)) else {
            return true;
        };
        let question = gate.node.others_wait(name, &self.waiting.client);
        let limit = self.node_timeout();
        let answer = tokio::time::timeout(limit, gate.call(limit, question)).await;
        answer.map_or(true, |answer| answer.unwrap_or(true))
    }

    /// Tells the gate that this client waits. It is only a hint, so nobody waits for the answer.
    fn tell_that_we_wait(self: &Arc<Self>, gate: usize, name: &Name) {
        let (nodes, name) = (self.clone(), name.clone());
        self.in_background(async move {
            let Ok(gate) = nodes.peer(gate) else { return };
            let (client, time) = (&nodes.waiting.client, nodes.waiting.again * 2);
            let hint = gate.node.wait_for(&name, client, time);
            if let Err(error) = gate.call(nodes.node_timeout(), hint).await {
                tracing::debug!(%error, "a waiter could not make itself known");
            }
        });
    }
}

/// One who waits, with the polling loop: one vote for each question, most of them through the gate.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    asked: u32,
    /// When the gate is to be told again that we wait.
    tell_at: Instant,
    nodes: &'a Arc<Nodes>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(nodes: &'a Arc<Nodes>) -> Self {
        Self {
            asked: 0,
            tell_at: Instant::now(),
            nodes,
        }
    }

    /// The next question.
    pub(crate) fn ask<'r>(
        &mut self,
        request: &'r Request,
    ) -> impl Future<Output = Result<Outcome>> + Send + use<'a, 'r> {
        let (nodes, is_first) = (self.nodes, self.asked == 0);
        // Mostly it is free, and then nobody needs a gate.
        let gate = nodes.gate_of(request.name()).filter(|_| !is_first);
        if let Some(gate) = gate {
            self.tell(gate, request.name());
        }
        let is_open = self.asked.is_multiple_of(OPEN_VOTES);
        self.asked = self.asked.wrapping_add(1);
        nodes.ask_once(request, gate.filter(|_| !is_open))
    }

    /// Others who hold the lock learn that somebody waits, and let go of it in time (C18).
    fn tell(&mut self, gate: usize, name: &Name) {
        let now = Instant::now();
        if now >= self.tell_at {
            self.tell_at = now + self.nodes.waiting.again;
            self.nodes.tell_that_we_wait(gate, name);
        }
    }
}
