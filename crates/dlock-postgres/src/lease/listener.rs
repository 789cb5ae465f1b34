//! The connection that listens, one of each client, and where its messages go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::backend::AttemptId;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::acquire::Wait;
use super::wanted::ListeningHolds;
use crate::connect::{Ear, SharedConnections};

/// Pauses of the listener between two tries to connect.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A connection that has listened for so long was a good one: the next one is made at once. One that is at the wrong place is found out
/// sooner, and must not be made again and again without a pause.
const LASTED: Duration = Duration::from_secs(10);

/// Where messages for the waiters of one client arrive.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<BTreeMap<AttemptId, Arc<GrantSignal>>>,
}

#[derive(Debug, Default)]
struct GrantSignal {
    woken: Notify,
    /// The number of a grant that needs no confirmation; 0 when there is none.
    granted: AtomicI64,
}

impl Inbox {
    fn locked(&self) -> MutexGuard<'_, BTreeMap<AttemptId, Arc<GrantSignal>>> {
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
pub(super) struct InboxEntry<'a> {
    inbox: &'a Inbox,
    attempt: AttemptId,
    signal: Arc<GrantSignal>,
}

impl InboxEntry<'_> {
    /// Resolves when a message has come, at once if one has come since the last time; or it may be missed.
    pub(super) async fn called(&self) {
        self.signal.woken.notified().await;
    }

    /// The token of a grant that needs no confirmation; 0 when there is none.
    pub(super) fn granted(&self) -> i64 {
        self.signal.granted.load(Ordering::Acquire)
    }
}

impl Drop for InboxEntry<'_> {
    fn drop(&mut self) {
        self.inbox.locked().remove(&self.attempt);
    }
}

/// The connection that listens, made when somebody waits for the first time.
#[derive(Debug)]
pub(crate) struct Listener {
    state: Arc<ListenerState>,
    /// Off behind a pooler, or by the user's wish.
    on: bool,
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct ListenerState {
    connections: Arc<SharedConnections>,
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
    pub(crate) fn new(connections: Arc<SharedConnections>, on: bool) -> Self {
        Self {
            state: Arc::new(ListenerState {
                connections,
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

    pub(super) fn enter(&self, attempt: AttemptId) -> InboxEntry<'_> {
        let inbox = &self.state.inbox;
        let signal = Arc::<GrantSignal>::default();
        inbox.locked().insert(attempt, signal.clone());
        InboxEntry {
            inbox,
            attempt,
            signal,
        }
    }

    /// How to wait now.
    pub(super) fn wait(&self) -> Wait<'_> {
        match *self.state.bell() {
            Some(bell) => Wait::Listening(&self.state.channel, bell),
            None => Wait::Asking,
        }
    }

    /// The server that was asked does not know this bell: after a switch-over the old primary may live on, with the connection that listens.
    pub(super) fn is_deaf(&self, bell: i64) {
        let mut kept = self.state.bell();
        // Not if there is another by now.
        if *kept == Some(bell) {
            *kept = None;
            self.state.moved.notify_one();
        }
    }

    /// Begins to listen, if nobody does: the runtime of an earlier one may have ended.
    pub(super) fn begin(&self) {
        if !self.on {
            return;
        }
        // A close that comes now finds the task, or is found.
        let mut kept = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state.closed.load(Ordering::Acquire) {
            return;
        }
        if self.state.running.swap(true, Ordering::AcqRel) {
            return;
        }
        // Before this waiter looks how long to pause.
        self.state.opening.store(true, Ordering::Release);
        let end = End(self.state.clone());
        let task = tokio::spawn(async move { end.0.listen().await });
        *kept = Some(task.abort_handle());
    }

    pub(super) fn is_opening(&self) -> bool {
        self.state.opening.load(Ordering::Acquire)
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn channel(&self) -> &str {
        &self.state.channel
    }

    pub(super) fn bell(&self) -> Option<i64> {
        *self.state.bell()
    }

    pub(super) fn holds(&self) -> &ListeningHolds {
        &self.state.holds
    }

    pub(crate) fn close(&self) {
        self.state.closed.store(true, Ordering::Release);
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
struct End(Arc<ListenerState>);

impl Drop for End {
    fn drop(&mut self) {
        *self.0.bell() = None;
        self.0.opening.store(false, Ordering::Release);
        self.0.running.store(false, Ordering::Release);
        self.0.inbox.wake_all();
        self.0.holds.call_all();
    }
}

impl ListenerState {
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
            let opened = Ear::open(&self.connections, &self.channel).await;
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
