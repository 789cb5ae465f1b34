use std::sync::Arc;
use std::time::Duration;

use crate::link::{ClientLink, LinkState};
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
    pub(crate) link: Arc<ClientLink>,
    pub(crate) store: Arc<Store>,
}

impl Control {
    /// From now on every call of this client fails as unreachable, and nothing reaches the store.
    pub fn cut(&self) {
        self.link.change(|faults| faults.state = LinkState::Cut);
    }

    /// From now on no call of this client gets an answer, and nothing reaches the store: a half-open connection.
    pub fn hang(&self) {
        self.link.change(|faults| faults.state = LinkState::Hung);
    }

    /// The calls that are under way now get no answer any more, and nobody is told; later ones work: what a connection does that fell
    /// silent while new ones can be made.
    pub fn half_open(&self) {
        self.link.change(|faults| faults.silenced += 1);
    }

    /// From now on the store refuses every call of this client, as if its rights had been taken away.
    pub fn deny(&self) {
        self.link.change(|faults| faults.denied = true);
    }

    /// Ends [`cut`](Control::cut), [`hang`](Control::hang), [`deny`](Control::deny), delays and lost replies.
    pub fn heal(&self) {
        self.link.heal();
    }

    /// Requests take this long to reach the store.
    pub fn delay_requests(&self, delay: Duration) {
        self.link.change(|faults| faults.request_delay = delay);
    }

    /// Replies take this long to come back; the store has done the work by then.
    pub fn delay_replies(&self, delay: Duration) {
        self.link.change(|faults| faults.reply_delay = delay);
    }

    /// Loses the `n`-th reply from now (1 is the next): the store does the work, and the caller gets an error.
    pub fn lose_reply(&self, n: u32) {
        self.link
            .change(|faults| faults.lose_after = Some(n.saturating_sub(1)));
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
