mod resolved;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::resolved::{
    DEFAULT_LEASE, DEFAULT_TRIP_TIMEOUT, ResolvedSettings, check_label,
};

/// In which order the tasks of one client and those of other clients get a lock.
///
/// ```
/// use dlock_core::{Order, Settings};
///
/// // A ticket sale: whoever came first is served first, on whatever machine.
/// let settings = Settings::new().order(Order::Strict);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Order {
    /// Clients take turns; the tasks of one client are first come, first served among themselves, and only the first of them
    /// talks to the store. The default: cheap for the store, however many tasks wait.
    #[default]
    ByClient,
    /// Every waiter has its own place in the store's queue, so the order is strict across all clients. Costs the store one
    /// queue entry per waiting task.
    Strict,
}

/// How locks are taken and kept. Every setting has a default that is good for most.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::Settings;
///
/// let settings = Settings::new().lease(Duration::from_secs(10)).max_hold(Duration::from_secs(3600)).label("nightly job");
/// ```
///
/// What is not set is left as it is: at its default for a new client, and as the client has it for
/// [`Locks::with`](crate::Locks::with).
///
/// # How the times nest
///
/// ```text
/// lease         |─────────────────────────────────────────|  the store keeps the hold so long without a renewal
/// validity      |───────────────────────────────────────|    less 1 % and 2 ms: is_held() and lost() go by it
/// renew_every   |─────────────|─────────────|                a third of the lease
/// one renewal                 |··|                           at most trip_timeout, and at most renew_every
/// trip_timeout  |──|                                         one question and its answer, whatever it takes
/// answer_timeout|─|                                          of a backend's URL: after it, the same question on another connection
/// retry_unreachable_for |─────|                              how long a waiting acquire retries a store in trouble
/// wait_at_most  |──────────────────────────────── ...        how long lock() and run() wait for others
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "settings take effect when they are given to a client"]
pub struct Settings {
    lease: Option<Duration>,
    renew_every: Option<Duration>,
    renewal: Option<bool>,
    max_hold: Option<Duration>,
    wait_at_most: Option<Duration>,
    trip_timeout: Option<Duration>,
    retry_unreachable_for: Option<Duration>,
    warn_after: Option<Duration>,
    order: Option<Order>,
    local_turns: Option<u32>,
    local_time: Option<Duration>,
    linger: Option<Duration>,
    readers_join: Option<bool>,
    label: Option<Arc<str>>,
    group: Option<Arc<str>>,
}

