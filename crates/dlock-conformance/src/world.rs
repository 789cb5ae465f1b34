//! What a case sees: clients of the store, names, faults, and ways to wait for something with a limit.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Request};
use dlock_core::{
    Capabilities, Capability, Clock, ErrorKind, Guard, Liveness, Locks, Mode, Moment, Name,
    Released, Result, Settings, SystemClock,
};

use tokio::sync::{OnceCell, oneshot};

use crate::process::{Job, JobMode, Task};
use crate::worker::Worker;
use crate::{Ability, Fault, Harness, Timings};

/// Longer than any case: a hold with it that was leaked shows as a failure, not as a delay.
const LONG_LEASE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub(crate) struct World {
    harness: Arc<dyn Harness>,
    pub(crate) capabilities: Capabilities,
    identity: String,
    pub(crate) timings: Timings,
    /// The client that looks on, made when it is first needed.
    probe: Arc<OnceCell<Locks>>,
}

impl World {
    pub(crate) fn new(
        harness: Arc<dyn Harness>,
        capabilities: Capabilities,
        identity: String,
    ) -> Self {
        Self {
            timings: harness.timings(),
            harness,
            capabilities,
            identity,
            probe: Arc::default(),
        }
    }

    /// A client that looks on; all looks go through it.
    pub(crate) async fn probe(&self) -> Result<&Locks> {
        self.probe.get_or_try_init(|| self.client()).await
    }

