//! Acquires a lock: with or without patience, in a span of its own, counted and timed once.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use super::spec::{LockSpec, Patience};
use super::walk::Acquire;
use crate::lock::guard::Guard;
use crate::lock::stats::Event;
use crate::{Error, ErrorKind, Moment, Result};

impl LockSpec {
    pub(crate) async fn try_now(&self) -> Result<Option<Guard>> {
        self.acquire(Patience::Try, &self.settings.label).await
    }

    pub(crate) async fn within(&self, limit: Duration) -> Result<Option<Guard>> {
        let patience = Patience::within(limit);
        self.acquire(patience, &self.settings.label).await
    }

    pub(crate) async fn wait(&self) -> Result<Guard> {
        self.wait_as(&self.settings.label).await
    }

    /// Waits as long as the settings allow, with a label of its own.
    pub(crate) async fn wait_as(&self, label: &Arc<str>) -> Result<Guard> {
        let patience = match self.settings.wait_at_most {
            Some(limit) => Patience::within(limit),
            None => Patience::Forever,
        };
        let guard = self.acquire(patience, label).await?;
        guard.ok_or_else(|| {
            let limit = self.settings.wait_at_most.unwrap_or_default();
            let error = Error::new(
                ErrorKind::Busy,
                format!("still held by others after {limit:?}: try later, or wait longer"),
            );
            self.with_context(error)
        })
    }

    pub(crate) async fn acquire(
        &self,
        patience: Patience,
        label: &Arc<str>,
    ) -> Result<Option<Guard>> {
        let span = tracing::debug_span!(
            "dlock_acquire", name = %self.name, mode = %self.mode, backend = self.client.backend_name()
        );
        let started = self.client.clock.now();
        let mut counted = Counted {
            spec: self,
            event: Event::Cancelled,
            started,
        };
        self.client.ledger.stats.begins_to_wait();
        let walk = Acquire {
            spec: self,
            label,
            patience,
            started,
            asked_in: tracing::Span::current().metadata().map(|span| span.name()),
            deadline: match patience {
                Patience::Within(limit) => Some(started + limit),
                _ => None,
            },
        };
        let outcome = walk.walk().instrument(span).await;
        counted.event = match &outcome {
            Ok(Some(guard)) if guard.is_reentry() => Event::Reentered,
            Ok(Some(guard)) if guard.was_passed_on() => Event::PassedOn,
            Ok(Some(_)) => Event::Acquired,
            Ok(None) if patience == Patience::Try => Event::Busy,
            Ok(None) => Event::GaveUp,
            Err(_) => Event::Failed,
        };
        outcome.map_err(|error| self.with_context(error))
    }
}

/// Counts and times every acquire once, also one whose future was dropped.
struct Counted<'a> {
    spec: &'a LockSpec,
    event: Event,
    started: Moment,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let client = &self.spec.client;
        let waited = client.clock.now().since(self.started);
        let group = &self.spec.settings.group;
        client.ledger.stats.ends_to_wait(self.event, waited, group);
    }
}
