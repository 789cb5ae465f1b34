//! Locks as people and tools see them, whoever holds them: one, all of them, and one that is freed by force.

use super::Locks;
use crate::name::check_text;
use crate::{LockInfo, Name, Operation, Result};

impl Locks {
    /// Who holds a lock and who waits for it.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # let guard = locks.mutex("stock:42")?.lock().await?;
    /// let info = locks.inspect("stock:42").await?;
    /// for holder in &info.holders {
    ///     println!("{} holds it as {}, with the token {:?}", holder.label, holder.mode, holder.token);
    /// }
    /// println!("{} wait", info.waiters.len());
    /// # assert_eq!(info.holders.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = Name::new(name)?;
        self.trip(Operation::Inspect, self.client.backend.inspect(&name))
            .await
    }

    /// All locks held in the store whose name starts with `prefix`, sorted by name. An empty prefix lists all.
    ///
    /// On Redis, Redlock, etcd and ZooKeeper, which answer in many parts, it takes as long as the store goes on answering; elsewhere the
    /// whole has [`trip_timeout`](crate::Settings::trip_timeout).
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let one = locks.mutex("stock:42")?.lock().await?;
    /// let two = locks.mutex("stock:7")?.lock().await?;
    /// let names: Vec<String> = locks.list("stock:").await?.into_iter().map(|lock| lock.name.into()).collect();
    /// assert_eq!(names, ["stock:42", "stock:7"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store cannot be asked, or cannot tell.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockInfo>> {
        let prefix = prefix.as_ref();
        check_text("a prefix", prefix, Name::MAX_BYTES)?;
        let backend = &self.client.backend;
        let list = backend.list(prefix);
        if backend.bounds_trips_of_list() {
            return self.client.answer(Operation::List, list).await;
        }
        self.trip(Operation::List, list).await
    }

    /// Frees a lock by force, whoever holds it; `true` when somebody did.
    ///
    /// The holder is told with its next renewal at the latest, and may be at work until then: only the fencing token protects the
    /// resource from it.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let store = dlock_memory::MemoryBackend::new();
    /// # let (locks, theirs) = (Locks::new(store.another_client())?, Locks::new(store)?);
    /// let stuck = theirs.mutex("nightly")?.lock().await?; // a job that hangs, on a machine that nobody can reach
    /// assert!(locks.break_lock("nightly").await?);
    /// let guard = locks.mutex("nightly")?.lock().await?;
    /// assert!(guard.token() > stuck.token()); // so what the job may still write can be refused
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the store did not confirm.
    pub async fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = Name::new(name)?;
        // What this client holds must not be passed on, be joined or linger after it was broken.
        let now = self.client.clock.now();
        if let Some(hold) = self.client.queue.holder(&name, now) {
            hold.is_not_passed_on();
        }
        self.client.ledger.nobody_joins(&name);
        let broken = self
            .trip(Operation::Break, async {
                let resting = self.client.queue.resting(&name);
                let lingered = resting.is_some();
                if let Some(resting) = resting {
                    self.client.end_rest(&resting).await?;
                }
                let broken = self.client.backend.break_lock(&name).await?;
                Ok(broken || lingered)
            })
            .await;
        // Once more, for a reader that was granted meanwhile.
        self.client.ledger.nobody_joins(&name);
        let broken = broken?;
        if broken {
            tracing::warn!(%name, backend = self.client.backend_name(), "lock broken by force");
        }
        Ok(broken)
    }

    async fn trip<T>(
        &self,
        operation: Operation,
        trip: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.client.query(&self.settings, operation, trip).await
    }
}
