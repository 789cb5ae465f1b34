use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Name, Result};

/// How the suite reaches a store.
///
/// Only [`name`](Harness::name) and [`connect`](Harness::connect) are required. Each further ability lets more cases run;
/// a case that needs one the harness lacks is reported as skipped, with the reason.
///
/// Every case runs in a tokio runtime of its own and may run at the same time as others, so a harness keeps nothing that is
/// bound to one runtime: `connect` makes its connection in the runtime that calls it.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Which backend this is, for reports: `redis`, `redis-cluster`.
    fn name(&self) -> &str;

    /// A new client of the store, independent of all others: its own connections and session. All calls reach the same store.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached: the case then fails.
    async fn connect(&self) -> Result<Arc<dyn Backend>>;

    /// The times the cases go by.
    fn timings(&self) -> Timings {
        Timings::default()
    }

    /// A lock name that nobody else uses: the cases run at the same time on one store. At most 80 bytes, ASCII letters and
    /// digits, with a letter in it.
    fn unique_name(&self) -> String {
        format!("t{}", uuid::Uuid::new_v4().simple())
    }

    /// Whether `inspect` shows who waits. Cases then wait for that; otherwise they give a waiter a fifth of a second to get into the
    /// queue. It counts for fair stores with `inspect` only.
    fn shows_waiters(&self) -> bool {
        true
    }

    /// Whether a hold can go on when the connection that made it is gone. It cannot where the hold *is* the connection, as with `GET_LOCK` or a
    /// row lock in an open transaction.
    fn holds_outlive_connections(&self) -> bool {
        true
    }

    /// What this harness can do beyond connecting. Every ability that is named here must be implemented.
    fn abilities(&self) -> &'static [Ability] {
        &[]
    }

    /// Why it lacks an ability, for the report: that the store has nothing of the kind, or in which test it is arranged. The suite says
    /// what is missing either way.
    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        let _ = ability;
        None
    }

    /// A new client whose way to the store can be disturbed, for [`Ability::Cut`], [`Ability::Hang`], [`Ability::HalfOpen`],
    /// [`Ability::LoseReply`], [`Ability::DelayReplies`] and [`Ability::Deny`].
    ///
    /// **The way must outlive the [`Fault`]**: a case may drop the handle and go on with the client. Whoever keeps a proxy in the handle
    /// cuts the client off then. [`ProxyFault`](crate::proxy::ProxyFault) keeps its proxies until the case's runtime ends.
    ///
    /// # Errors
    ///
    /// When the store cannot be reached.
    async fn faulty(&self) -> Result<Faulty> {
        Err(lacks("faulty"))
    }

    /// For [`Ability::Expire`]: ends every hold of `name` at the store as if its lease or session had passed. Nobody is told.
    ///
    /// # Errors
    ///
    /// When the store did not do it.
    async fn expire(&self, name: &Name) -> Result<()> {
        let _ = name;
        Err(lacks("expire"))
    }

    /// For [`Ability::Skew`]: moves the time of day that the store believes in, so many seconds ahead of the right time or, when negative,
    /// behind it; zero puts it right. No other case runs meanwhile, and the case puts it right again. What counts elapsed time (a monotonic
    /// clock, time-outs) is not to be moved. `libfaketime` does it for a server that the test starts.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        let _ = seconds_ahead;
        Err(lacks("set_clock"))
    }

    /// For [`Ability::Residue`]: counts what is in the store and must not pile up: keys, rows, nodes, leases,
    /// connections, subscriptions. Things that the backend keeps on purpose and bounded (a fencing counter per name with an expiry)
    /// are not counted.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    async fn residue(&self) -> Result<Residue> {
        Err(lacks("residue"))
    }

    /// Whatever [`process::serve`](crate::process::serve) needs in another process to connect to this store, such as a URL.
    fn address(&self) -> String {
        String::new()
    }

    /// A program that calls [`process::serve`](crate::process::serve) first thing in its `main`.
    ///
    /// By default the suite starts the running test program again, which is right when its `main` calls
    /// [`main`](crate::main()); for a store that only reaches the tasks of one process, a thread with a runtime of its own takes the
    /// place of the process.
    fn helper(&self) -> Option<Command> {
        None
    }
}