    /// A lock name that nobody else uses.
    pub(crate) fn name(&self) -> String {
        self.harness.unique_name()
    }

    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.capabilities.has(capability)
    }

    pub(crate) fn able(&self, ability: Ability) -> bool {
        self.harness.abilities().contains(&ability)
    }

    /// The lease of holds that are meant to expire.
    pub(crate) fn lease(&self) -> Duration {
        match self.capabilities.liveness {
            Liveness::Session { ttl } => ttl,
            _ => self.timings.lease.max(self.capabilities.shortest_lease),
        }
    }

    /// For how long a hold is valid after it was asked for ([C7](dlock_core::contract#c7)).
    pub(crate) fn validity(&self) -> Duration {
        let lease = self.lease();
        let margin = lease / 100 + Duration::from_millis(2);
        lease.saturating_sub(margin + self.capabilities.early_expiry)
    }

    /// Settings with a lease that outlasts the case, where the request can choose it.
    pub(crate) fn long(&self) -> Settings {
        self.leased(LONG_LEASE)
    }

    /// Settings with a lease that is meant to expire.
    pub(crate) fn short(&self) -> Settings {
        self.leased(self.lease())
    }

    pub(crate) fn leased(&self, lease: Duration) -> Settings {
        match self.capabilities.liveness {
            Liveness::Lease => Settings::new().lease(lease),
            _ => Settings::new(),
        }
    }

    pub(crate) async fn backend(&self) -> Result<Arc<dyn Backend>> {
        self.harness.connect().await
    }

    /// A client with a long lease.
    pub(crate) async fn client(&self) -> Result<Locks> {
        self.client_with(self.long()).await
    }

    pub(crate) async fn client_with(&self, settings: Settings) -> Result<Locks> {
        Locks::builder(self.backend().await?)
            .settings(settings)
            .build()
    }

    /// A client that dies with its runtime, as a process would: nobody else in this process looks after its holds.
    pub(crate) async fn mortal_client(&self, settings: Settings) -> Result<Locks> {
        Locks::builder(self.backend().await?)
            .settings(settings)
            .standby(false)
            .build()
    }

    pub(crate) async fn clients(&self, count: usize) -> Result<Vec<Locks>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(self.client().await?);
        }
        Ok(clients)
    }

    /// A client that can be disturbed.
    pub(crate) async fn faulty(&self, settings: Settings) -> Result<(Locks, Arc<dyn Fault>)> {
        let faulty = self.harness.faulty().await?;
        let locks = Locks::builder(faulty.backend).settings(settings).build()?;
        Ok((locks, faulty.fault))
    }

    pub(crate) async fn faulty_backend(&self) -> Result<(Arc<dyn Backend>, Arc<dyn Fault>)> {
        let faulty = self.harness.faulty().await?;
        Ok((faulty.backend, faulty.fault))
    }

    /// A client whose acquires take several polls, where the harness can slow it down.
    pub(crate) async fn slow(&self) -> Result<Locks> {
        if !self.able(Ability::DelayReplies) {
            return self.client().await;
        }
        let (locks, fault) = self.faulty(self.long()).await?;
        fault.delay_replies(Duration::from_millis(5)).await;
        Ok(locks)
    }

    pub(crate) async fn residue(&self) -> Result<crate::Residue> {
        self.harness.residue().await
    }

    /// An attempt with a long lease, for those who talk to the backend directly.
    pub(crate) fn request(&self, name: &str, mode: Mode) -> Request {
        self.request_for(name, mode, LONG_LEASE)
    }

    pub(crate) fn short_request(&self, name: &str, mode: Mode) -> Request {
        self.request_for(name, mode, self.lease())
    }

    /// An attempt with a lease of this length, for stores where the request can choose it.
    pub(crate) fn request_lasting(&self, name: &str, mode: Mode, lease: Duration) -> Request {
        self.request_for(name, mode, lease)
    }

    fn request_for(&self, name: &str, mode: Mode, lease: Duration) -> Request {
        let lease = match self.capabilities.liveness {
            Liveness::Session { ttl } => ttl,
            _ => lease,
        };
        Request::new(
            Name::new(name).expect("a good name"),
            mode,
            Arc::new(SystemClock),
        )
        .with_lease(lease)
        .with_label("conformance".into())
    }

    pub(crate) fn now(&self) -> Moment {
        SystemClock.now()
    }

    /// A helper that holds, or waits for, a lock with a short lease.
    pub(crate) fn holder(&self, name: &str, mode: JobMode) -> Worker {
        self.worker(Job {
            name: name.to_owned(),
            mode,
            lease: (self.capabilities.liveness == Liveness::Lease).then(|| self.lease()),
            task: Task::Hold,
            in_a_thread: false,
        })
    }

    /// The same, whose time of day is wrong.
    pub(crate) fn skewed_holder(
        &self,
        name: &str,
        mode: JobMode,
        lease: Duration,
        ahead: i64,
    ) -> Worker {
        let lease = (self.capabilities.liveness == Liveness::Lease).then_some(lease);
        let job = Job {
            name: name.to_owned(),
            mode,
            lease,
            task: Task::Hold,
            in_a_thread: false,
        };
        let env = crate::worker::skewed_env(ahead).expect("the case needs libfaketime");
        Worker::start_with(&self.harness, &self.capabilities, &self.identity, job, &env)
    }

    /// A lease of this length where the request can choose it, else the store's own.
    pub(crate) fn chosen_lease(&self, lease: Duration) -> Duration {
        match self.capabilities.liveness {
            Liveness::Session { ttl } => ttl,
            _ => lease,
        }
    }

    /// Moves the store's clock.
    pub(crate) async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.harness.set_clock(seconds_ahead).await
    }

    pub(crate) fn counter(&self, name: &str, file: std::path::PathBuf, times: u32) -> Worker {
        self.worker(Job {
            name: name.to_owned(),
            mode: JobMode::Exclusive,
            lease: (self.capabilities.liveness == Liveness::Lease).then_some(LONG_LEASE),
            task: Task::Count { file, times },
            in_a_thread: false,
        })
    }

    fn worker(&self, job: Job) -> Worker {
        Worker::start(&self.harness, &self.capabilities, &self.identity, job)
    }

    /// Waits until a helper says something.
    pub(crate) async fn says(&self, worker: &mut Worker, expected: &str) {
        // A process takes its time to start, and a count to finish.
        let limit = Duration::from_secs(30);
        let line = self
            .within(limit, "the helper says something", worker.line())
            .await;
        assert_eq!(line.as_deref(), Some(expected), "what the helper says");
    }

    /// What nothing disturbs and everybody waits for.
    pub(crate) async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        self.within(self.timings.settle, what, future).await
    }

    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        future: impl Future<Output = T>,
    ) -> T {
        let limit = limit + self.timings.tolerance;
        tokio::time::timeout(limit, future)
            .await
            .unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
    }

    /// Looks until something is so.
    pub(crate) async fn until(
        &self,
        limit: Duration,
        what: &str,
        is_so: impl AsyncFn() -> Result<bool>,
    ) -> Result<()> {
        self.within(limit, what, async {
            while !is_so().await? {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        })
        .await
    }

    /// Checks that others get the lock soon, and that nothing is left then.
    pub(crate) async fn expect_free(&self, name: &str) -> Result<()> {
        self.expect_free_within(self.timings.settle, name).await
    }

    pub(crate) async fn expect_free_within(&self, limit: Duration, name: &str) -> Result<()> {
        let other = self.probe().await?;
        let limit = limit + self.timings.tolerance;
        let guard = other.mutex(name)?.lock_within(limit).await?;
        let guard = guard.unwrap_or_else(|| panic!("the lock is not free within {limit:?}"));
        self.freed(guard).await?;
        self.expect_unused(name).await
    }

    /// Checks that soon nobody holds the lock and nobody waits for it.
    pub(crate) async fn expect_unused(&self, name: &str) -> Result<()> {
        let locks = self.probe().await?;
        if self.has(Capability::Inspect) {
            self.until(
                self.timings.settle,
                "nobody holds, nobody waits",
                async || {
                    let info = locks.inspect(name).await?;
                    Ok(!info.is_locked() && info.waiters.is_empty())
                },
            )
            .await?;
        }
        Ok(())
    }

    /// Checks that somebody holds the lock.
    pub(crate) async fn expect_taken(&self, name: &str) -> Result<()> {
        let other = self.probe().await?;
        let found = other.mutex(name)?.try_lock().await?;
        assert!(found.is_none(), "another client got a lock that is held");
        Ok(())
    }

    /// Checks that nobody else gets a lock that a guard holds. When somebody does, the guard tells which of two things was seen: two holders
    /// ([C1](dlock_core::contract#c1)), or a hold that had ended before, because nothing could renew it in time.
    pub(crate) async fn expect_held(&self, name: &str, guard: &Guard) -> Result<()> {
        let other = self.probe().await?;
        let found = other.mutex(name)?.try_lock().await?;
        // Asked after the other one was told, so a hold that is good now was good then.
        let is_held = guard.is_held();
        if found.is_none() {
            return Ok(());
        }
        assert!(
            !is_held,
            "two hold at once: another client got the lock, and the hold of the first is still good"
        );
        let reason = guard.loss_signal().wait().await;
        panic!(
            "the hold was lost ({reason:?}) before another client got the lock. Nobody disturbed it: was the machine stalled for longer \
             than its validity, {:?}?",
            self.validity()
        );
    }

    /// Checks that a short wait was in vain. On a slow machine the store may not have answered at all by then.
    pub(crate) fn expect_in_vain(&self, outcome: Result<Option<Guard>>) -> Result<()> {
        match outcome {
            Ok(None) => Ok(()),
            Ok(Some(_)) => panic!("a lock that others hold was granted"),
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Releases a guard whose hold must be good.
    pub(crate) async fn freed(&self, guard: Guard) -> Result<()> {
        assert_eq!(guard.release().await?, Released::Freed);
        Ok(())
    }

    /// Checks that a client soon has nothing more to do.
    pub(crate) async fn expect_quiet(&self, locks: &Locks) -> Result<()> {
        self.until(
            self.timings.settle,
            "the client has nothing left to undo",
            async || {
                let stats = locks.stats();
                Ok(stats.held == 0 && stats.in_doubt == 0)
            },
        )
        .await
    }

    /// Waits until `count` attempts wait at the store.
    pub(crate) async fn expect_waiting(&self, name: &str, count: usize) -> Result<()> {
        let locks = self.probe().await?;
        let shown = self.has(Capability::Inspect) && self.harness.shows_waiters();
        if shown && self.has(Capability::Fair) {
            let what = format!("{count} wait");
            return self
                .until(self.timings.settle, &what, async || {
                    Ok(locks.inspect(name).await?.waiters.len() == count)
                })
                .await;
        }
        // A store that does not tell: time enough for a trip.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(())
    }

    /// Ends every hold of `name` behind its holder's back. It was taken with a short lease.
    pub(crate) async fn end_hold(&self, name: &str) -> Result<()> {
        if self.able(Ability::Expire) {
            return self.harness.expire(&Name::new(name)?).await;
        }
        if self.capabilities.liveness == Liveness::Lease {
            tokio::time::sleep(self.lease() + Duration::from_millis(100)).await;
            return Ok(());
        }
        let broken = self.probe().await?.break_lock(name).await?;
        assert!(broken, "nobody held the lock");
        Ok(())
    }

    /// Runs `work` on a thread that is in no runtime.
    pub(crate) async fn outside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (tell, told) = oneshot::channel();
        let mut thread = std::thread::Builder::new();
        if let Some(name) = std::thread::current().name() {
            // Panics are told under the case's name.
            thread = thread.name(name.to_owned());
        }
        thread
            .spawn(move || {
                let _ = tell.send(work());
            })
            .expect("a thread");
        self.within(Duration::from_secs(40), "a thread ends", told)
            .await
            .expect("the thread panicked")
    }
}

/// A runtime of its own for code that runs [`outside`](World::outside).
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}
