use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Attempt, Backend, Lease, Renewal, Request};
use dlock_core::{
    Capabilities, Fairness, Liveness, LockInfo, Name, Reach, Released, Result, WakeUp,
};

use crate::config::Config;
use crate::store::Store;

/// One client of an etcd cluster. Made by [`Config::connect`].
#[derive(Debug)]
pub struct EtcdBackend {
    pub(crate) store: Store,
    capabilities: Capabilities,
    identity: String,
}

impl EtcdBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        let store = Store::connect(&config).await?;
        Ok(Self {
            capabilities: capabilities(store.sessions.ttl()),
            identity: config.identity(),
            store,
        })
    }
}

fn capabilities(ttl: Duration) -> Capabilities {
    let mut capabilities = Capabilities::new("etcd");
    capabilities.fencing = true;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = WakeUp::Push {
        bound: Duration::from_millis(50),
    };
    capabilities.liveness = Liveness::Session { ttl };
    capabilities.reach = Reach::Network;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.permits = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.shortest_lease = Duration::from_secs(1);
    capabilities.durability = "a hold is on the disks of a majority before it is granted: it survives the loss of a minority, \
        and a restart of all";
    capabilities
}

#[async_trait]
impl Backend for EtcdBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.store.try_acquire(request).await?)
    }

    async fn acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.store.acquire(request).await?)
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.store.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.store.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.store.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.store.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        Ok(self.store.inspect(name).await?)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        Ok(self.store.list(prefix).await?)
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        if self.store.changed(name, seen).await.is_err() {
            // Those who watch look at intervals in any case.
            std::future::pending::<()>().await;
        }
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        Ok(self.store.break_lock(name).await?)
    }

    async fn close(&self) -> Result<()> {
        Ok(self.store.sessions.close().await?)
    }
}
