//! Stores whose waiters wake in the wrong order, all at once, or not in time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::async_trait;
use dlock_core::backend::{AttemptId, Backend, Lease, Outcome, Request};
use dlock_core::{Capabilities, Fairness, LockInfo, Name, Released, Result, WaiterInfo};
use tokio::sync::Notify;

use super::{Client, Defect};

/// A release wakes everybody.
#[derive(Debug, Default)]
pub(crate) struct WakesHerd(Arc<Notify>);

#[async_trait]
impl Defect for WakesHerd {
    fn claim(capabilities: &mut Capabilities) {
        capabilities.fairness = Fairness::None;
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        loop {
            let mut freed = std::pin::pin!(self.0.notified());
            freed.as_mut().enable();
            if let Outcome::Held(lease) = client.store.try_acquire(request).await? {
                return Ok(Outcome::Held(lease));
            }
            request.mark_contended();
            freed.await;
        }
    }

    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        let released = client.store.release(lease).await;
        self.0.notify_waiters();
        released
    }
}

/// Claims to wake its waiters, and lets them look once in a while.
#[derive(Debug, Default)]
pub(crate) struct SleepsOver;

#[async_trait]
impl Defect for SleepsOver {
    fn claim(capabilities: &mut Capabilities) {
        capabilities.fairness = Fairness::None;
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        loop {
            if let Outcome::Held(lease) = client.store.try_acquire(request).await? {
                return Ok(Outcome::Held(lease));
            }
            request.mark_contended();
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
    }
}

/// A queue of its own, in the right order or the wrong one.
#[derive(Debug, Default)]
struct Line(Mutex<Vec<(Name, AttemptId)>>);

impl Line {
    fn enter(&self, request: &Request) {
        let ticket = (request.name().clone(), request.attempt());
        self.0.lock().unwrap().push(ticket);
    }

    fn leave(&self, attempt: AttemptId) {
        self.0.lock().unwrap().retain(|(_, id)| *id != attempt);
    }

    fn of(&self, name: &Name) -> Vec<AttemptId> {
        let line = self.0.lock().unwrap();
        let here = line.iter().filter(|(other, _)| other == name);
        here.map(|(_, id)| *id).collect()
    }

    /// Waits until `is_next` and the lock is free.
    async fn wait(
        &self,
        client: &Client,
        request: &Request,
        is_next: fn(&[AttemptId]) -> Option<&AttemptId>,
    ) -> Result<Outcome> {
        self.enter(request);
        loop {
            if is_next(&self.of(request.name())) == Some(&request.attempt())
                && let Outcome::Held(lease) = client.store.try_acquire(request).await?
            {
                self.leave(request.attempt());
                return Ok(Outcome::Held(lease));
            }
            request.mark_contended();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn inspect(&self, client: &Client, name: &Name) -> Result<LockInfo> {
        let mut info = client.store.inspect(name).await?;
        for attempt in self.of(name) {
            let mode = dlock_core::Mode::Exclusive;
            info.waiters
                .push(WaiterInfo::new(attempt.to_string(), mode));
        }
        Ok(info)
    }
}

/// Last come, first served.
#[derive(Debug, Default)]
pub(crate) struct LastComeFirstServed(Line);

#[async_trait]
impl Defect for LastComeFirstServed {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        self.0.wait(client, request, |line| line.last()).await
    }

    async fn abandon(&self, client: &Client, request: &Request) -> Result<()> {
        self.0.leave(request.attempt());
        client.store.abandon(request).await
    }

    async fn inspect(&self, client: &Client, name: &Name) -> Result<LockInfo> {
        self.0.inspect(client, name).await
    }
}

/// A waiter that died stays in the queue for ever.
#[derive(Debug, Default)]
pub(crate) struct DeadWaiterStalls(Line);

#[async_trait]
impl Defect for DeadWaiterStalls {
    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        self.0.wait(client, request, |line| line.first()).await
    }

    async fn abandon(&self, client: &Client, request: &Request) -> Result<()> {
        self.0.leave(request.attempt());
        client.store.abandon(request).await
    }

    async fn inspect(&self, client: &Client, name: &Name) -> Result<LockInfo> {
        self.0.inspect(client, name).await
    }
}
