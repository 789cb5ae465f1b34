//! How a waiter wakes: one connection of each client listens, and a sign of life finds what a lost message has hidden.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::backend::{AttemptId, Backoff, Busy, Lease, Outcome, Request};
use dlock_core::{Moment, Result};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::LONGEST_PAUSE;
use super::LeaseLocks;
use super::acquire::{Reply, Stray, TOMBSTONE_TTL, Wait};
use super::wanted::ListeningHolds;
use crate::connect::{Ear, Link};
use crate::fence;

/// Signs of life within one waiter lease.
const SIGNS: u32 = 4;
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// Pauses of one who will be woken when the connection that listens is open. It is late where the server has too much to do, and then many
/// who ask all the time would be what it is busy with.
const OPENING_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Pauses of the listener between two tries to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A connection that has listened for so long was a good one: the next one is made at once. One that is at the wrong place is found out
/// sooner, and must not be made again and again without a pause.
const LASTED: Duration = Duration::from_secs(10);

/// Where messages for the waiters of one client arrive.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<BTreeMap<AttemptId, Arc<Waiter>>>,
}

#[derive(Debug, Default)]
struct Waiter {
    woken: Notify,
    /// The number of a grant that needs no confirmation; 0 when there is none.
    granted: AtomicI64,
}

impl Inbox {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<AttemptId, Arc<Waiter>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A grant: the attempt whose turn has come, and the token if it holds the lock for its whole lease.
    fn deliver(&self, payload: &str) {
        let (attempt, token) = payload.split_once(' ').unwrap_or((payload, ""));
        let Ok(attempt) = Uuid::try_parse(attempt) else {
            return;
        };
        if let Some(waiter) = self.locked().get(&AttemptId::from(attempt)) {
            let token = token.parse().unwrap_or(0);
            waiter.granted.store(token, Ordering::Release);
            waiter.woken.notify_one();
        }
    }

    fn wake_all(&self) {
        for waiter in self.locked().values() {
            waiter.woken.notify_one();
        }
    }
}

/// A waiter's place in the inbox; it leaves when it is dropped.
#[derive(Debug)]
struct Place<'a> {
    inbox: &'a Inbox,
    attempt: AttemptId,
    waiter: Arc<Waiter>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.inbox.locked().remove(&self.attempt);
    }
}

/// The connection that listens, made when somebody waits for the first time.
#[derive(Debug)]
pub(crate) struct Listener {
    shared: Arc<Shared>,
    /// Off behind a pooler, or by the user's wish.
    on: bool,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct Shared {
    link: Arc<Link>,
    inbox: Inbox,
    /// Who wants to hear that others wait.
    holds: ListeningHolds,
    /// By which the client is known at the server, also if nobody listens there.
    channel: String,
    bell: Mutex<Option<i64>>,
    /// Rung when the connection that listens does so at the wrong server.
    moved: Notify,
    running: AtomicBool,
    /// Nobody listens any more.
    closed: AtomicBool,
    /// The connection that listens is being made, and wakes everybody when it is there, or cannot be had.
    opening: AtomicBool,
}

impl Listener {
    pub(crate) fn new(link: Arc<Link>, on: bool) -> Self {
        Self {
            shared: Arc::new(Shared {
                link,
                inbox: Inbox::default(),
                holds: ListeningHolds::default(),
                channel: format!("dlock_{}", Uuid::new_v4().simple()),
                bell: Mutex::default(),
                moved: Notify::new(),
                running: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                opening: AtomicBool::new(false),
            }),
            on,
            task: Mutex::default(),
        }
    }

    fn enter(&self, attempt: AttemptId) -> Place<'_> {
        let inbox = &self.shared.inbox;
        let waiter = Arc::<Waiter>::default();
        inbox.locked().insert(attempt, waiter.clone());
        Place {
            inbox,
            attempt,
            waiter,
        }
    }

    /// How to wait now.
    fn wait(&self) -> Wait<'_> {
        match *self.shared.bell() {
            Some(bell) => Wait::Listening(&self.shared.channel, bell),
            None => Wait::Asking,
        }
    }

    /// The server that was asked does not know this bell: after a switch-over the old primary may live on, with the connection that listens.
    pub(super) fn is_deaf(&self, bell: i64) {
        let mut kept = self.shared.bell();
        // Not if there is another by now.
        if *kept == Some(bell) {
            *kept = None;
            self.shared.moved.notify_one();
        }
    }

    /// Begins to listen, if nobody does: the runtime of an earlier one may have ended.
    pub(super) fn begin(&self) {
        if !self.on {
            return;
        }
        // A close that comes now finds the task, or is found.
        let mut kept = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shared.closed.load(Ordering::Acquire) {
            return;
        }
        if self.shared.running.swap(true, Ordering::AcqRel) {
            return;
        }
        // Before this waiter looks how long to pause.
        self.shared.opening.store(true, Ordering::Release);
        let end = End(self.shared.clone());
        let task = tokio::spawn(async move { end.0.listen().await });
        *kept = Some(task.abort_handle());
    }

    fn is_opening(&self) -> bool {
        self.shared.opening.load(Ordering::Acquire)
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn channel(&self) -> &str {
        &self.shared.channel
    }

    pub(super) fn bell(&self) -> Option<i64> {
        *self.shared.bell()
    }

    pub(super) fn holds(&self) -> &ListeningHolds {
        &self.shared.holds
    }

    pub(crate) fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        let mut kept = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = kept.take() {
            task.abort();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

/// However the task ends, also with its runtime: whoever waits or listens makes another. Some may have come after the task saw that nobody was left, when
/// it still seemed to run: they are told here, or they would hear nothing.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        *self.0.bell() = None;
        self.0.opening.store(false, Ordering::Release);
        self.0.running.store(false, Ordering::Release);
        self.0.inbox.wake_all();
        self.0.holds.call_all();
    }
}

