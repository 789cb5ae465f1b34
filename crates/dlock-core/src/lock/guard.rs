mod grip;
mod leave;
mod loss;
mod run;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use futures::future::select_all;

use self::grip::Grip;
use crate::engine::client::Client;
use crate::engine::entry::Entry;
use crate::engine::queue::Hold;
use crate::lock::settings::ResolvedSettings;
use crate::{Error, ErrorKind, FencingToken, HeldNow, Mode, Moment, Name, Operation, Result};

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
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// assert_eq!(guard.name().as_str(), "stock:42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> Name {
        self.first.entry.name()
    }

    /// How it is held.
    ///
    /// ```
    /// # use dlock_core::{Locks, Mode};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.rw_lock("catalogue")?.write().await?;
    /// assert_eq!(guard.mode(), Mode::Exclusive);
    /// guard.downgrade().await?;
    /// assert_eq!(guard.mode(), Mode::Shared);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(&self) -> Mode {
        self.first.entry.mode()
    }

    /// The fencing token: hand it to the protected resource with every write. `None` when the store has none.
    ///
    /// Of several locks as one it is the first lock's; [`tokens`](Guard::tokens) gives them all.
    ///
    /// ```
    /// # use dlock_core::{FencingToken, Locks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # let mut highest = None;
    /// // In the store of the data, which keeps the highest token that it has seen.
    /// let mut write = |token: Option<FencingToken>| {
    ///     let is_late = token < highest;
    ///     highest = highest.max(token);
    ///     !is_late
    /// };
    ///
    /// let mutex = locks.mutex("report")?;
    /// let first = mutex.lock().await?;
    /// let of_first = first.token();
    /// first.release().await?;
    /// let second = mutex.lock().await?;
    /// assert!(write(second.token()));
    /// assert!(!write(of_first)); // a write of the first holder that comes late is refused
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> Option<FencingToken> {
        self.first.token()
    }

    /// Every lock of this guard with its token.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let both = locks.multi(["account:1", "account:2"])?.lock().await?;
    /// for (name, token) in both.tokens() {
    ///     println!("what is written to {name} carries {token:?}");
    /// }
    /// # assert_eq!(both.tokens().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tokens(&self) -> Vec<(Name, Option<FencingToken>)> {
        self.grips()
            .map(|grip| (grip.entry.name(), grip.token()))
            .collect()
    }

    /// The owner as it is written in the store, which `inspect` shows.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// let info = locks.inspect("stock:42").await?;
    /// assert_eq!(info.holders[0].owner, guard.owner_id()); // the holder that others see is this one
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// guard.not_passed_on();
    /// let proof = guard.owner_id(); // goes to a service, which asks the store whether this one holds
    /// guard.release().await?;
    /// let info = locks.inspect("stock:42").await?;
    /// assert!(info.holders.iter().all(|holder| holder.owner != proof)); // as soon as it is released, it proves nothing
    /// # Ok(())
    /// # }
    /// ```
    pub fn not_passed_on(&self) {
        for grip in self.grips() {
            grip.entry.is_not_passed_on();
        }
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

    /// How many guards the owner has on this hold.
    ///
    /// ```
    /// # use dlock_core::{Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let stock = locks.mutex("stock:42")?.owned_by(Owner::new());
    /// let outer = stock.lock().await?;
    /// let inner = stock.lock().await?; // the same hold, entered again
    /// assert_eq!(outer.hold_count(), 2);
    /// inner.release().await?;
    /// assert_eq!(outer.hold_count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_count(&self) -> u32 {
        self.first.entry.guards()
    }

    /// Resolves when somebody else wants the lock, another task of this client or another client; at once if somebody does already
    /// ([C23](crate::contract#c23)). A long holder can then give way: finish the step it is at, release, and ask again at the end of the line.
    ///
    /// Other clients are heard where the store can tell ([`Capability::Wanted`](crate::Capability::Wanted)): at once where it pushes, else with the next renewal. Of
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
