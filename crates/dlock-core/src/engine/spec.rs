//! What a lock handle asks for: which lock, how, for whom, and how long the caller is ready to wait.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::client::Client;
use crate::lock::settings::ResolvedSettings;
use crate::{Error, LockInfo, Mode, Name, Operation, Owner, Result};

/// How long the caller is ready to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    Try,
    Within(Duration),
    Forever,
}

impl Patience {
    pub(crate) fn within(limit: Duration) -> Self {
        if limit.is_zero() {
            Self::Try
        } else {
            Self::Within(limit)
        }
    }
}

/// What a lock handle is made of: which lock of which client, how it is held, and for whom.
#[derive(Debug, Clone)]
pub(crate) struct LockSpec {
    pub(crate) client: Arc<Client>,
    pub(crate) settings: Arc<ResolvedSettings>,
    pub(crate) name: Name,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<Owner>,
}

impl LockSpec {
    /// The same lock in another mode.
    pub(crate) fn with_mode(&self, mode: Mode) -> Self {
        Self {
            mode,
            ..self.clone()
        }
    }

    /// Waits with somebody, and tells when that lasts long, with who holds: it may be the very task that waits.
    ///
    /// Timers cost more than a local hand-over, so only those use it who ask the store or are the first to wait for their turn.
    pub(super) async fn tell_when_long<T>(&self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        // Most waits are over before a timer is worth it.
        if let Poll::Ready(outcome) = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await {
            return outcome;
        }
        let Some(after) = self.settings.warn_after else {
            return wait.await;
        };
        let clock = &self.client.clock;
        let at = clock.now() + after;
        tokio::select! {
            biased;
            outcome = &mut wait => return outcome,
            () = clock.sleep_until(at) => {}
        }
        tokio::select! {
            biased;
            outcome = &mut wait => return outcome,
            () = self.tell_who_holds(after) => {}
        }
        wait.await
    }

    async fn tell_who_holds(&self, after: Duration) {
        let name = &self.name;
        let now = self.client.clock.now();
        if let Some(hold) = self.client.queue.holder(name, now) {
            let taken_in = hold.taken_in().unwrap_or("no span");
            tracing::warn!(
                %name, waited = ?after, taken_in,
                "this very client holds the lock it waits for: a task that waits for itself needs an Owner, or waits for ever"
            );
            return;
        }
        let info = self.inspect().await;
        let holders = info.map(|info| {
            let labels = info.holders.into_iter().map(|holder| holder.label);
            labels.collect::<Vec<_>>().join(", ")
        });
        match holders {
            Ok(holders) => {
                tracing::warn!(%name, waited = ?after, %holders, "still waiting for a lock")
            }
            Err(error) => {
                tracing::warn!(%name, waited = ?after, %error, "still waiting for a lock")
            }
        }
    }

    /// Who holds and who waits.
    pub(crate) async fn inspect(&self) -> Result<LockInfo> {
        self.client
            .query(
                &self.settings,
                Operation::Inspect,
                self.client.backend.inspect(&self.name),
            )
            .await
    }

    pub(super) fn with_context(&self, error: Error) -> Error {
        self.client
            .with_context(error, Operation::Acquire, &self.name)
    }
}
