//! Stores that do wrong to a hold while it lingers at its client (C21).

use std::sync::Arc;

use dlock_conformance::async_trait;
use dlock_core::backend::{Backend, Lease, Renewal};
use dlock_core::{Name, Released, Result};

use super::{Client, Defect};

/// A renewal says that it has extended, and the lease ends all the same.
#[derive(Debug, Default)]
pub(crate) struct LeaseEndsAllTheSame;

#[async_trait]
impl Defect for LeaseEndsAllTheSame {
    async fn renew(&self, _: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        leases.iter().map(|_| Renewal::Extended).collect()
    }
}

/// A release says that it has freed, and the hold stays until its lease is over.
#[derive(Debug, Default)]
pub(crate) struct ReleaseLeavesTheHold;

#[async_trait]
impl Defect for ReleaseLeavesTheHold {
    async fn release(&self, _: &Client, _: &Lease) -> Result<Released> {
        Ok(Released::Freed)
    }
}

/// Says that it tells holders of others, and tells nobody, not even who asks.
#[derive(Debug, Default)]
pub(crate) struct SilentThoughItTells;

#[async_trait]
impl Defect for SilentThoughItTells {
    async fn others_wait(&self, _: &Client, _: &Name) -> bool {
        false
    }

    async fn wanted(&self, _: &Client, _: &Lease) {
        std::future::pending().await
    }
}

/// Tells every holder that others wait.
#[derive(Debug, Default)]
pub(crate) struct CallsAlways;

#[async_trait]
impl Defect for CallsAlways {
    async fn others_wait(&self, _: &Client, _: &Name) -> bool {
        true
    }

    async fn wanted(&self, _: &Client, _: &Lease) {}
}

/// Renewals are answered without the store, also of what another client has meanwhile.
#[derive(Debug, Default)]
pub(crate) struct ExtendsWhatIsGone;

#[async_trait]
impl Defect for ExtendsWhatIsGone {
    async fn renew(&self, client: &Client, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let _ = client.store.renew(leases).await;
        leases.iter().map(|_| Renewal::Extended).collect()
    }
}
