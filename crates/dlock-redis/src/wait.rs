//! How a waiter wakes: one inbox for each client, and a sign of life that finds what a lost message has hidden.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::{AttemptId, Busy, Outcome, Request};
use dlock_core::{ErrorKind, Moment, Result};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::acquire::{AttemptOutcome, FirstStep, ReleaseHint, TOMBSTONE_TTL};
use crate::batcher::LoneRequest;
use crate::connect::millis;
use crate::fence;
use crate::store::Store;
use crate::wanted::Listening;

/// Signs of life within one waiter lease.
const SIGNS: u32 = 4;

/// Where messages for the waiters of one client arrive.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// By the attempt, and the number of the entry: at a node of a quorum one attempt may have two for a while.
    waiting: Mutex<BTreeMap<(AttemptId, u64), Arc<GrantSignal>>>,
    entered: AtomicU64,
    /// Holders that want to hear of others: see `wanted.rs`.
    pub(crate) listening: Listening,
}

#[derive(Debug, Default)]
struct GrantSignal {
    woken: Notify,
    /// The token of a grant that needs no confirmation; 0 when there is none.
    granted: AtomicU64,
}

impl Inbox {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<(AttemptId, u64), Arc<GrantSignal>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each_of(&self, attempt: AttemptId, tell: impl Fn(&GrantSignal)) {
        let waiting = self.locked();
        for (_, waiter) in waiting.range((attempt, 0)..=(attempt, u64::MAX)) {
            tell(waiter);
        }
    }

    pub(crate) fn enter(self: &Arc<Self>, attempt: AttemptId) -> InboxEntry {
        let signal = Arc::<GrantSignal>::default();
        let number = self.entered.fetch_add(1, Ordering::Relaxed);
        self.locked().insert((attempt, number), signal.clone());
        InboxEntry {
            inbox: self.clone(),
            attempt,
            number,
            signal,
        }
    }

    /// A question of the attempt is about to be sent: what it was told before is in the answer, or is over. Without this a store that lost its
    /// data, and counts from below, would seem to have given the lock after that answer.
    pub(crate) fn asks(&self, attempt: AttemptId) {
        self.each_of(attempt, |waiter| waiter.granted.store(0, Ordering::Release));
    }

    /// A message: the attempt whose turn has come, and the token if it holds the lock for its whole lease; or one that holds the lock, which
    /// others want.
    pub(crate) fn deliver(&self, payload: &[u8]) {
        let Some((attempt, token)) = payload.split_at_checked(32) else {
            return;
        };
        let Ok(attempt) = Uuid::try_parse_ascii(attempt) else {
            return;
        };
        let attempt = AttemptId::from(attempt);
        let token = std::str::from_utf8(token).ok();
        let token: Option<u64> = token.and_then(|token| token.parse().ok());
        self.each_of(attempt, |waiter| {
            if let Some(token) = token {
                waiter.granted.store(token, Ordering::Release);
            }
            waiter.woken.notify_one();
        });
        if token.is_none() {
            // An attempt that holds the lock at a quorum may still wait for other nodes: both look again.
            self.listening.called(attempt);
        }
    }

    pub(crate) fn wake_all(&self) {
        for waiter in self.locked().values() {
            waiter.woken.notify_one();
        }
        self.listening.all_called();
    }
}

/// A waiter's place in the inbox; it leaves when it is dropped.
#[derive(Debug)]
pub(crate) struct InboxEntry {
    inbox: Arc<Inbox>,
    attempt: AttemptId,
    number: u64,
    signal: Arc<GrantSignal>,
}

impl InboxEntry {
    /// Resolves when a message has come, at once if one has come since the last time; or the connection broke, and it may be missed.
    pub(crate) async fn called(&self) {
        self.signal.woken.notified().await;
    }

    /// As [`Inbox::asks`].
    fn asks(&self) {
        self.signal.granted.store(0, Ordering::Release);
    }

    /// The token of the last grant that needs no confirmation, of those that were told since the last question was sent; 0 when there was none.
    pub(crate) fn granted(&self) -> u64 {
        self.signal.granted.load(Ordering::Acquire)
    }
}

impl Drop for InboxEntry {
    fn drop(&mut self) {
        self.inbox.locked().remove(&(self.attempt, self.number));
    }
}

/// The last question that was answered "others hold it".
#[derive(Debug, Clone, Copy)]
struct LastQuestion {
    sent: Moment,
    last_token: u64,
}

