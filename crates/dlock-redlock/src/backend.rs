use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Error, Fairness, Hearing, Liveness, LockInfo, Name, Operation, Reach, Released,
    Result, WakeUp,
};

use crate::config::Config;
use crate::connect::Nodes;
use crate::fence::TURNS;

/// Locks at a quorum of independent Redis servers.
///
/// Made by [`Config::connect`]; hand it to [`Locks::new`](dlock_core::Locks::new).
#[derive(Debug)]
pub struct RedlockBackend {
    nodes: Arc<Nodes>,
    capabilities: Capabilities,
    identity: String,
}

impl RedlockBackend {
    pub(crate) async fn connect(config: &Config) -> Result<Self> {
        let at =
            |operation| move |error: Error| error.with_backend("redlock").with_operation(operation);
        let nodes = Nodes::new(config).map_err(at(Operation::Configure))?;
        nodes.connect().await.map_err(at(Operation::Connect))?;
        Ok(Self {
            nodes: Arc::new(nodes),
            capabilities: capabilities(config),
            identity: config.identity(),
        })
    }
}

/// What a node has not confirmed by now ends with its lease.
impl Drop for RedlockBackend {
    fn drop(&mut self) {
        self.nodes.stop();
    }
}

/// Normally it is a millisecond or two.
const TOLD_WITHIN: Duration = Duration::from_millis(50);

fn capabilities(config: &Config) -> Capabilities {
    let mut capabilities = Capabilities::new("redlock");
    capabilities.fencing = true;
    capabilities.turns = TURNS;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = WakeUp::Push { bound: TOLD_WITHIN };
    capabilities.wanted = Hearing::Told { bound: TOLD_WITHIN };
    capabilities.liveness = Liveness::Lease;
    capabilities.reach = Reach::Network;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.durability = if config.persistent {
        "a hold is at a quorum of nodes, each of which keeps every write: it survives restarts, and the loss of a minority"
    } else {
        "a hold is in memory at a quorum of nodes: it survives the loss of a minority; a node that restarts does not count until \
         the longest lease has passed"
    };
    capabilities
}

#[async_trait]
impl Backend for RedlockBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.nodes.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.nodes.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.nodes.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.nodes.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.nodes.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.nodes.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.nodes.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.nodes.list(prefix).await
    }

    /// A node is asked for signs of life meanwhile, and given up when there is none.
    fn bounds_trips_of_list(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.nodes.break_lock(name).await
    }

    async fn others_wait(&self, name: &Name) -> bool {
        self.nodes.others_wait(name).await
    }

    async fn wanted(&self, lease: &Lease) {
        Box::pin(self.nodes.wanted(lease)).await;
    }

    async fn close(&self) -> Result<()> {
        self.nodes.close().await;
        Ok(())
    }
}
