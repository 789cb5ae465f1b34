mod grip;
mod run;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, select_all};

use self::grip::Grip;
use self::run::lost_error;
use super::signal::{LossSignal, Watched};
use crate::engine::client::{Client, one_writer_alone, reason_of};
use crate::engine::entry::{Ending, Entry};
use crate::engine::queue::Hold;
use crate::lock::settings::ResolvedSettings;
use crate::{
    Capability, Error, ErrorKind, FencingToken, HeldNow, LossReason, Mode, Moment, Name, Operation,
    Released, Result,
};

/// A lock that is held: by a mutex, a reader or writer, a permit, or several locks as one.
///
/// The lease is renewed in the background until the guard is released or dropped, the hold is lost, or
/// [`max_hold`](crate::Settings::max_hold) ends it; also while the runtime that took it is blocked, idle or gone. Give the lock
/// back with [`release`](Guard::release), which tells whether the hold was good to the end. Dropping the guard gives it back in the
/// background ([C14](crate::contract#c14)). Nothing is sent when a program ends right after a drop, so a program's last guard should be released, or
/// the client closed.
///
/// ```
/// # use dlock_core::{Locks, Released};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// # async fn write_report(token: Option<dlock_core::FencingToken>) {}
/// let guard = locks.mutex("report")?.lock().await?;
/// tokio::select! {
///     () = write_report(guard.token()) => {} // the report's store refuses lower tokens
///     reason = guard.lost() => println!("stopped half-way: {reason}"),
/// }
/// match guard.release().await? {
///     Released::AlreadyLost => println!("somebody else may have written too"),
///     _ => println!("done under the lock to the end"),
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Losing the lock
///
/// A lease can pass while the holder is paused, cut off or slow. Then [`is_held`](Guard::is_held) turns false and
/// [`lost`](Guard::lost) resolves, both by the local clock, before the store can give the lock to another ([C8](crate::contract#c8)). Work that
/// cannot be stopped in time is made safe by handing [`token`](Guard::token) to the resource.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard {
    first: Grip,
    /// Only for several locks as one.
    rest: Vec<Grip>,
    reentry: bool,
}

impl Hold for Entry {
    type Guard = Guard;

    fn settings(&self) -> &Arc<ResolvedSettings> {
        &self.settings
    }

    fn is_held(&self, now: Moment) -> bool {
        self.is_held(now)
    }

    fn others_came(&self) {
        self.others_came();
    }
}

impl Guard {
    pub(crate) fn new(client: Arc<Client>, entry: Arc<Entry>, reentry: bool) -> Self {
        let may_be_joined = entry.settings.readers_in_a_hold > 1 && entry.mode() == Mode::Shared;
        Self {
            first: Grip {
                client,
                left: may_be_joined.then(Arc::default),
                // It does not change while somebody is in.
                stay: entry.stay(),
                entry,
                on: true,
                joined_at: None,
            },
            rest: Vec::new(),
            reentry,
        }
    }

    /// Of a reader that has joined a hold of its client.
    pub(crate) fn joined(client: Arc<Client>, entry: Arc<Entry>, now: Moment) -> Self {
        let mut guard = Self::new(client, entry, false);
        guard.first.joined_at = Some(now);
        guard
    }

    /// Several guards as one; `None` when there are none.
    pub(crate) fn join(guards: Vec<Self>) -> Option<Self> {
        let mut guards = guards.into_iter();
        let mut all = guards.next()?;
        for guard in guards {
            all.rest.push(guard.first);
            all.rest.extend(guard.rest);
        }
        Some(all)
    }

    fn grips(&self) -> impl Iterator<Item = &Grip> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn is_reentry(&self) -> bool {
        self.reentry
    }

    /// Whether another task of this client has passed the hold on, or lets this one join it.
    pub(crate) fn was_passed_on(&self) -> bool {
        self.first.stay > 0 || self.first.joined_at.is_some()
    }

    /// The task to which the hold was passed on has it in its hands.
    pub(crate) fn take_up(&self) {
        let Grip { client, entry, .. } = &self.first;
        client.ledger.take_up(entry, client.clock.now());
    }

    /// The hold is left in another way than by dropping this.
    pub(crate) fn forget(mut self) {
        self.first.on = false;
    }

    /// The lock's name; of several locks as one, the first.
    pub fn name(&self) -> Name {
        self.first.entry.name()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.first.entry.mode()
    }

    /// The fencing token: hand it to the protected resource with every write. `None` when the store has none.
    ///
    /// Of several locks as one it is the first lock's; [`tokens`](Guard::tokens) gives them all.
    pub fn token(&self) -> Option<FencingToken> {
        self.first.token()
    }

