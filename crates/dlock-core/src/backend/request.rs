//! What core asks of a backend, and what a backend answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::backend::Lease;
use crate::{Clock, Error, Moment, Name};

/// How a lock is held.
///
/// There may be more modes later. Core asks a backend only for those that its [`Capabilities`](crate::Capabilities) name, so an arm for the
/// others is never reached; let it answer [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), or treat them as exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other shared holders, never with an exclusive one.
    Shared,
    /// One of `limit` permits.
    Permit {
        /// How many permits the semaphore has.
        limit: u32,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permit { limit } => write!(f, "permit of {limit}"),
        }
    }
}

/// The identity of one attempt to get a lock, chosen before the first byte is sent.
///
/// It is what the store keeps as the owner of a hold: releases, renewals and undos name it, so a stale one never
/// touches a later hold ([C6](crate::contract#c6)), and an attempt whose answer was lost can be found again ([C15](crate::contract#c15)).
///
/// ```
/// use dlock_core::backend::AttemptId;
///
/// let attempt = AttemptId::new();
/// let written = attempt.to_string(); // as it stands in a store
/// let read = AttemptId::from(*attempt.as_uuid());
/// assert_eq!((written.len(), read), (32, attempt));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(Uuid);

impl AttemptId {
    /// A new one, unlike any other.
    #[allow(clippy::new_without_default, reason = "a default should not be random")]
    pub fn new() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id as a UUID.
    pub fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl From<Uuid> for AttemptId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// One attempt to get a lock.
///
/// Core makes it; a test of a backend may make its own with [`Request::new`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use dlock_core::backend::Request;
/// use dlock_core::{Clock, Mode, Name, SystemClock};
///
/// let clock = Arc::new(SystemClock);
/// let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, clock.clone())
///     .with_lease(Duration::from_secs(10))
///     .with_trip_timeout(Duration::from_secs(1))
///     .with_deadline(Some(clock.now() + Duration::from_secs(2)))
///     .with_label("a test".into());
///
/// // What a backend reads:
/// let (name, owner, lease) = (request.name().as_str(), request.attempt().to_string(), request.lease());
/// assert_eq!((name, lease, request.label()), ("stock:42", Duration::from_secs(10), "a test"));
/// assert!(request.time_left().is_some_and(|left| left <= Duration::from_secs(2)));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Request {
    name: Name,
    mode: Mode,
    attempt: AttemptId,
    lease: Duration,
    pub(super) renewal_limit: Option<Duration>,
    trip_timeout: Duration,
    deadline: Option<Moment>,
    label: Option<Arc<str>>,
    clock: Arc<dyn Clock>,
    contended: AtomicBool,
}

impl Request {
    /// An attempt with a new id, a lease of 30 s, no deadline and an empty label.
    pub fn new(name: Name, mode: Mode, clock: Arc<dyn Clock>) -> Self {
        Self {
            name,
            mode,
            attempt: AttemptId::new(),
            lease: crate::lock::settings::DEFAULT_LEASE,
            renewal_limit: None,
            trip_timeout: crate::lock::settings::DEFAULT_TRIP_TIMEOUT,
            deadline: None,
            label: None,
            clock,
            contended: AtomicBool::new(false),
        }
    }

    /// Sets the lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long core waits for one renewal of the hold; a third of the lease unless it is set.
    #[must_use]
    pub fn with_renewal_limit(mut self, limit: Duration) -> Self {
        self.renewal_limit = Some(limit);
        self
    }

    /// Sets the longest time a single trip to the store may take.
    #[must_use]
    pub fn with_trip_timeout(mut self, limit: Duration) -> Self {
        self.trip_timeout = limit;
        self
    }

    /// Sets the moment at which the caller stops waiting.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Option<Moment>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the holder's label.
    #[must_use]
    pub fn with_label(mut self, label: Arc<str>) -> Self {
        self.label = Some(label);
        self
    }

