//! A hold, as a backend gives it to core and gets it back.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{AttemptId, Mode, Request};
use crate::{FencingToken, Moment, Name};

/// A hold as the backend sees it.
///
/// ```
/// use std::sync::Arc;
/// use dlock_core::backend::{Lease, Outcome, Request};
///
/// /// What the store of this backend needs to find a hold again.
/// #[derive(Debug)]
/// struct Node {
///     path: String,
/// }
///
/// /// In `try_acquire`, after the store has made the node and numbered it.
/// fn held(request: &Request, sent: dlock_core::Moment, path: String, number: u64) -> Outcome {
///     Outcome::Held(Lease::new(request, sent).with_token(number).with_native(Arc::new(Node { path })))
/// }
///
/// /// In `release` and `renew`.
/// fn node_of(lease: &Lease) -> Option<&str> {
///     lease.native::<Node>().map(|node| node.path.as_str())
/// }
/// # use dlock_core::{Mode, Name, SystemClock};
/// # let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, Arc::new(SystemClock));
/// # let Outcome::Held(lease) = held(&request, request.now(), "/locks/7".into(), 7) else { panic!() };
/// # assert_eq!(node_of(&lease), Some("/locks/7"));
/// # assert_eq!(lease.token().map(u64::from), Some(7));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Lease {
    name: Name,
    mode: Mode,
    attempt: AttemptId,
    duration: Duration,
    renewal_limit: Duration,
    from: Moment,
    token: Option<FencingToken>,
    native: Option<Native>,
}

#[derive(Clone)]
struct Native(Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl Lease {
    /// The hold that `request` got; `from` is the moment just **before** the request that started the lease was sent ([C7](crate::contract#c7)).
    pub fn new(request: &Request, from: Moment) -> Self {
        Self {
            name: request.name().clone(),
            mode: request.mode(),
            attempt: request.attempt(),
            duration: request.lease(),
            renewal_limit: request.renewal_limit.unwrap_or(request.lease() / 3),
            from,
            token: None,
            native: None,
        }
    }

    /// Sets the fencing token.
    #[must_use]
    pub fn with_token(mut self, token: u64) -> Self {
        self.token = Some(FencingToken::new(token));
        self
    }

    /// Keeps what the backend needs to find the hold again: a path, a connection.
    #[must_use]
    pub fn with_native(mut self, native: Arc<dyn Any + Send + Sync>) -> Self {
        self.native = Some(Native(native));
        self
    }

    /// The same hold in another mode, after a downgrade.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same hold counted from another moment. Core uses it to make sure that a reply's time never counts.
    #[must_use]
    pub(crate) fn no_later_than(mut self, sent: Moment) -> Self {
        self.from = self.from.min(sent);
        self
    }

    /// The lock.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The owner in the store.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }

    /// How long the store keeps the hold after each renewal. A session store is renewed by its session's time instead.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// How long core waits for one renewal of this hold before it drops the call and tries again. A backend that can ask another
    /// connection or another member waits for each of them no longer than a half of it, so that the second one gets its chance.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use dlock_core::{Clock, Mode, Moment, Name, SystemClock, backend::{Lease, Request}};
    /// # let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, Arc::new(SystemClock));
    /// # let lease = Lease::new(&request, request.now());
    /// // In `renew`, of a store with two servers: the second one still has its half.
    /// let limit = lease.renewal_limit() / 2;
    /// # assert_eq!(limit * 6, lease.duration());
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn renewal_limit(&self) -> Duration {
        self.renewal_limit
    }

    /// The moment from which the lease counts.
    pub fn counted_from(&self) -> Moment {
        self.from
    }

    /// The fencing token; where a grant brings several, the first.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// What the backend kept with [`Lease::with_native`].
    pub fn native<T: Any>(&self) -> Option<&T> {
        self.native
            .as_ref()
            .and_then(|native| native.0.downcast_ref())
    }
}