    /// Every lock of this guard with its token.
    pub fn tokens(&self) -> Vec<(Name, Option<FencingToken>)> {
        self.grips()
            .map(|grip| (grip.entry.name(), grip.token()))
            .collect()
    }

    /// The owner as it is written in the store, which `inspect` shows.
    pub fn owner_id(&self) -> String {
        let lease = self.first.entry.lease();
        lease
            .map(|lease| lease.attempt().to_string())
            .unwrap_or_default()
    }

    /// The release of this hold goes to the store, also when another task of the client waits for it ([C21](crate::contract#c21)), and also with
    /// [`linger`](crate::Settings::linger).
    ///
    /// For a helper of a backend that proves a hold to others by what the store has of it: the store does not tell apart the tasks to which a
    /// hold is passed on, so the proof would outlive the guard. Readers that have joined it already
    /// ([`readers_join`](crate::Settings::readers_join)) stay in it, and the proof of a read hold lasts as long as they do.
    pub fn not_passed_on(&self) {
        for grip in self.grips() {
            grip.entry.is_not_passed_on();
        }
    }

    /// Whether the hold is good right now. It reads the clock: it turns false as soon as the lease may have passed, even if no
    /// task of this program got to run.
    pub fn is_held(&self) -> bool {
        self.grips()
            .all(|grip| grip.entry.is_held(grip.client.clock.now()))
    }

    /// An error unless the hold is good right now: a step that must not be taken without the lock begins with it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`], with the reason.
    pub fn ensure_held(&self) -> Result<()> {
        if self.is_held() {
            return Ok(());
        }
        Err(self.lost_while_working(self.reason_if_lost()))
    }

    /// Renews the lease now, without waiting until it is due: before a step that may take long.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the hold is gone, and [`ErrorKind::TimedOut`] when the store did not confirm in time; renewals go on
    /// in the background all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping it costs nothing: the renewal is made in the background.
    pub async fn renew_now(&self) -> Result<()> {
        let renewals = self.grips().map(|grip| async {
            let renewed = grip.client.renew_now(&grip.entry).await;
            renewed.map_err(|error| {
                let name = grip.entry.name();
                grip.client.with_context(error, Operation::Renew, &name)
            })
        });
        let mut confirmed = true;
        for renewed in join_all(renewals).await {
            confirmed &= renewed?;
        }
        self.ensure_held()?;
        if confirmed {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::TimedOut,
            "the store did not confirm the renewal; it is tried again in the background",
        )
        .with_held(HeldNow::Yes);
        let client = &self.first.client;
        Err(client.with_context(error, Operation::Renew, &self.name()))
    }

