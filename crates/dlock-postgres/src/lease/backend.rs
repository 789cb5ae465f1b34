use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capabilities, LockInfo, Name, Released, Result};

use super::LeaseLocks;

/// Mode `lease` as a backend.
#[derive(Debug)]
pub(crate) struct LeaseBackend(pub(crate) Arc<LeaseLocks>);

#[async_trait]
impl Backend for LeaseBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn identity(&self) -> &str {
        &self.0.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(self.0.try_acquire(request).await?)
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.0.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.0.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        Ok(self.0.release(lease).await?)
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        Ok(self.0.abandon(request).await?)
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.0.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        Ok(self.0.inspect(name).await?)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        Ok(self.0.list(prefix).await?)
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        Ok(self.0.break_lock(name).await?)
    }

    async fn others_wait(&self, name: &Name) -> bool {
        // Who cannot be asked is not waited for: a holder gives way to somebody who is there.
        self.0.others_wait(name).await.unwrap_or(false)
    }

    async fn wanted(&self, lease: &Lease) {
        self.0.wanted(lease).await;
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await;
        Ok(())
    }
}
