use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static CURRENT: Owner;
}

/// Who holds, for reentrancy: an owner that holds a lock enters it again at once, is counted, and frees it with its last
/// guard.
///
/// Two acquires without an owner always exclude each other, even in one task ([C2](crate::contract#c2)). Async tasks move between
/// threads, so a thread id means nothing: an owner is a value. Give it to a lock with `owned_by`, or run a future inside
/// [`scope`](Owner::scope), and all locks taken in it belong to the owner. A re-entry sends nothing to the store.
///
/// An owner is meant for one line of work. **Two branches of one scope are inside together:** with `join!` or `select!` in a scope, one
/// branch holds the lock and the other enters it again, so the lock does not keep them apart. Give each branch an owner of its own.
///
/// When one of two tasks of an owner gets a lock for which both wait, the other enters it too. Only one that waits to write what the first one
/// reads waits for it, as anybody else does: nobody can enter a reader's hold to write.
///
/// ```
/// # use dlock_core::{Locks, Owner};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let stock = locks.mutex("stock:42")?;
/// Owner::new()
///     .scope(async {
///         let outer = stock.lock().await?;
///         let inner = stock.lock().await?; // would wait for ever without the scope
///         assert_eq!(inner.hold_count(), 2);
///         assert_eq!(inner.token(), outer.token());
///         Ok(())
///     })
///     .await
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// A new owner, unlike any other of this process.
    ///
    /// ```
    /// # use dlock_core::{Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let stock = locks.mutex("stock:42")?.owned_by(Owner::new());
    /// let outer = stock.lock().await?;
    /// let inner = stock.lock().await?; // enters again
    /// # Ok(())
    /// # }
    /// ```
    #[allow(
        clippy::new_without_default,
        reason = "each one is different, which nobody expects of a default"
    )]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs `work` with this owner for every lock taken in it.
    ///
    /// Tasks that it spawns are not in the scope: they are other lines of work.
    ///
    /// ```
    /// # use dlock_core::{Locks, Owner};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// /// Takes the lock it needs, and need not know whether its caller has it.
    /// async fn book(locks: &Locks) -> dlock_core::Result<()> {
    ///     locks.mutex("stock:42")?.run(async |_| { /* ... */ }).await
    /// }
    ///
    /// let order = Owner::new().scope(async {
    ///     let guard = locks.mutex("stock:42")?.lock().await?;
    ///     book(&locks).await
    /// });
    /// order.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// The owner of the scope we are in.
    ///
    /// ```
    /// # use dlock_core::Owner;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// assert_eq!(Owner::current(), None);
    /// let owner = Owner::new();
    /// // A task of the same line of work gets the scope handed on.
    /// let inner = owner.scope(async {
    ///     let mine = Owner::current().expect("in a scope");
    ///     tokio::spawn(mine.scope(async { Owner::current() })).await.unwrap()
    /// });
    /// assert_eq!(inner.await, Some(owner));
    /// # }
    /// ```
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|owner| *owner).ok()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}