    /// Proof that this guard is a writer's, for functions that must not be called by readers.
    ///
    /// ```
    /// # use dlock_core::{Locks, Writer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// fn rebuild_index(lock: Writer<'_>) { /* lock.token() ... */ }
    ///
    /// let guard = locks.rw_lock("index")?.write().await?;
    /// rebuild_index(guard.writer()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] when it is a reader's or a permit, also after a downgrade; [`ErrorKind::Lost`] when it is lost.
    pub fn writer(&self) -> Result<Writer<'_>> {
        self.ensure_held()?;
        if self
            .grips()
            .all(|grip| grip.entry.mode() == Mode::Exclusive)
        {
            return Ok(Writer(self));
        }
        let error = Error::new(
            ErrorKind::Conflict,
            "this needs the lock for writing, and it is held for reading: take it with write or lock",
        )
        .with_held(HeldNow::Yes);
        let client = &self.first.client;
        Err(client.with_context(error, Operation::Work, &self.name()))
    }

    /// Until when the hold is good if it is not renewed again; `None` when it has no deadline. In the past once it is over.
    pub fn valid_until(&self) -> Option<Moment> {
        self.grips()
            .map(|grip| grip.entry.valid_until())
            .min()
            .filter(|until| *until != Moment::NEVER)
    }

    /// How long the hold is good if it is not renewed again: zero when it is lost, `None` when it has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        if !self.is_held() {
            return Some(Duration::ZERO);
        }
        let now = self.first.client.clock.now();
        self.valid_until().map(|until| until.since(now))
    }

    /// How many guards the owner has on this hold.
    pub fn hold_count(&self) -> u32 {
        self.first.entry.guards()
    }

    /// Resolves with the reason when the hold is lost; never otherwise.
    ///
    /// It fires before the store can have given the lock to another, without a single packet from the store ([C8](crate::contract#c8)), and at
    /// once when the hold has been lost before ([C9](crate::contract#c9)). It works in any executor.
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn lost(&self) -> LossReason {
        self.loss_signal().reason().await
    }

    /// Resolves when somebody else wants the lock, another task of this client or another client; at once if somebody does already
    /// ([C23](crate::contract#c23)). A long holder can then give way: finish the step it is at, release, and ask again at the end of the line.
    ///
    /// Other clients are heard where the store can tell ([`Capability::Wanted`]): at once where it pushes, else with the next renewal. Of
    /// this client's tasks in strict order ([`Order`](crate::Order)) those are heard who cannot share the lock with its holder.
    /// It is a hint: who wanted the lock may have given up since. Of several locks as one, any of them.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn next_step() -> bool { false }
    /// let mutex = locks.mutex("shard:7")?;
    /// let mut guard = mutex.lock().await?;
    /// while next_step().await {
    ///     // Between two steps, whoever waits gets the lock.
    ///     if futures::FutureExt::now_or_never(guard.wanted()).is_some() {
    ///         guard.release().await?;
    ///         guard = mutex.lock().await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn wanted(&self) {
        let grips = self.grips().map(|grip| Box::pin(grip.wanted()));
        let _ = select_all(grips).await;
    }

    /// The loss signal as a value of its own, for a task that watches.
    pub fn loss_signal(&self) -> LossSignal {
        LossSignal {
            watched: self
                .grips()
                .map(|grip| Watched {
                    client: Arc::downgrade(&grip.client),
                    clock: grip.client.clock.clone(),
                    entry: grip.entry.clone(),
                    stay: grip.stay,
                    left: grip.left.clone(),
                })
                .collect(),
        }
    }

    /// Gives the lock back and tells what became of it.
    ///
    /// Renewal stops first. What the store does not confirm within the trip time-out is
    /// [`Released::Unknown`], and is tried again in the background.
    ///
    /// # Errors
    ///
    /// When the store refuses for a reason that a retry cannot mend, for example a permission that was taken away;
    /// [`Error::held_now`] then tells that the lock is still held. It is tried again in the background all the same; on a store
    /// with leases the lease ends it, on one with sessions the end of the session.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<Released> {
        let Self { first, rest, .. } = self;
        if rest.is_empty() {
            return first.release().await;
        }
        let answers = join_all(std::iter::once(first).chain(rest).map(Grip::release)).await;
        // The worst of them speaks for all.
        let mut worst = Released::Freed;
        let mut refused = None;
        for answer in answers {
            worst = match (worst, answer) {
                (worst, Err(error)) => {
                    refused.get_or_insert(error);
                    worst
                }
                (Released::AlreadyLost, _) | (_, Ok(Released::AlreadyLost)) => {
                    Released::AlreadyLost
                }
                (Released::Unknown, _) | (_, Ok(Released::Unknown)) => Released::Unknown,
                (Released::StillHeld, _) | (_, Ok(Released::StillHeld)) => Released::StillHeld,
                _ => Released::Freed,
            };
        }
        match refused {
            Some(error) => Err(error),
            None => Ok(worst),
        }
    }

    /// Turns a writer's hold into a reader's without a moment in between at which another writer could get in.
    ///
    /// From the call on, this guard counts as a reader's, also when the answer was lost: the store is then asked again in
    /// the background, with the next renewal or the release. Repeating it is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when the store cannot, [`ErrorKind::Conflict`] for anything but a writer's single hold,
    /// [`ErrorKind::Lost`] when the hold is gone, and what befalls the trip.
    ///
    /// # Cancel safety
    ///
    /// As for a lost answer.
    pub async fn downgrade(&self) -> Result<()> {
        let Grip { client, entry, .. } = &self.first;
        let with_context = |error| client.with_context(error, Operation::Downgrade, &entry.name());
        if !self.rest.is_empty() || !entry.was_taken_to_write() {
            return Err(with_context(one_writer_alone()));
        }
        if !self.is_held() {
            return Err(with_context(lost_error(self.reason_if_lost())));
        }
        client
            .backend
            .capabilities()
            .require(&[Capability::Downgrade])?;
        client.downgrade(entry).await.map_err(with_context)
    }

    fn reason_if_lost(&self) -> LossReason {
        self.grips()
            .map(|grip| &grip.entry)
            .find(|entry| entry.ending() != Ending::NotYet)
            .map_or(LossReason::Expired, |entry| reason_of(entry))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("mode", &self.mode())
            .field("token", &self.token())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// A guard that is a writer's: see [`Guard::writer`].
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a>(&'a Guard);

impl Deref for Writer<'_> {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        self.0
    }
}