fn lacks(what: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the harness names this ability but does not implement `{what}`"),
    )
}

/// What a harness can do beyond connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ability {
    /// [`Fault::cut`].
    Cut,
    /// [`Fault::hang`].
    Hang,
    /// [`Fault::half_open`].
    HalfOpen,
    /// [`Fault::lose_reply`].
    LoseReply,
    /// [`Fault::delay_replies`].
    DelayReplies,
    /// [`Fault::deny`].
    Deny,
    /// [`Harness::set_clock`].
    Skew,
    /// [`Harness::expire`].
    Expire,
    /// [`Harness::residue`].
    Residue,
}

impl Ability {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Cut,
        Self::Hang,
        Self::HalfOpen,
        Self::LoseReply,
        Self::DelayReplies,
        Self::Deny,
        Self::Skew,
        Self::Expire,
        Self::Residue,
    ];

    /// What most harnesses have: all that a [`ProxyFault`](crate::proxy::ProxyFault) brings, a way to end a hold at the store, and a count
    /// of what is left there.
    pub const COMMON: &'static [Self] = &[
        Self::Cut,
        Self::Hang,
        Self::HalfOpen,
        Self::LoseReply,
        Self::DelayReplies,
        Self::Expire,
        Self::Residue,
    ];
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "cut the connection",
            Self::Hang => "let the connection hang",
            Self::HalfOpen => "silence the connections that are open now and let new ones work",
            Self::LoseReply => "lose a reply",
            Self::DelayReplies => "delay replies",
            Self::Deny => "take a client's rights away",
            Self::Skew => "move the clock of the store",
            Self::Expire => "expire a hold",
            Self::Residue => "count what is left in the store",
        })
    }
}

/// A client and the handle that disturbs its way to the store.
pub struct Faulty {
    /// The client.
    pub backend: Arc<dyn Backend>,
    /// What disturbs this client and no other.
    pub fault: Arc<dyn Fault>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// Disturbs the way between one client and the store; a proxy on loopback does it for most stores.
///
/// A method that the harness does not name among its [`abilities`](Harness::abilities) is never called.
#[async_trait]
pub trait Fault: Send + Sync + 'static {
    /// From now on connections are reset and new ones refused.
    async fn cut(&self);

    /// From now on nothing gets through in either direction, and connections stay open: a black hole.
    async fn hang(&self);

    /// The connections that are open now fall silent, and nobody is told; new ones work. This is what a fail-over of a load balancer, a
    /// firewall that forgot a connection, or a machine that lost its power leaves behind.
    async fn half_open(&self) {}

    /// From now on the store answers this client, and refuses what it asks: its password was changed, its rights were revoked, or the
    /// store takes no writes. New connections may be refused too.
    async fn deny(&self) {}

    /// Everything is as it was; also ends a delay, a lost reply that was still to come, and a refusal.
    async fn heal(&self);

    /// The next reply is lost after the store has done the work, and the client finds that the connection broke.
    async fn lose_reply(&self);

    /// From now on every reply arrives at least this much later than the store sent it.
    async fn delay_replies(&self, delay: Duration);
}

/// Named counts of what is in a store.
pub type Residue = BTreeMap<String, u64>;

/// The times the cases go by. None of them makes a good store fail by being generous: they are upper bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// The lease of holds that are meant to expire. Default: 1 s. A session store's own time takes its place.
    pub lease: Duration,
    /// How long clean-up in the background may take when nothing disturbs it (C13, C14). Default: 5 s. Less than 20 s.
    pub settle: Duration,
    /// What a loaded machine may add to any time. Default: 2 s.
    pub tolerance: Duration,
    /// After this time a case counts as hanging. Default: 60 s.
    pub case_limit: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(1),
            settle: Duration::from_secs(5),
            tolerance: Duration::from_secs(2),
            case_limit: Duration::from_secs(60),
        }
    }
}

impl Timings {
    /// Sets the lease.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long clean-up may take.
    #[must_use]
    pub fn settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }

    /// Sets the tolerance.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Sets the limit of one case.
    #[must_use]
    pub fn case_limit(mut self, limit: Duration) -> Self {
        self.case_limit = limit;
        self
    }
}
