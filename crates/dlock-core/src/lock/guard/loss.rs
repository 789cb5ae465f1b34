//! Whether a guard's hold is good, until when, and how its loss is told.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use super::Guard;
use crate::engine::client::reason_of;
use crate::engine::entry::Ending;
use crate::lock::signal::{LossSignal, Watched};
use crate::{Error, ErrorKind, HeldNow, LossReason, Moment, Operation, Result};

impl Guard {
    /// Whether the hold is good right now. It reads the clock: it turns false as soon as the lease may have passed, even if no
    /// task of this program got to run.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn import(row: u32) {}
    /// # let rows = [1, 2, 3];
    /// let guard = locks.mutex("import")?.lock().await?;
    /// for row in rows {
    ///     if !guard.is_held() {
    ///         break; // another may be at it by now
    ///     }
    ///     import(row).await;
    /// }
    /// # assert!(guard.is_held());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_held(&self) -> bool {
        self.grips()
            .all(|grip| grip.entry.is_held(grip.client.clock.now()))
    }

    /// An error unless the hold is good right now: a step that must not be taken without the lock begins with it.
    ///
    /// ```
    /// # use dlock_core::{ErrorKind, Guard, Locks};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let backend = dlock_memory::MemoryBackend::new();
    /// # let control = backend.control();
    /// # let locks = Locks::new(backend)?;
    /// async fn pay(guard: &Guard) -> dlock_core::Result<()> {
    ///     // ... what can be repeated ...
    ///     guard.ensure_held()?;
    ///     // ... what cannot be taken back ...
    ///     Ok(())
    /// }
    ///
    /// let guard = locks.mutex("payment:7")?.lock().await?;
    /// pay(&guard).await?;
    /// # control.lose("payment:7");
    /// # let _ = guard.renew_now().await;
    /// // After the hold was lost:
    /// assert_eq!(pay(&guard).await.unwrap_err().kind(), ErrorKind::Lost);
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # fn build_the_index() {}
    /// let guard = locks.mutex("index")?.lock().await?;
    /// guard.renew_now().await?; // so the next step has a whole lease, and an error if the lock is gone
    /// build_the_index();
    /// guard.ensure_held()?;
    /// # Ok(())
    /// # }
    /// ```
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

    /// Until when the hold is good if it is not renewed again; `None` when it has no deadline. In the past once it is over.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// let at_first = guard.valid_until();
    /// guard.renew_now().await?;
    /// assert!(guard.valid_until() >= at_first); // a renewal moves it on
    /// # Ok(())
    /// # }
    /// ```
    pub fn valid_until(&self) -> Option<Moment> {
        self.grips()
            .map(|grip| grip.entry.valid_until())
            .min()
            .filter(|until| *until != Moment::NEVER)
    }

    /// How long the hold is good if it is not renewed again: zero when it is lost, `None` when it has no deadline.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// # async fn call_a_service_that_knows_no_tokens() -> u32 { 7 }
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// let call = call_a_service_that_knows_no_tokens();
    /// let answer = match guard.remaining() {
    ///     Some(left) => tokio::time::timeout(left / 2, call).await.ok(), // over well before another can hold the lock
    ///     None => Some(call.await),
    /// };
    /// # assert_eq!(answer, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        if !self.is_held() {
            return Some(Duration::ZERO);
        }
        let now = self.first.client.clock.now();
        self.valid_until().map(|until| until.since(now))
    }

    /// Resolves with the reason when the hold is lost; never otherwise.
    ///
    /// It fires before the store can have given the lock to another, without a single packet from the store ([C8](crate::contract#c8)), and at
    /// once when the hold has been lost before ([C9](crate::contract#c9)). It works in any executor.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use dlock_core::{Locks, LossReason, Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let backend = dlock_memory::MemoryBackend::new();
    /// # let control = backend.control();
    /// # let settings = Settings::new().lease(Duration::from_millis(300));
    /// # let locks = Locks::builder(backend).settings(settings).build()?;
    /// # async fn write_report() { std::future::pending().await }
    /// let guard = locks.mutex("report")?.lock().await?;
    /// # control.lose("report");
    /// let outcome = tokio::select! {
    ///     () = write_report() => None,
    ///     reason = guard.lost() => Some(reason), // the report is dropped where it is
    /// };
    /// assert_eq!(outcome, Some(LossReason::Gone));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn lost(&self) -> LossReason {
        self.loss_signal().reason().await
    }

    /// The loss signal as a value of its own, for a task that watches.
    ///
    /// ```
    /// # use dlock_core::Locks;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), dlock_core::Error> {
    /// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
    /// let guard = locks.mutex("job")?.lock().await?;
    /// let signal = guard.loss_signal();
    /// let watcher = tokio::spawn(async move {
    ///     match signal.wait().await {
    ///         Some(reason) => println!("tell the workers to stop: {reason}"),
    ///         None => println!("the work is done"),
    ///     }
    /// });
    /// guard.release().await?;
    /// watcher.await.unwrap();
    /// # Ok(())
    /// # }
    /// ```
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

    pub(super) fn reason_if_lost(&self) -> LossReason {
        self.grips()
            .map(|grip| &grip.entry)
            .find(|entry| entry.ending() != Ending::NotYet)
            .map_or(LossReason::Expired, |entry| reason_of(entry))
    }
}