impl Settings {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store keeps a hold without a renewal. Default: 30 s.
    ///
    /// Shorter frees the lock sooner after a crash, but a short outage of the store then loses it. From the store's shortest
    /// lease (20 ms at least) to 7 days. A session store takes its time at connect, so there it must be equal or left out.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().lease(Duration::from_secs(10)); // a crash keeps the lock for ten seconds at most
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How often the lease is renewed in the background. Default: a third of the lease.
    ///
    /// More often survives more failed renewals, at the price of more trips. At least 5 ms, at most half of the lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// // Five renewals in a lease: four may fail.
    /// let settings = Settings::new().lease(Duration::from_secs(10)).renew_every(Duration::from_secs(2));
    /// ```
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = Some(interval);
        self
    }

    /// Whether holds are renewed at all. Default: yes.
    ///
    /// Without renewal a hold is lost when its lease ends, however alive its holder is.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// // At most five seconds, and whoever hangs for longer has lost it.
    /// let settings = Settings::new().lease(Duration::from_secs(5)).renewal(false);
    /// ```
    pub fn renewal(mut self, on: bool) -> Self {
        self.renewal = Some(on);
        self
    }

    /// The longest time one hold may last, also when its guard was forgotten ([C20](crate::contract#c20)). Default: no limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().max_hold(Duration::from_secs(3600)); // a job of an hour is stuck
    /// ```
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// How long calls that promise a guard (`lock`, `run`) wait before they fail with
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy). Default: for ever.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{ErrorKind, Locks, Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let patient = locks.with(Settings::new().wait_at_most(Duration::from_millis(10)))?;
    /// let guard = patient.mutex("stock:42")?.lock().await?;
    /// let error = patient.mutex("stock:42")?.lock().await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait_at_most = Some(limit);
        self
    }

    /// The longest time a single trip to the store may take before it counts as failed. Default: 5 s.
    ///
    /// `try_lock`, renewals, releases and queries against a store that hangs end after this time. At least 1 ms.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().trip_timeout(Duration::from_secs(1)); // the store is in the next room
    /// ```
    pub fn trip_timeout(mut self, limit: Duration) -> Self {
        self.trip_timeout = Some(limit);
        self
    }

    /// How long waiting acquires put up with a store that cannot be reached before they return the error. Default: 10 s.
    ///
    /// It counts from the first failure, for all tasks of a client that wait for the same name: they end together, to within a trip,
    /// not one after the other. It ends with the first answer. Zero returns the first error; `try_lock` always does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// // A web handler: rather an error at once than a page that hangs.
    /// let settings = Settings::new().retry_unreachable_for(Duration::ZERO);
    /// ```
    pub fn retry_unreachable_for(mut self, patience: Duration) -> Self {
        self.retry_unreachable_for = Some(patience);
        self
    }

    /// In which order waiters get a lock. Default: [`Order::ByClient`].
    ///
    /// [`Order`] has an example.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// With [`Order::ByClient`]: how many times in a row tasks of this client take a lock from each other before other clients get a
    /// chance. At least 1.
    ///
    /// Where a grant of the store brings tokens for several turns, tasks with the same settings pass an exclusive hold on without a
    /// trip ([C21](crate::contract#c21)): 64 times by default, and for [`local_time`](Settings::local_time) at most; 1 means that every turn is
    /// asked of the store. On a store without a queue they pause after so many turns, 16 by default, unless the store can
    /// tell that nobody else waits.
    ///
    /// ```
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().local_turns(1); // ask the store for every turn
    /// ```
    pub fn local_turns(mut self, turns: u32) -> Self {
        self.local_turns = Some(turns);
        self
    }

    /// How long, from a grant of the store on, tasks of this client pass a hold on to each other without a trip; then it goes back
    /// to the store, where others may wait. Default: as long as a hand-over through the store would take, which is twice the time of
    /// this client's trips of late (a question and its answer, not the wait for a lock), from 200 µs to 10 ms. Zero: never.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// // Short waits of others matter more than what this client gets done.
    /// let settings = Settings::new().local_time(Duration::from_micros(500));
    /// ```
    pub fn local_time(mut self, limit: Duration) -> Self {
        self.local_time = Some(limit);
        self
    }

    /// How long this client keeps an exclusive lock after its release when no task of it waits, so that its next acquire costs no trip.
    /// Default: zero, which gives it back at once.
    ///
    /// The lock *lingers*: in the store it is held, and `inspect` shows it so, with this client's label, while no task is in. It goes
    /// back when somebody of another client waits and the store tells (see [`Capabilities::wanted`](crate::backend::Capabilities::wanted); where it cannot, others wait for
    /// the whole time, which then counts from the first release of a grant, however often the lock is used meanwhile), when the time has passed, when a local task wants it in another way, at [`close`](crate::Locks::close), and
    /// with its tokens: a grant has [`local_turns`](Settings::local_turns) of them. A process that dies meanwhile leaves it until
    /// its lease or session is over, as for any hold, and a program that ends should call `close`: until then, and for this time at the
    /// most, a lingering lock keeps its client alive and renews.
    ///
    /// A store whose grants bring one token cannot ([`Capability::PassOn`](crate::Capability::PassOn)), and neither can
    /// [`Order::Strict`]. At most 7 days. Choose about the time between two uses of the same lock, and much less than others may wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let lingering = locks.with(Settings::new().linger(Duration::from_millis(200)))?;
    /// let shard = lingering.mutex("shard:7")?;
    /// for _ in 0..10 {
    ///     shard.run(async |_| { /* a short step */ }).await?;
    /// }
    /// assert!(lingering.stats().acquired < 10); // most of the ten cost no trip
    /// lingering.close().await?; // gives it back
    /// # Ok(())
    /// # }
    /// ```
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// Whether tasks of this client that want to read join a read hold that the client has, without a trip. Default: no, each asks the
    /// store.
    ///
    /// Readers with the same settings and without an [`Owner`](crate::Owner) then share one hold: its lease, its loss, and its **token**,
    /// which is why it has to be asked for. A token of its own would be below one that a reader of another client got meanwhile, and a
    /// resource that has seen that one would refuse a valid holder. The hold goes back to the store with the last of them. Others are
    /// kept waiting no longer than by a hold that is passed on ([C21](crate::contract#c21)): nobody joins once [`local_time`](Settings::local_time) has
    /// passed since the grant, after [`local_turns`](Settings::local_turns) readers (256 by default), or when a writer of this client is next.
    ///
    /// It goes neither with [`Order::Strict`] or `local_turns(1)`, which ask the store for everybody, nor with
    /// [`max_hold`](Settings::max_hold), which ends the hold of one guard.
    ///
    /// ```
    /// # use dlock_core::{Locks, Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let catalogue = locks.with(Settings::new().readers_join(true))?.rw_lock("catalogue")?;
    /// let first = catalogue.read().await?;
    /// let second = catalogue.read().await?; // without a trip
    /// assert_eq!(first.token(), second.token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn readers_join(mut self, on: bool) -> Self {
        self.readers_join = Some(on);
        self
    }

    /// Who holds, for people to read with `inspect`. Default: program, host and process id. At most 1024 bytes, no control
    /// characters, nothing secret: everybody who can read the store can read it.
    ///
    /// ```
    /// # use dlock_core::{Locks, Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let locks = locks.with(Settings::new().label("nightly job on db7"))?;
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// assert_eq!(locks.inspect("nightly").await?.holders[0].label, "nightly job on db7");
    /// # Ok(())
    /// # }
    /// ```
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// After how long a wait is told in the log, with who holds the lock, or that this very client does: a task that waits for
    /// itself is found. Default: 60 s. [`Duration::MAX`] never.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().warn_after(Duration::from_secs(5)); // nobody should wait that long here
    /// ```
    pub fn warn_after(mut self, limit: Duration) -> Self {
        self.warn_after = Some(limit);
        self
    }

    /// What these locks are for, as the label `group` of metrics. Default: empty. At most 64 bytes, no control characters. Few
    /// values, not one for each lock: every one of them is a time series of its own.
    ///
    /// ```
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().group("stock"); // for the locks stock:1, stock:2 and so on
    /// ```
    pub fn group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// These settings, and those of `base` where they are silent.
    pub(crate) fn over(self, base: &Self) -> Self {
        let base = base.clone();
        // A renewal interval belongs to its lease: another lease has its own.
        let renew_every = match self.lease {
            Some(_) => self.renew_every,
            None => self.renew_every.or(base.renew_every),
        };
        Self {
            lease: self.lease.or(base.lease),
            renew_every,
            renewal: self.renewal.or(base.renewal),
            max_hold: self.max_hold.or(base.max_hold),
            wait_at_most: self.wait_at_most.or(base.wait_at_most),
            trip_timeout: self.trip_timeout.or(base.trip_timeout),
            retry_unreachable_for: self.retry_unreachable_for.or(base.retry_unreachable_for),
            warn_after: self.warn_after.or(base.warn_after),
            order: self.order.or(base.order),
            local_turns: self.local_turns.or(base.local_turns),
            local_time: self.local_time.or(base.local_time),
            linger: self.linger.or(base.linger),
            readers_join: self.readers_join.or(base.readers_join),
            label: self.label.or(base.label),
            group: self.group.or(base.group),
        }
    }

    /// The lease that was asked for; `None` for the default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::Settings;
    /// let settings = Settings::new().lease(Duration::from_secs(10));
    /// assert_eq!(settings.asked_lease(), Some(Duration::from_secs(10)));
    /// assert_eq!(Settings::new().asked_lease(), None);
    /// ```
    pub fn asked_lease(&self) -> Option<Duration> {
        self.lease
    }
}
