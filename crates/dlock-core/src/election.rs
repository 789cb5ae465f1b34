use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::Stream;
use futures::stream::unfold;

use crate::acquire::Ask;
use crate::settings::check_label;
use crate::{FencingToken, Guard, Result};

/// How often [`Election::observe`] looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Chooses one leader among many: a thin layer on the exclusive lock.
///
/// Made by [`Locks::election`](crate::Locks::election). Candidates campaign with a value that everybody can read, such as their address.
///
/// ```
/// # use std::sync::Arc;
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(Arc::new(dlock_memory::MemoryBackend::new()))?;
/// let election = locks.election("scheduler")?;
/// let leadership = election.campaign("10.0.0.7:8080").await?; // waits until elected
/// assert_eq!(election.leader().await?.unwrap().value, "10.0.0.7:8080");
/// // ... lead, with leadership.token(), until leadership.lost() resolves ...
/// let _ = leadership.release().await?; // resign
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Election {
    ask: Ask,
    look_every: Duration,
}

/// The leader as everybody sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value the leader campaigned with.
    pub value: String,
    /// The leader's fencing token: a later leader's is higher.
    pub token: Option<FencingToken>,
    /// Since when, by the store's clock where it has one.
    pub since: Option<SystemTime>,
    owner: String,
}

impl Election {
    pub(crate) fn new(ask: Ask) -> Self {
        Self {
            ask,
            look_every: LOOK_EVERY,
        }
    }

    /// Sets how often [`observe`](Election::observe) looks. Default: every second.
    #[must_use]
    pub fn look_every(mut self, interval: Duration) -> Self {
        self.look_every = interval.max(Duration::from_millis(1));
        self
    }

    /// Waits until elected. The guard is the leadership: it has the token and the loss signal, and releasing it resigns.
    ///
    /// # Errors
    ///
    /// When the value is longer than 1024 bytes or has control characters, and as for
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the candidate.
    pub async fn campaign(&self, value: impl Into<Arc<str>>) -> Result<Guard> {
        let value = value.into();
        check_label(&value)?;
        self.ask.wait_as(&value).await
    }

    /// The leader now; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let info = self.ask.inspect().await?;
        Ok(info.holders.into_iter().next().map(|holder| Leader {
            value: holder.label,
            token: holder.token,
            since: holder.since,
            owner: holder.owner,
        }))
    }

    /// The leader now, and then every change of it. It looks at intervals, so a reign shorter than one can be missed.
    ///
    /// An error does not end the stream: it looks again.
    pub fn observe(&self) -> impl Stream<Item = Result<Option<Leader>>> + Send + use<> {
        let election = self.clone();
        let clock = self.ask.client.clock.clone();
        unfold(None, move |seen: Option<Option<Leader>>| {
            let election = election.clone();
            let clock = clock.clone();
            async move {
                let mut first = seen.is_none();
                loop {
                    if !first {
                        clock.sleep_until(clock.now() + election.look_every).await;
                    }
                    first = false;
                    match election.leader().await {
                        Ok(now) if seen.as_ref() == Some(&now) => {}
                        Ok(now) => return Some((Ok(now.clone()), Some(now))),
                        // Remembered as "something else", so that the next good look is told.
                        Err(error) => {
                            let seen = seen.or(Some(None));
                            return Some((Err(error), seen));
                        }
                    }
                }
            }
        })
    }

    /// The election's name.
    pub fn name(&self) -> &crate::Name {
        &self.ask.name
    }
}
