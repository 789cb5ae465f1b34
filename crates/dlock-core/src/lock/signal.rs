use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures::future::select_all;

use crate::engine::client::Client;
use crate::engine::entry::{Ending, Entry};
use crate::{Clock, LossReason};

/// Tells when a hold is lost, apart from the guard. Clones tell the same. It keeps neither the lock nor the client.
///
/// ```
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// # async fn index(part: u32) {}
/// let guard = locks.mutex("index")?.lock().await?;
/// let mut workers = Vec::new();
/// for part in 0..4 {
///     let signal = guard.loss_signal(); // each worker has one, and the guard stays here
///     workers.push(tokio::spawn(async move {
///         tokio::select! {
///             () = index(part) => true,
///             _reason = signal.reason() => false,
///         }
///     }));
/// }
/// for worker in workers {
///     assert!(worker.await.unwrap());
/// }
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LossSignal {
    pub(super) watched: Vec<Watched>,
}

/// One hold that is watched.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) client: Weak<Client>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entry: Arc<Entry>,
    pub(super) stay: u32,
    pub(super) left: Option<Arc<AtomicBool>>,
}

impl Watched {
    /// A reader that joined may have left a hold that goes on without it.
    fn ending(&self) -> Ending {
        let has_left = |left: &Arc<AtomicBool>| left.load(Ordering::Acquire);
        match &self.left {
            Some(left) if has_left(left) => Ending::LetGo,
            _ => self.entry.ending_of_stay(self.stay),
        }
    }

    /// Resolves when the hold is lost, with the reason, or when it was released.
    async fn lost(&self) -> Option<LossReason> {
        if let Some(client) = self.client.upgrade() {
            client.ensure_rooms();
        }
        loop {
            let clock = self.clock.as_ref();
            self.entry.ended(|| self.ending(), clock).await;
            match self.ending() {
                Ending::Lost(reason) => return Some(reason),
                Ending::LetGo => return None,
                Ending::NotYet => {}
            }
            // Its time is up, and no room got to run; or it was renewed at the last moment.
            match self.client.upgrade() {
                Some(client) => client.lose_to_the_clock(&self.entry),
                None => return Some(LossReason::Expired),
            }
        }
    }
}

impl LossSignal {
    /// Resolves with the reason when the hold is lost, or with `None` once it was released.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("job")?.lock().await?;
    /// let signal = guard.loss_signal();
    /// guard.release().await?;
    /// assert_eq!(signal.wait().await, None); // a release is no loss, and ends the wait
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self) -> Option<LossReason> {
        let mut left: Vec<_> = self
            .watched
            .iter()
            .map(|watched| Box::pin(watched.lost()))
            .collect();
        while !left.is_empty() {
            let (reason, _, others) = select_all(left).await;
            if reason.is_some() {
                return reason;
            }
            left = others;
        }
        None
    }

    /// Resolves with the reason when the hold is lost; never once it was released ([C9](crate::contract#c9)).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, LossReason, Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let settings = Settings::new().max_hold(Duration::from_millis(50));
    /// let guard = locks.with(settings)?.mutex("job")?.lock().await?;
    /// let signal = guard.loss_signal();
    /// std::mem::forget(guard); // by mistake: nobody renews or releases it any more
    /// assert_eq!(signal.reason().await, LossReason::MaxHold);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reason(&self) -> LossReason {
        match self.wait().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.watched.iter().map(Watched::ending))
            .finish()
    }
}
