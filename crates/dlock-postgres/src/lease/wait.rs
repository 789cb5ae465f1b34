//! How a waiter wakes: by a message, and a sign of life finds what a lost message has hidden.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Moment, Result};

use super::LONGEST_PAUSE;
use super::LeaseLocks;
use super::acquire::{AcquireReply, Stray, TOMBSTONE_TTL, Wait};
use super::listener::InboxEntry;
use crate::fence;

/// Signs of life within one waiter lease.
const SIGNS: u32 = 4;
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// Pauses of one who will be woken when the connection that listens is open. It is late where the server has too much to do, and then many
/// who ask all the time would be what it is busy with.
const OPENING_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The last question that was answered "others hold it".
#[derive(Debug, Clone, Copy)]
struct Asked {
    sent: Moment,
    last_token: i64,
}

impl LeaseLocks {
    /// Waits in the queue until the lock is ours or the deadline has passed.
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Outcome> {
        let entry = self.listener.enter(request.attempt());
        let mut asked: Option<Asked> = None;
        let mut stray = false;
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut opening = Backoff::new(OPENING_PAUSES.0, OPENING_PAUSES.1);
        loop {
            let wait = self.listener.wait();
            let mut heard = matches!(wait, Wait::Listening(..));
            let sent = request.now();
            let limit = match asked {
                Some(_) => request.trip_timeout().min(self.sign_limit()),
                None => request.trip_timeout(),
            };
            let hint = match self.ask(request, wait, limit).await {
                Ok(AcquireReply::Held(lease)) => return Ok(held(lease, stray)),
                Ok(AcquireReply::Others {
                    free_in,
                    last,
                    stray: again,
                    deaf,
                }) => {
                    request.mark_contended();
                    if let (true, Wait::Listening(_, bell)) = (deaf, wait) {
                        self.listener.is_deaf(bell);
                        heard = false;
                    }
                    stray |= again;
                    asked = Some(Asked {
                        sent,
                        last_token: last,
                    });
                    free_in
                }
                // The place in the queue outlives a silent connection: the sign of life is given again at once, on a new one.
                Err(trouble)
                    if trouble.kind() == ErrorKind::TimedOut
                        && asked.is_some_and(|asked| sent < asked.sent + self.waiter_lease) =>
                {
                    tracing::debug!(
                        error = trouble.message(),
                        "no answer while waiting, asking again"
                    );
                    stray = true;
                    self.shared.forget_idle();
                    Some(Duration::ZERO)
                }
                // What was answered or sent before has left a place in the queue, which may still be given the lock.
                Err(trouble) if stray || asked.is_some() => return Err(trouble.in_doubt().into()),
                Err(trouble) => return Err(trouble.into()),
            };
            self.listener.begin();
            if let Some(lease) = accept(request, &entry, asked) {
                return Ok(held(lease, stray));
            }
            let pause = if heard {
                self.next_sign()
            } else if self.listener.is_opening() {
                opening.pause().min(self.next_sign())
            } else {
                backoff.pause()
            };
            // The first of the queue looks when the lease of the holder ends.
            let pause = hint.map_or(pause, |free_in| {
                pause.min(free_in + Duration::from_millis(1))
            });
            let next = request.now() + pause;
            let deadline = request.deadline().unwrap_or(Moment::NEVER);
            tokio::select! {
                () = entry.called() => {
                    if let Some(lease) = accept(request, &entry, asked) {
                        return Ok(held(lease, stray));
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

    /// How long a sign of life waits for its answer. The place lasts for `waiter_lease` after the last one that came to the server: the next is given
    /// after a quarter of that, one that is not answered takes another, and then there are two for new connections.
    fn sign_limit(&self) -> Duration {
        self.waiter_lease / SIGNS
    }

    fn next_sign(&self) -> Duration {
        let interval = self.waiter_lease / SIGNS;
        // Not all in step.
        interval.mul_f64(0.8 + 0.2 * fastrand::f64())
    }

    /// The deadline has passed: gives the place up.
    async fn leave(&self, request: &Request, stray: bool) -> Result<Outcome> {
        // When every request was answered, nothing can come later, and nothing need be remembered.
        let memory = if stray { TOMBSTONE_TTL } else { Duration::ZERO };
        let attempt = *request.attempt().as_uuid();
        let name = request.name().as_str();
        let ended = self.end_attempt(name, attempt, memory, self.shared.limit());
        if ended.await.is_err() {
            // Core drops this future in a moment and abandons the attempt until the store confirms it.
            std::future::pending::<()>().await;
        }
        Ok(Outcome::Busy(Busy::default()))
    }
}

fn held(lease: Lease, stray: bool) -> Outcome {
    Outcome::Held(if stray {
        lease.with_native(Arc::new(Stray))
    } else {
        lease
    })
}

/// Takes a grant at its word, if that is safe without a further trip.
///
/// The grant was made after the last question was answered, since its token is higher than the one seen then; so the lease counts from
/// before that question was sent ([C7](dlock_core::contract#c7)). When that is long ago, it is better to ask and count anew.
fn accept(request: &Request, entry: &InboxEntry<'_>, asked: Option<Asked>) -> Option<Lease> {
    let asked = asked?;
    let token = entry.granted();
    let recent = request.now().since(asked.sent) <= request.lease() / 4;
    (token > asked.last_token && recent)
        .then(|| fence::token(token).ok())
        .flatten()
        .map(|token| Lease::new(request, asked.sent).with_token(token))
}