impl Store {
    /// Waits in the store's queue until the lock is ours or the deadline has passed.
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Outcome> {
        match self.begin(request).await? {
            FirstStep::Held(lease) => Ok(Outcome::Held(lease)),
            // In a box, so that the future of an acquire that goes with others stays small.
            FirstStep::Ask { alone, stray } => {
                Box::pin(self.wait_in_queue(request, alone, stray)).await
            }
        }
    }

    async fn wait_in_queue(
        &self,
        request: &Request,
        mut alone: Option<LoneRequest>,
        mut stray: bool,
    ) -> Result<Outcome> {
        let entry = self.inbox.enter(request.attempt());
        let mut asked: Option<LastQuestion> = None;
        loop {
            entry.asks();
            let sent = request.now();
            let limit = match asked {
                Some(_) => self.limit(request).min(self.sign_limit()),
                None => self.limit(request),
            };
            let answer = match self.hear().await {
                Ok(()) => self.ask(request, &self.channel, limit).await,
                Err(trouble) => Err(trouble),
            };
            drop(alone.take());
            let hint = match answer {
                Ok(held @ AttemptOutcome::Held(_)) => {
                    let held = if stray { held.astray() } else { held };
                    return Ok(held.into());
                }
                Ok(AttemptOutcome::Others {
                    free_in,
                    last,
                    stray: sent_twice,
                }) => {
                    stray |= sent_twice;
                    request.mark_contended();
                    asked = Some(LastQuestion {
                        sent,
                        last_token: last,
                    });
                    free_in
                }
                // The place in the queue outlives a frozen connection: the sign of life is given again at once, and after the second one
                // without an answer on a new connection.
                Err(trouble)
                    if trouble.kind() == ErrorKind::TimedOut
                        && asked
                            .is_some_and(|asked| sent < asked.sent + self.config.waiter_lease) =>
                {
                    tracing::debug!(
                        error = trouble.message(),
                        "no answer while waiting, asking again"
                    );
                    stray = true;
                    Some(Duration::ZERO)
                }
                // And it outlives the move of its slot in a cluster, as long as any other request would wait for that.
                Err(trouble)
                    if trouble.passing
                        && self.config.is_cluster()
                        && asked.is_some_and(|asked| {
                            sent < asked.sent + self.config.answer_timeout
                        }) =>
                {
                    Some(Duration::ZERO)
                }
                // What was answered or sent before has left a place in the queue, which may still be given the lock.
                Err(trouble) if stray || asked.is_some() => return Err(trouble.in_doubt().into()),
                Err(trouble) => return Err(trouble.into()),
            };
            if let Some(held) = self.accept(request, &entry, asked) {
                let held = if stray { held.astray() } else { held };
                return Ok(held.into());
            }
            let next = request.now() + self.next_look(hint);
            let deadline = request.deadline().unwrap_or(Moment::NEVER);
            tokio::select! {
                () = entry.called() => {
                    if let Some(held) = self.accept(request, &entry, asked) {
                        let held = if stray { held.astray() } else { held };
                        return Ok(held.into());
                    }
                }
                () = request.clock().sleep_until(next.min(deadline)) => {
                    if deadline <= next {
                        return self.leave(request, stray).await;
                    }
                }
            }
        }
    }

    /// Takes a grant at its word, if that is safe without a further trip.
    ///
    /// The store has given us a whole lease, from the moment of the grant. When was that? The answer to our last question told the last token
    /// then, and the grant has a higher one: so it came after that question was sent, and a lease that counts from there ends too early rather than
    /// too late ([C7](dlock_core::contract#c7)). If the question is older than a quarter of the lease, little would be left: it is better to ask, and
    /// count from that. A hold that replicas must have is never taken at its word.
    fn accept(
        &self,
        request: &Request,
        entry: &InboxEntry,
        asked: Option<LastQuestion>,
    ) -> Option<AttemptOutcome> {
        let asked = asked?;
        let token = entry.granted();
        let recent = request.now().since(asked.sent) <= request.lease() / 4;
        (token > asked.last_token && recent && self.acquires.is_none()).then(|| {
            let lease = fence::lease(request, asked.sent, token);
            AttemptOutcome::Held(lease.with_native(Arc::new(ReleaseHint::Contended)))
        })
    }