    /// The lock.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// How it shall be held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Who asks: the owner to write into the store.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }

    /// How long the store shall keep the hold without a renewal.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The longest time a single trip to the store may take.
    pub fn trip_timeout(&self) -> Duration {
        self.trip_timeout
    }

    /// When the caller stops waiting; `None` when it waits for ever.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// The time left until the deadline; `None` when the caller waits for ever.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use dlock_core::{Clock, Mode, Moment, Name, SystemClock, backend::{Lease, Request}};
    /// # let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, Arc::new(SystemClock));
    /// // How long to block in the store: not longer than the caller waits, and not without a look now and then.
    /// let longest = std::time::Duration::from_secs(1);
    /// let block = request.time_left().map_or(longest, |left| left.min(longest));
    /// # assert_eq!(block, longest);
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(self.now()))
    }

    /// Who holds, for people to read: program, host and process by default.
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or_default()
    }

    /// The clock's time now. Read it right before the request that starts the lease is sent.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use dlock_core::{Clock, Mode, Moment, Name, SystemClock, backend::{Lease, Request}};
    /// # let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, Arc::new(SystemClock));
    /// let sent = request.now();
    /// // ... send the request, and read the answer ...
    /// let lease = Lease::new(&request, sent); // so the time that the answer took does not count
    /// # assert_eq!(lease.counted_from(), sent);
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Notes that the store has answered, and that others hold the lock.
    ///
    /// A backend that overrides [`Backend::acquire`](crate::backend::Backend::acquire) calls it as soon as it knows. When the
    /// time limit then passes, the caller is told "busy"; without it, that the store did not answer ([C5](crate::contract#c5)).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use dlock_core::{Clock, Mode, Moment, Name, SystemClock, backend::{Lease, Request}};
    /// # let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, Arc::new(SystemClock));
    /// // In `acquire`, when the store has put the request into its queue:
    /// request.mark_contended();
    /// assert!(request.is_contended());
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn mark_contended(&self) {
        self.contended.store(true, Ordering::Relaxed);
    }

    /// Whether the store has said that others hold the lock.
    pub fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }
}

/// The answer to one attempt.
#[derive(Debug)]
pub enum Outcome {
    /// The lock is held by this attempt.
    Held(Lease),
    /// Others hold it, and nothing of this attempt is left in the store.
    Busy(Busy),
}

/// What the store knows about the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Busy {
    /// When asking again is worth it at the latest, for example when the holder's lease would end.
    pub retry_after: Option<Duration>,
}

/// The answer for one lease of a renewal.
#[derive(Debug)]
pub enum Renewal {
    /// The hold was still ours, and its lease counts anew from the moment the renewal was sent.
    Extended,
    /// The store says that the hold is gone. This is certain.
    Lost(LossReason),
    /// Nothing is known; core tries again until the deadline ([C10](crate::contract#c10)).
    Failed(Error),
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "only `Freed` and `StillHeld` say that the hold was good to the end"]
pub enum Released {
    /// The lock was ours until now, and is free, or was passed on to the next task of this client.
    Freed,
    /// An outer guard of the same owner still holds the lock (reentrancy).
    StillHeld,
    /// The hold had been lost before: the protected work may have overlapped with another holder's.
    AlreadyLost,
    /// The store did not confirm it in time. It is tried again in the background until it does or the lease is over.
    Unknown,
}

/// Why a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease could not be renewed in time.
    Expired,
    /// The store says that the hold is gone: broken by an administrator, evicted, or taken over.
    Gone,
    /// The session that carried the hold has ended.
    SessionEnded,
    /// The maximum hold time was reached.
    MaxHold,
    /// The client was closed.
    Closed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease could not be renewed in time",
            Self::Gone => "the store no longer has the hold",
            Self::SessionEnded => "the session ended",
            Self::MaxHold => "the maximum hold time was reached",
            Self::Closed => "the client was closed",
        })
    }
}