impl Shared {
    /// A message is a grant for one who waits, or says to one who holds that somebody waits.
    fn deliver(&self, payload: &str) {
        let Some(attempt) = payload.strip_prefix('?') else {
            return self.inbox.deliver(payload);
        };
        if let Ok(attempt) = Uuid::try_parse(attempt) {
            self.holds.call(AttemptId::from(attempt));
        }
    }

    fn bell(&self) -> MutexGuard<'_, Option<i64>> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens as long as the connection lives, and makes another one as long as anybody waits.
    async fn listen(&self) {
        let mut pause = RECONNECT.0;
        loop {
            self.opening.store(true, Ordering::Release);
            let opened = Ear::open(&self.link, &self.channel).await;
            self.opening.store(false, Ordering::Release);
            match opened {
                Ok(mut ear) => {
                    let since = Instant::now();
                    *self.bell() = Some(ear.bell);
                    // What was told before is lost, and nobody knew the bell: each looks once, and says it.
                    self.inbox.wake_all();
                    self.holds.call_all();
                    loop {
                        tokio::select! {
                            heard = ear.hear() => match heard {
                                Ok(message) => self.deliver(&message),
                                Err(trouble) => {
                                    let error = trouble.message();
                                    tracing::debug!(error, "the connection that listens has ended");
                                    break;
                                }
                            },
                            () = self.moved.notified() => {
                                // It may have been meant for the one before.
                                if self.bell().is_none() {
                                    tracing::debug!("the connection that listens is at another server than the locks");
                                    break;
                                }
                            }
                        }
                    }
                    *self.bell() = None;
                    self.inbox.wake_all();
                    if since.elapsed() >= LASTED {
                        pause = RECONNECT.0;
                    }
                }
                Err(trouble) => {
                    tracing::debug!(error = trouble.message(), "no connection to listen with");
                    // They ask more often now.
                    self.inbox.wake_all();
                }
            }
            if self.inbox.locked().is_empty() && self.holds.is_empty() {
                return;
            }
            // Not all clients of a server in step.
            tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
            pause = (pause * 2).min(RECONNECT.1);
        }
    }
}

/// The last question that was answered "others hold it".
#[derive(Debug, Clone, Copy)]
struct Asked {
    sent: Moment,
    last_token: i64,
}

impl LeaseLocks {
    /// Waits in the queue until the lock is ours or the deadline has passed.
    pub(crate) async fn wait(&self, request: &Request) -> Result<Outcome> {
        let place = self.listener.enter(request.attempt());
        let mut asked: Option<Asked> = None;
        let mut stray = false;
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut opening = Backoff::new(OPENING_PAUSES.0, OPENING_PAUSES.1);
        loop {
            let wait = self.listener.wait();
            let mut heard = matches!(wait, Wait::Listening(..));
            let sent = request.now();
            let hint = match self.ask(request, wait).await {
                Ok(Reply::Held(lease)) => return Ok(held(lease, stray)),
                Ok(Reply::Others {
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
                // What was answered or sent before has left a place in the queue, which may still be given the lock.
                Err(trouble) if stray || asked.is_some() => return Err(trouble.in_doubt().into()),
                Err(trouble) => return Err(trouble.into()),
            };
            self.listener.begin();
            if let Some(lease) = accept(request, &place, asked) {
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
                () = place.waiter.woken.notified() => {
                    if let Some(lease) = accept(request, &place, asked) {
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
        if self.undo(name, attempt, memory).await.is_err() {
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
fn accept(request: &Request, place: &Place<'_>, asked: Option<Asked>) -> Option<Lease> {
    let asked = asked?;
    let token = place.waiter.granted.load(Ordering::Acquire);
    let recent = request.now().since(asked.sent) <= request.lease() / 4;
    (token > asked.last_token && recent)
        .then(|| fence::token(token).ok())
        .flatten()
        .map(|token| Lease::new(request, asked.sent).with_token(token))
}
