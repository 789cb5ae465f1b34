//! Stores that do not keep the request as it is: another name, another lease.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::async_trait;
use dlock_core::backend::{AttemptId, Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{LockInfo, Name, Released, Result};

use super::{Client, Defect};

/// How a request is changed on its way.
pub(crate) trait Change: std::fmt::Debug + Default + Send + Sync + 'static {
    fn name(name: &str) -> String {
        name.to_owned()
    }

    fn lease(lease: Duration) -> Duration {
        lease
    }
}

/// `Stock` and `stock` are one lock.
#[derive(Debug, Default)]
pub(crate) struct LowerCase;

impl Change for LowerCase {
    fn name(name: &str) -> String {
        name.to_lowercase()
    }
}

/// Spaces at the end do not count (as in a CHAR column).
#[derive(Debug, Default)]
pub(crate) struct TrimEnd;

impl Change for TrimEnd {
    fn name(name: &str) -> String {
        name.trim_end().to_owned()
    }
}

/// Only the first 64 bytes count (as the names of GET_LOCK).
#[derive(Debug, Default)]
pub(crate) struct Cut64;

impl Change for Cut64 {
    fn name(name: &str) -> String {
        let end = (0..=64).rev().find(|end| name.is_char_boundary(*end));
        name.get(..end.unwrap_or(0)).unwrap_or(name).to_owned()
    }
}

/// The store keeps holds for an hour, whatever the lease.
#[derive(Debug, Default)]
pub(crate) struct NeverExpires;

impl Change for NeverExpires {
    fn lease(_: Duration) -> Duration {
        Duration::from_secs(3600)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Changed<C> {
    sent: Mutex<HashMap<AttemptId, Arc<Request>>>,
    change: PhantomData<C>,
}

impl<C: Change> Changed<C> {
    fn sent(&self, request: &Request) -> Arc<Request> {
        let mut sent = self.sent.lock().unwrap();
        let changed = sent.entry(request.attempt()).or_insert_with(|| {
            let name = Name::new(C::name(request.name())).unwrap();
            let changed = Request::new(name, request.mode(), request.clock().clone())
                .with_lease(C::lease(request.lease()))
                .with_deadline(request.deadline())
                .with_label(request.label().into());
            Arc::new(changed)
        });
        changed.clone()
    }

    fn inner(&self, lease: &Lease) -> Lease {
        match self.sent.lock().unwrap().get(&lease.attempt()) {
            Some(sent) => Lease::new(sent, lease.counted_from()),
            None => lease.clone(),
        }
    }
}

fn back(attempt: Outcome, request: &Request) -> Outcome {
    match attempt {
        Outcome::Held(lease) => {
            let token = lease.token().map_or(0, u64::from);
            Outcome::Held(Lease::new(request, lease.counted_from()).with_token(token))
        }
        busy => busy,
    }
}

#[async_trait]
impl<C: Change> Defect for Changed<C> {
    async fn try_acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let sent = self.sent(request);
        Ok(back(client.store.try_acquire(&sent).await?, request))
    }

    async fn acquire(&self, client: &Client, request: &Request) -> Result<Outcome> {
        let sent = self.sent(request);
        if let Outcome::Held(lease) = client.store.try_acquire(&sent).await? {
            return Ok(back(Outcome::Held(lease), request));
        }
        request.mark_contended();
        Ok(back(client.store.acquire(&sent).await?, request))
    }

    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let inner: Vec<_> = leases.iter().map(|l| Arc::new(self.inner(l))).collect();
        client.store.renew(&inner).await
    }

    async fn release(&self, client: &Client, lease: &Lease) -> Result<Released> {
        client.store.release(&self.inner(lease)).await
    }

    async fn abandon(&self, client: &Client, request: &Request) -> Result<()> {
        client.store.abandon(&self.sent(request)).await
    }

    async fn downgrade(&self, client: &Client, lease: &Lease) -> Result<()> {
        client.store.downgrade(&self.inner(lease)).await
    }

    async fn inspect(&self, client: &Client, name: &Name) -> Result<LockInfo> {
        client.store.inspect(&Name::new(C::name(name))?).await
    }
}
