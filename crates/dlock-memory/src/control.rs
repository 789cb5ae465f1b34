use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;

use crate::store::Store;

/// Makes one client of a memory store misbehave, for tests.
///
/// ```
/// use dlock_memory::MemoryBackend;
///
/// let backend = MemoryBackend::new();
/// let control = backend.control();
/// control.cut(); // every call of this client fails as unreachable
/// control.heal();
/// ```
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) link: Arc<Link>,
    pub(crate) store: Arc<Store>,
}

/// How long a client that waits at the store takes to find out that its connection fell silent.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// The imagined line between one client and the store.
#[derive(Debug)]
pub(crate) struct Link {
    state: Mutex<State>,
    /// It wakes in the order of coming; a `watch` channel does so in one that changes from run to run, and then no simulation could be replayed.
    changed: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    line: Line,
    request_delay: Duration,
    reply_delay: Duration,
    /// Replies to let through before one is lost; `None`: none is lost.
    lose_after: Option<u32>,
    /// How often the connections of that time fell silent. A call that began before the last time gets no answer.
    silenced: u64,
    denied: bool,
}

/// A call that is under way: through which of the imagined connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    silenced: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Line {
    #[default]
    Up,
    Cut,
    Hung,
}

impl Control {
    /// From now on every call of this client fails as unreachable, and nothing reaches the store.
    pub fn cut(&self) {
        self.link.change(|state| state.line = Line::Cut);
    }

    /// From now on no call of this client gets an answer, and nothing reaches the store: a half-open connection.
    pub fn hang(&self) {
        self.link.change(|state| state.line = Line::Hung);
    }

    /// The calls that are under way now get no answer any more, and nobody is told; later ones work: what a connection does that fell
    /// silent while new ones can be made.
    pub fn half_open(&self) {
        self.link.change(|state| state.silenced += 1);
    }

    /// From now on the store refuses every call of this client, as if its rights had been taken away.
    pub fn deny(&self) {
        self.link.change(|state| state.denied = true);
    }

    /// Ends [`cut`](Control::cut), [`hang`](Control::hang), [`deny`](Control::deny), delays and lost replies.
    pub fn heal(&self) {
        self.link.change(|state| {
            *state = State {
                silenced: state.silenced,
                ..State::default()
            };
        });
    }

    /// Requests take this long to reach the store.
    pub fn delay_requests(&self, delay: Duration) {
        self.link.change(|state| state.request_delay = delay);
    }

    /// Replies take this long to come back; the store has done the work by then.
    pub fn delay_replies(&self, delay: Duration) {
        self.link.change(|state| state.reply_delay = delay);
    }

    /// Loses the `n`-th reply from now (1 is the next): the store does the work, and the caller gets an error.
    pub fn lose_reply(&self, n: u32) {
        self.link
            .change(|state| state.lose_after = Some(n.saturating_sub(1)));
    }

    /// Ends every hold of `name` as if its lease had passed. Its holder is not told.
    pub fn expire(&self, name: &str) {
        self.store.expire(name);
    }

    /// Takes the lock away from whoever holds it, for tests of what a program does when it loses one; `true` when somebody did.
    ///
    /// The holder is told as with every store: by its next renewal, a third of its lease later, or when it releases. Waiters get the
    /// lock at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_memory::Error> {
    /// use std::time::Duration;
    /// use dlock_memory::{Locks, LossReason, MemoryBackend, Settings};
    ///
    /// let backend = MemoryBackend::new();
    /// let control = backend.control();
    /// let settings = Settings::new().lease(Duration::from_millis(300)); // so the test waits for a tenth of a second
    /// let locks = Locks::builder(backend).settings(settings).build()?;
    ///
    /// let job = locks.mutex("job")?;
    /// let outcome = job.run(async |_| {
    ///     assert!(control.lose("job"));
    ///     std::future::pending::<()>().await // the work is cancelled when the loss is told
    /// });
    /// assert_eq!(outcome.await.expect_err("lost").kind(), dlock_memory::ErrorKind::Lost);
    ///
    /// let guard = job.lock().await?;
    /// assert!(control.lose("job"));
    /// assert_eq!(guard.lost().await, LossReason::Gone);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lose(&self, name: &str) -> bool {
        self.store.lose(name)
    }

    /// How many locks the store knows anything about.
    pub fn names(&self) -> usize {
        self.store.names()
    }
}

impl Link {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a state.
    async fn until(&self, is_so: impl Fn(&State) -> bool) -> State {
        loop {
            // Made before the look, so that no change is missed in between.
            let changed = self.changed.notified();
            let state = *self.state();
            if is_so(&state) {
                return state;
            }
            changed.await;
        }
    }

    /// The way to the store.
    pub(crate) async fn send(&self, store: &Store) -> Result<Call> {
        let delay = self.state().request_delay;
        store.sleep(delay).await;
        self.up().await?;
        let state = *self.state();
        if state.denied {
            return Err(Error::new(
                ErrorKind::Denied,
                "this client has no rights at the store (a fault that a test asked for): heal it",
            ));
        }
        Ok(Call {
            silenced: state.silenced,
        })
    }

    /// The way back.
    pub(crate) async fn reply(&self, store: &Store, call: Call) -> Result<()> {
        let delay = self.state().reply_delay;
        store.sleep(delay).await;
        self.heard(call).await;
        let lost = match &mut self.state().lose_after {
            Some(0) => true,
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        };
        if lost {
            self.state().lose_after = None;
            return Err(Error::new(
                ErrorKind::Unreachable,
                "the connection broke before the answer came (a fault that a test asked for)",
            ));
        }
        self.up().await
    }

    /// Waits while the line hangs; an error when it is cut.
    async fn up(&self) -> Result<()> {
        let line = self.until(|state| state.line != Line::Hung).await.line;
        match line {
            Line::Up => Ok(()),
            _ => Err(cut_off()),
        }
    }

    /// Resolves with an error when the line is cut, for those who wait at the store.
    pub(crate) async fn broken(&self) -> Error {
        self.until(|state| state.line == Line::Cut).await;
        cut_off()
    }

    /// Resolves with an error some time after the connection of this call fell silent, as a heartbeat would find out.
    pub(crate) async fn silent(&self, store: &Store, call: Call) -> Error {
        self.until(|state| state.silenced != call.silenced).await;
        store.sleep(HEARTBEAT).await;
        Error::new(
            ErrorKind::Unreachable,
            "the connection fell silent (a fault that a test asked for): ask again",
        )
    }

    /// Resolves when the line does not hang; never for a call whose connection fell silent.
    pub(crate) async fn not_hung(&self, call: Call) {
        self.until(|state| state.line != Line::Hung).await;
        self.heard(call).await;
    }

    /// Never resolves for a call whose connection fell silent.
    async fn heard(&self, call: Call) {
        if self.state().silenced != call.silenced {
            std::future::pending().await
        }
    }
}

fn cut_off() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "this client is cut off from the store (a fault that a test asked for): heal it",
    )
}