    /// How long a sign of life waits for its answer. The place at the store lasts for `waiter_lease` after the last one that came there: one
    /// is given after a quarter of that, two that are not answered take two quarters, and the last quarter is for one on a new connection.
    fn sign_limit(&self) -> Duration {
        self.config.waiter_lease / SIGNS
    }

    /// A sign of life is due; sooner when the lock's lease ends sooner and nobody else looks after it.
    fn next_look(&self, free_in: Option<Duration>) -> Duration {
        next_look(self.config.waiter_lease, free_in)
    }

    /// The deadline has passed: gives the place up.
    async fn leave(&self, request: &Request, stray: bool) -> Result<Outcome> {
        // A tombstone is for a request that is still under way. When every one was answered there is none.
        let memory = if stray { millis(TOMBSTONE_TTL) } else { 0 };
        if self.abandon(request, memory).await.is_err() {
            // The deadline has passed, so core drops this future now, and calls `abandon` until the store confirms.
            std::future::pending::<()>().await;
        }
        Ok(Outcome::Busy(Busy::default()))
    }
}

/// When a waiter gives its next sign of life, or looks at a lease that ends sooner.
pub(crate) fn next_look(waiter_lease: Duration, free_in: Option<Duration>) -> Duration {
    let interval = waiter_lease / SIGNS;
    // A random part less, so that waiters that came together do not all ask in the same moment.
    let interval = interval.mul_f64(0.8 + 0.2 * fastrand::f64());
    free_in.map_or(interval, |free_in| {
        interval.min(free_in + Duration::from_millis(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_message_wakes_its_waiter_alone_and_nothing_is_left() {
        let inbox = Arc::new(Inbox::default());
        let (first, second) = (AttemptId::new(), AttemptId::new());
        let (one, two) = (inbox.enter(first), inbox.enter(second));
        inbox.deliver(second.to_string().as_bytes());
        inbox.deliver(b"not an attempt");
        inbox.deliver(format!("{first}x").as_bytes());
        assert!(one.signal.woken.notified().now_or_never().is_some());
        assert_eq!(one.signal.granted.load(Ordering::Relaxed), 0);
        inbox.deliver(AttemptId::new().to_string().as_bytes());
        assert!(two.signal.woken.notified().now_or_never().is_some());
        inbox.deliver(format!("{second}0000000000000042").as_bytes());
        assert_eq!(two.signal.granted.load(Ordering::Relaxed), 42);
        assert!(one.signal.woken.notified().now_or_never().is_none());
        inbox.wake_all();
        assert!(one.signal.woken.notified().now_or_never().is_some());
        drop((one, two));
        assert!(inbox.locked().is_empty());
    }

    /// The asker of a quorum goes on for a hold in the background while a repair of the same attempt begins: two entries of one attempt.
    #[tokio::test]
    async fn entries_of_one_attempt_come_and_go_by_themselves() {
        let inbox = Arc::new(Inbox::default());
        let attempt = AttemptId::new();
        let (old, new) = (inbox.enter(attempt), inbox.enter(attempt));
        inbox.deliver(format!("{attempt}0000000000000042").as_bytes());
        for entry in [&old, &new] {
            assert!(entry.called().now_or_never().is_some());
            assert_eq!(entry.granted(), 42);
        }
        drop(old);
        inbox.deliver(format!("{attempt}0000000000000043").as_bytes());
        assert!(new.called().now_or_never().is_some(), "it is still there");
        assert_eq!(new.granted(), 43);
        let last = inbox.enter(attempt);
        drop(last);
        inbox.deliver(attempt.to_string().as_bytes());
        assert!(new.called().now_or_never().is_some(), "and still");
        drop(new);
        assert!(inbox.locked().is_empty());
    }

    #[test]
    fn a_grant_that_was_told_before_a_question_is_not_one_that_came_after_it() {
        let inbox = Arc::new(Inbox::default());
        let attempt = AttemptId::new();
        let entry = inbox.enter(attempt);
        inbox.deliver(format!("{attempt}0000000000000042").as_bytes());
        inbox.asks(attempt);
        assert_eq!(entry.granted(), 0);
        // One that says only that others wait takes no grant back.
        inbox.deliver(format!("{attempt}0000000000000043").as_bytes());
        inbox.deliver(attempt.to_string().as_bytes());
        assert_eq!(entry.granted(), 43);
    }
}
