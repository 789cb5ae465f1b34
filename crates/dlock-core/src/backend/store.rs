use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::{Lease, Outcome, Renewal, Request};
use crate::kit;
use crate::{Capabilities, Capability, Error, ErrorKind, LockInfo, Name, Released, Result, WakeUp};

/// A store that can hold locks.
///
/// A backend makes **single attempts**; core does everything else: it waits, queues the tasks of one client, keeps
/// deadlines, renews, tells of losses, counts re-entries and statistics, and cleans up after dropped futures and lost replies.
/// Write [`try_acquire`](Backend::try_acquire), [`renew`](Backend::renew), [`release`](Backend::release) and
/// [`abandon`](Backend::abandon), say what the store can do in [`capabilities`](Backend::capabilities), and run the
/// conformance suite (`dlock-conformance`) against it.
///
/// # The calls of a hold
///
/// ```text
/// try_acquire, or acquire for one who waits ──► Held ──► renew ──► renew ──► … ──► release
///       │                                         │                                  │ not confirmed: again
///       │ Busy: over                              │ lost, or the guard was dropped ──┘
///       └ in doubt: an error, a late answer, a future that was dropped ──► abandon, until it says Ok
/// ```
///
/// # A minimal backend
///
/// Locks in a table of this process: a store that only excludes, without tokens or a queue. Waiters ask again and again.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
///
/// use dlock_core::backend::{AttemptId, Backend, Busy, Lease, Outcome, Renewal, Request};
/// use dlock_core::{Capabilities, Clock, Locks, LossReason, Moment, Name, Released, Result, SystemClock, kit};
///
/// #[derive(Debug)]
/// struct Table {
///     capabilities: Capabilities,
///     /// Who holds a lock, and until when.
///     rows: Mutex<HashMap<Name, (AttemptId, Moment)>>,
/// }
///
/// #[async_trait::async_trait]
/// impl Backend for Table {
///     fn capabilities(&self) -> &Capabilities {
///         &self.capabilities
///     }
///
///     fn identity(&self) -> &str {
///         "table"
///     }
///
///     async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
///         let sent = request.now(); // the lease counts from before the store is asked (C7)
///         let mut rows = self.rows.lock().unwrap();
///         kit::refuse_abandoned(request.attempt())?; // one that comes after its undo (C13)
///         match rows.get(request.name()) {
///             // The same attempt twice is one hold, whose lease counts anew (C15).
///             Some((owner, until)) if *owner != request.attempt() && sent < *until => Ok(Outcome::Busy(Busy::default())),
///             _ => {
///                 rows.insert(request.name().clone(), (request.attempt(), sent + request.lease()));
///                 Ok(Outcome::Held(Lease::new(request, sent)))
///             }
///         }
///     }
///
///     async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
///         let now = SystemClock.now();
///         let mut rows = self.rows.lock().unwrap();
///         let answers = leases.iter().map(|lease| match rows.get_mut(lease.name()) {
///             // Only if it is still ours, in the same step (C6).
///             Some((owner, until)) if *owner == lease.attempt() && now < *until => {
///                 *until = now + lease.duration();
///                 Renewal::Extended
///             }
///             _ => Renewal::Lost(LossReason::Gone),
///         });
///         answers.collect()
///     }
///
///     async fn release(&self, lease: &Lease) -> Result<Released> {
///         let mut rows = self.rows.lock().unwrap();
///         match rows.get(lease.name()) {
///             Some((owner, until)) if *owner == lease.attempt() => {
///                 let was_good = SystemClock.now() < *until;
///                 rows.remove(lease.name());
///                 Ok(if was_good { Released::Freed } else { Released::AlreadyLost })
///             }
///             _ => Ok(Released::AlreadyLost),
///         }
///     }
///
///     async fn abandon(&self, request: &Request) -> Result<()> {
///         let mut rows = self.rows.lock().unwrap();
///         kit::remember_abandoned(request.attempt());
///         if rows.get(request.name()).is_some_and(|(owner, _)| *owner == request.attempt()) {
///             rows.remove(request.name());
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let table = Table { capabilities: Capabilities::new("table"), rows: Mutex::default() };
/// let locks = Locks::new(table)?;
/// let guard = locks.mutex("stock:42")?.lock().await?;
/// assert!(locks.mutex("stock:42")?.try_lock().await?.is_none());
/// assert_eq!(guard.release().await?, Released::Freed);
/// # Ok(())
/// # }
/// ```
///
/// # What must hold
///
/// - The owner in the store is [`Request::attempt`]. Every change compares it in the same atomic step ([C6](crate::contract#c6)).
/// - `try_acquire` and `acquire` with the same attempt twice are one hold with one token: stores and proxies re-send requests ([C15](crate::contract#c15)). The
///   repeated one **extends the lease**, since core counts the validity from the answer that it got, which is the last one.
/// - `renew`, `release` and `abandon` of a hold that is gone change nothing and say so.
/// - `renew`, `release` and `downgrade` find a hold by its attempt, whatever mode the lease says: the answer to a downgrade may have
///   been lost ([C15](crate::contract#c15)).
/// - **Every future may be dropped at any await point.** What it may have left in the store is then removed by `abandon`, which
///   core calls with the same request. After `abandon` has returned `Ok`, that attempt holds nothing, waits nowhere,
///   and cannot take effect later, even when a request of it is still under way to the store ([C13](crate::contract#c13)). A request of it that comes after
///   all gets an error with [`HeldNow::No`](crate::HeldNow::No), not `Busy`: nobody waits for its answer any more.
/// - So the store keeps a mark of an abandoned attempt (a *tombstone*), for as long as a request may be under way: on one connection, until
///   that connection has ended; across connections, longer than any kernel, proxy or balancer holds a packet back. A minute is the
///   least, and others who use the lock meanwhile do not end it. It goes away by its time alone, or it piles up ([C16](crate::contract#c16)).
/// - Contention is [`Outcome::Busy`], and an error is an error: a store out of reach is [`ErrorKind::Unreachable`] or
///   [`ErrorKind::TimedOut`], never busy ([C5](crate::contract#c5)). Wrong credentials are [`ErrorKind::Denied`].
/// - Names and labels are data: bind or escape them ([C3](crate::contract#c3)).
/// - No panics, no secrets in `Debug` output or errors.
///
/// # Who bounds what in time
///
/// | call | bounded by core | what a backend does |
/// |---|---|---|
/// | [`try_acquire`](Backend::try_acquire) | [`Settings::trip_timeout`](crate::Settings::trip_timeout) | |
/// | [`acquire`](Backend::acquire) | the caller's deadline alone: it may wait for hours | finds out by itself that the store is gone, by a heartbeat or by asking again, and returns an error |
/// | [`renew`](Backend::renew), [`downgrade`](Backend::downgrade) | [`Lease::renewal_limit`] | asks another connection or server within half of it |
/// | [`release`](Backend::release), [`abandon`](Backend::abandon) | `trip_timeout`, then again in the background until confirmed or the lease is over | |
/// | [`inspect`](Backend::inspect), [`break_lock`](Backend::break_lock), [`list`](Backend::list) | `trip_timeout`; `list` see [`bounds_trips_of_list`](Backend::bounds_trips_of_list) | |
/// | `connect` of a backend | nobody | has a time limit of its own |
///
/// Core keeps a limit by **dropping the future**. The backend is then not told what for, so the connection that hangs is the backend's to
/// replace: where an answer is missing after a future was dropped, or after a limit of the backend's own, the next request goes out on a
/// new connection. A backend that keeps the old one answers nobody again, and loses its holds one lease later.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this store can do. It never changes after the backend was made.
    fn capabilities(&self) -> &Capabilities;

    /// Which store this is, without secrets, for people and for the order of a
    /// [`MultiLock`](crate::MultiLock)'s members: two clients of the same store give the same text.
    fn identity(&self) -> &str;

    /// One attempt, without waiting for a holder.
    ///
    /// `Held` carries a [`Lease`] counted from the moment just before the request was sent. `Busy` is proof that nothing of
    /// this attempt is left in the store.
    ///
    /// # Errors
    ///
    /// Anything that is neither; [`Error::held_now`] tells whether the attempt may have succeeded.
    async fn try_acquire(&self, request: &Request) -> Result<Outcome>;

    /// Waits for the lock, until the request's deadline if it has one.
    ///
    /// The default asks again with randomised pauses. A store with a queue or a notification overrides it, and then
    ///
    /// - calls [`Request::mark_contended`] once the store has said that others hold the lock,
    /// - answers `Busy` at the deadline, with nothing left in the store. It may also leave that to core, which drops the future
    ///   at the deadline and calls `abandon`,
    /// - returns an error when the store can no longer be reached: core then decides whether to try again.
    ///
    /// # Errors
    ///
    /// As for [`try_acquire`](Backend::try_acquire).
    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        let longest = match self.capabilities().wake_up {
            WakeUp::Poll { longest } => longest,
            WakeUp::Push { bound } => bound,
        };
        kit::poll(request, longest, || self.try_acquire(request)).await
    }

    /// Extends many leases with as few trips as the store allows, one answer for each, in order.
    ///
    /// A session store proves with one trip, sent after this call began, that its session lives (and that each hold is
    /// still there, where that costs no further trip).
    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal>;

    /// Frees a hold if it is still ours: [`Released::Freed`] or [`Released::AlreadyLost`].
    ///
    /// # Errors
    ///
    /// When the store did not confirm either; core tries again in the background.
    async fn release(&self, lease: &Lease) -> Result<Released>;

    /// Undoes an attempt whose outcome is unknown, whatever it may have left: a hold, a queue entry, or nothing.
    ///
    /// # Errors
    ///
    /// When the store did not confirm; core tries again in the background.
    async fn abandon(&self, request: &Request) -> Result<()>;

    /// Turns an exclusive hold into a shared one without a moment in between at which it is free. Repeating it is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the hold is gone.
    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let _ = lease;
        Err(self.lacks(Capability::Downgrade))
    }

    /// Who holds and who waits; a lock nobody uses is free, not an error.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let _ = name;
        Err(self.lacks(Capability::Inspect))
    }

    /// All locks that are held and whose name starts with `prefix`, sorted by name.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked.
    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let _ = prefix;
        Err(self.lacks(Capability::Inspect))
    }

    /// Whether [`list`](Backend::list) bounds each of its trips by itself. It may then take as long as the store goes on answering:
    /// a store with millions of other keys is walked through in many short trips. Without that, which is the default, a whole list
    /// has the time of one trip.
    fn bounds_trips_of_list(&self) -> bool {
        false
    }

    /// Frees the lock by force, whoever holds it; `true` when somebody did. Waiters then get it as after a release, and
    /// tokens keep increasing.
    ///
    /// # Errors
    ///
    /// When the store did not confirm.
    async fn break_lock(&self, name: &Name) -> Result<bool> {
        let _ = name;
        Err(self.lacks(Capability::Break))
    }

    /// Whether somebody of another client waits for the lock; `true` when that is not known.
    ///
    /// Asked of a store without a queue when the tasks of this client have taken the lock from each other for
    /// [`local_turns`](crate::Settings::local_turns): they pause only if somebody may need the pause. Asked for a holder that wants
    /// to give way, where [`Capabilities::wanted`] says that the answer is known: `true` then means that somebody waits. Where that is
    /// [`Hearing::Asks`](crate::backend::Hearing::Asks), it is asked for the second alone, and may err on the side of `false`. A store
    /// that cannot tell leaves this out.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, so it may be dropped.
    async fn others_wait(&self, name: &Name) -> bool {
        let _ = name;
        true
    }

    /// Resolves when the exclusive holder of `name` is another than `seen` (an owner as [`inspect`](Backend::inspect) shows it;
    /// `None` for nobody), or may be. For those who watch, as [`Election::observe`](crate::Election::observe) does: they look again
    /// when it resolves, and at intervals in any case. A store that cannot tell never resolves.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, so it may be dropped at any await point, and must then leave nothing behind.
    async fn changed(&self, name: &Name, seen: Option<&str>) {
        let _ = (name, seen);
        std::future::pending().await
    }

    /// Resolves when somebody of another client waits for what `lease` holds, at once if somebody does already ([C23](crate::contract#c23)). For holders
    /// that give way ([`Guard::wanted`](crate::Guard::wanted)) and for holds that linger
    /// ([`Settings::linger`](crate::Settings::linger)). A store that pushes ([`Hearing::Told`](crate::Hearing::Told)) overrides it. While
    /// it cannot be reached, or when the hold is gone, it does not resolve.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing, so it may be dropped at any await point, and must then leave nothing behind.
    async fn wanted(&self, lease: &Lease) {
        let _ = lease;
        std::future::pending().await
    }

    /// Whether the store gets requests in the order in which they were made, and has a queue for who comes too early.
    ///
    /// Then the next task of a client asks for a lock while the release before it is still under way, which saves one of the two
    /// trips of a hand-over. It is for speed alone: a request that overtakes the release after all waits in the store's queue.
    fn sends_in_order(&self) -> bool {
        false
    }

    /// Ends connections and background tasks. Called after every hold was given back; again if a first call failed or was cut off.
    ///
    /// # Errors
    ///
    /// When something could not be ended in order.
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    /// The error for something that this backend does not offer: what the methods that it leaves out answer.
    ///
    /// A store need not write it. A backend around another forwards it like every method, so that the error is in the words of the store.
    ///
    /// ```
    /// # use dlock_core::{Capability, ErrorKind, backend::Backend};
    /// # let backend = dlock_memory::MemoryBackend::new();
    /// let error = backend.lacks(Capability::Break);
    /// assert_eq!(error.kind(), ErrorKind::Unsupported);
    /// assert!(error.to_string().contains("does not offer"));
    /// ```
    fn lacks(&self, capability: Capability) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!("this backend does not offer {capability}"),
        )
        .with_backend(self.capabilities().backend)
    }
}
