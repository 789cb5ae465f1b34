use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::Stream;
use futures::stream::unfold;

use crate::engine::spec::{LockSpec, Patience};
use crate::lock::settings::check_label;
use crate::runtime::in_runtime;
use crate::{FencingToken, Guard, HolderInfo, Mode, Result};

/// How often [`Election::observe`] looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Chooses one leader among many: a thin layer on the exclusive lock.
///
/// Made by [`Locks::election`](crate::Locks::election). Candidates campaign with a value that everybody can read, such as their address.
///
/// ```
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
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
    spec: LockSpec,
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
    pub(crate) fn new(spec: LockSpec) -> Self {
        Self {
            spec,
            look_every: LOOK_EVERY,
        }
    }

    /// Sets how often [`observe`](Election::observe) looks. Default: every second.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let election = locks.election("scheduler")?.look_every(Duration::from_millis(200));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn look_every(mut self, interval: Duration) -> Self {
        self.look_every = interval.max(Duration::from_millis(1));
        self
    }

    /// Waits until elected. The guard is the leadership: it has the token and the loss signal, and releasing it resigns.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn lead(token: Option<dlock_core::FencingToken>) {}
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// tokio::select! {
    ///     () = lead(leadership.token()) => {}
    ///     reason = leadership.lost() => println!("deposed: {reason}"), // stop at once, and campaign again
    /// }
    /// leadership.release().await?; // resigns
    /// # Ok(())
    /// # }
    /// ```
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
        self.spec.wait_as(&value).await
    }

    /// Becomes the leader if there is none; `None` when there is one.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.try_campaign("10.0.0.7:8080").await?;
    /// assert!(leadership.is_some());
    /// assert!(election.try_campaign("10.0.0.8:8080").await?.is_none()); // there is a leader: follow it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`campaign`](Election::campaign), but for waiting.
    pub async fn try_campaign(&self, value: impl Into<Arc<str>>) -> Result<Option<Guard>> {
        self.campaign_with(Patience::Try, value.into()).await
    }

    /// Waits at most `limit` to be elected; `None` when another still led then.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let second = election.campaign_within(Duration::from_millis(10), "10.0.0.8:8080").await?;
    /// assert!(second.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`campaign`](Election::campaign).
    pub async fn campaign_within(
        &self,
        limit: Duration,
        value: impl Into<Arc<str>>,
    ) -> Result<Option<Guard>> {
        self.campaign_with(Patience::within(limit), value.into())
            .await
    }

    async fn campaign_with(&self, patience: Patience, value: Arc<str>) -> Result<Option<Guard>> {
        check_label(&value)?;
        self.spec.acquire(patience, &value).await
    }

    /// The leader now; `None` when there is none. Who holds the name in another way, as a reader or with a permit, does not lead.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let election = locks.election("scheduler")?;
    /// assert!(election.leader().await?.is_none());
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = election.leader().await?.expect("one was elected");
    /// assert_eq!(leader.value, "10.0.0.7:8080");
    /// assert_eq!(leader.token, leadership.token());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let info = self.spec.inspect().await?;
        let alone = |holder: &HolderInfo| holder.mode == Mode::Exclusive;
        Ok(info.holders.into_iter().find(alone).map(|holder| Leader {
            value: holder.label,
            token: holder.token,
            since: holder.since,
            owner: holder.owner,
        }))
    }

    /// The leader now, and then every change of it.
    ///
    /// Where the store can tell of changes ([`Backend::changed`](crate::backend::Backend::changed)), one is seen at once; elsewhere it
    /// looks at intervals, so a reign shorter than one can be missed.
    ///
    /// An error does not end the stream: it looks again, and tells what it sees then.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # use futures::StreamExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let election = locks.election("scheduler")?;
    /// let mut leaders = std::pin::pin!(election.observe());
    /// assert_eq!(leaders.next().await.unwrap()?, None); // the state of now comes first
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let leader = leaders.next().await.unwrap()?.expect("a leader");
    /// println!("send the work to {}", leader.value);
    /// # assert_eq!(leader.value, "10.0.0.7:8080");
    /// # Ok(())
    /// # }
    /// ```
    pub fn observe(&self) -> impl Stream<Item = Result<Option<Leader>>> + Send + use<> {
        let view = View {
            election: self.clone(),
            told: None,
            first: true,
        };
        unfold(view, |mut view| async move {
            let news = view.next().await;
            Some((news, view))
        })
    }

    /// The election's name.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// assert_eq!(locks.election("scheduler")?.name().as_str(), "scheduler");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &crate::Name {
        &self.spec.name
    }
}

/// What one observer has been told.
struct View {
    election: Election,
    /// `None`: nothing yet, or an error last.
    told: Option<Option<Leader>>,
    first: bool,
}

impl View {
    async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            in_runtime()?;
            if !std::mem::take(&mut self.first) {
                self.wait_for_change().await;
            }
            match self.election.leader().await {
                Ok(now) if self.told.as_ref() == Some(&now) => {}
                Ok(now) => {
                    self.told = Some(now.clone());
                    return Ok(now);
                }
                Err(error) => {
                    self.told = None;
                    return Err(error);
                }
            }
        }
    }

    /// Until the store tells of a change, or it is time to look.
    async fn wait_for_change(&self) {
        let Election { spec, look_every } = &self.election;
        let clock = &spec.client.clock;
        let seen = self.told.as_ref().and_then(|leader| leader.as_ref());
        let seen = seen.map(|leader| leader.owner.as_str());
        tokio::select! {
            biased;
            () = spec.client.backend.changed(&spec.name, seen) => {}
            () = clock.sleep_until(clock.now() + *look_every) => {}
        }
    }
}
