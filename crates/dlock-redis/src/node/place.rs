//! Waiting at one server of a quorum: a place in its queue, and the message that the lock is ours there.

use std::time::Duration;

use dlock_core::backend::{AttemptId, Lease};
use dlock_core::{Name, Result};

use super::{Node, Taken, Wish, digits};
use crate::acquire::FirstStep;
use crate::connect::ScriptCall;
use crate::wait::{InboxEntry, next_look};

/// Where the messages of one server for one waiter arrive. It must be there before the first question, and takes no more of them when it is dropped.
#[derive(Debug)]
pub struct NodePlace(InboxEntry);

impl NodePlace {
    /// Resolves when the server has called the waiter, or the connection broke and a call may be missed.
    pub async fn called(&self) {
        self.0.called().await;
    }

    /// The counter of the last grant that was told since the last question was sent, for the whole lease; `None` when there was none. It was made
    /// after that question was answered if it is higher than the counter in the answer.
    pub fn granted(&self) -> Option<u64> {
        Some(self.0.granted()).filter(|counter| *counter > 0)
    }
}

impl Node {
    /// Makes room for messages to an attempt that is going to [stand](Node::stand) in the queue.
    pub fn enter(&self, attempt: AttemptId) -> NodePlace {
        NodePlace(self.store.inbox.enter(attempt))
    }

    /// As [`take`](Node::take); but when others hold the lock or stand before it, the attempt stands in the server's queue by its `ticket`,
    /// lower ones first. The server gives it the lock when its turn comes, and tells its [place](Node::enter).
    ///
    /// A place lasts for the configuration's waiter lease: the same question again renews it, and finds a grant whose message was lost.
    ///
    /// # Errors
    ///
    /// [`Error::held_now`](dlock_core::Error::held_now) tells whether the attempt may have succeeded, or stand in the queue.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the attempt may hold the lock or stand in the queue: [`free`](Node::free) it, as a stray.
    pub async fn stand(&self, wish: Wish<'_>, proposed: u64, ticket: u64) -> Result<(Taken, bool)> {
        let (_until_answered, stray) = match self.begin(wish, proposed).await? {
            FirstStep::Held(counter) => return Ok((Taken::Held { counter }, false)),
            FirstStep::Ask { alone, stray } => (alone, stray),
        };
        self.stand_alone(wish, proposed, ticket, stray).await
    }

    /// As [`stand`](Node::stand), for an attempt that has asked before: a sign of life, or a holder whom the server has lost. Its question never waits
    /// for those of others.
    ///
    /// # Errors
    ///
    /// As for [`stand`](Node::stand).
    ///
    /// # Cancel safety
    ///
    /// As for [`stand`](Node::stand).
    pub async fn stand_again(
        &self,
        wish: Wish<'_>,
        proposed: u64,
        ticket: u64,
    ) -> Result<(Taken, bool)> {
        self.stand_alone(wish, proposed, ticket, false).await
    }

    async fn stand_alone(
        &self,
        wish: Wish<'_>,
        proposed: u64,
        ticket: u64,
        stray: bool,
    ) -> Result<(Taken, bool)> {
        let script = &self.store.scripts.acquire;
        let call = self.standing(script, wish, proposed, ticket);
        self.stand_by(wish.attempt, call, stray).await
    }

    /// Gives the lock to whoever stands before the attempt in the queue, and stands there instead. Where nobody does, the attempt has the
    /// lock again, with a new counter. What it was given with another counter than `number` is not given up: the request may come late.
    ///
    /// # Errors
    ///
    /// As for [`stand`](Node::stand).
    ///
    /// # Cancel safety
    ///
    /// As for [`stand`](Node::stand).
    pub async fn give_way(
        &self,
        wish: Wish<'_>,
        proposed: u64,
        ticket: u64,
        number: u64,
    ) -> Result<(Taken, bool)> {
        let call = self.standing(&self.give_way, wish, proposed, ticket);
        let call = call.arg(digits(number));
        self.stand_by(wish.attempt, call, false).await
    }

    fn standing<'a>(
        &self,
        script: &'a crate::script::Script,
        wish: Wish<'_>,
        proposed: u64,
        ticket: u64,
    ) -> ScriptCall<'a> {
        self.acquire(script, wish, proposed, &self.store.channel)
            .arg(ticket.to_string())
    }

    async fn stand_by(
        &self,
        attempt: AttemptId,
        call: ScriptCall<'_>,
        stray: bool,
    ) -> Result<(Taken, bool)> {
        self.store.inbox.asks(attempt);
        self.ask(&call, stray).await
    }

    /// When a waiter is to ask again: before its place is forgotten, and when a lease ends that it waits for.
    pub fn next_question(&self, free_in: Option<Duration>) -> Duration {
        next_look(self.store.config.waiter_lease, free_in)
    }

    /// Whether somebody of another client waits there.
    ///
    /// # Errors
    ///
    /// When the server did not answer.
    pub async fn others_wait(&self, name: &Name) -> Result<bool> {
        Ok(Box::pin(self.store.others_wait(name)).await?)
    }

    /// Resolves when somebody of another client waits there for what is held.
    pub async fn wanted(&self, lease: &Lease) {
        Box::pin(self.store.wanted(lease)).await;
    }
}
