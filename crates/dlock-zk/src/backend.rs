use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{
    Attempt, Backend, Capabilities, Fairness, Lease, Liveness, LockInfo, Name, Operation, Reach,
    Released, Renewal, Request, Result, WakeUp,
};

use crate::Config;
use crate::link::Link;
use crate::quiet::Quiet;

/// One client of a ZooKeeper ensemble: one session, which carries all its holds. Made by [`Config::connect`].
#[derive(Debug)]
pub struct ZkBackend {
    pub(crate) link: Link,
    /// Below the chroot.
    pub(crate) folder: String,
    pub(crate) chroot: String,
    pub(crate) quiet: Quiet,
    identity: String,
    capabilities: Capabilities,
}

impl ZkBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        let (folder, chroot) = (config.folder_path(), config.chroot_path().to_owned());
        let identity = config.identity_text();
        let link = Link::open(config)
            .await
            .map_err(|error| error.with_backend("zk").with_operation(Operation::Connect))?;
        Ok(Self {
            capabilities: capabilities(link.ttl()),
            link,
            folder,
            chroot,
            quiet: Quiet::default(),
            identity,
        })
    }

    /// The node of a lock, below the chroot.
    pub(crate) fn lock_path(&self, name: &Name) -> String {
        format!("{}/{}", self.folder, crate::key::encode(name))
    }
}

/// How much sooner than expected a session can end.
///
/// A renewal proves that the leader knows the session, not that it has just heard of it: followers report signs of life every half tick,
/// and one that is cut off together with its client reports none of those since. A session is at least two ticks long, so
/// half a tick is at most a quarter of it; and the sign of life before the lost ones is one heartbeat of the client older.
fn early_end(ttl: Duration) -> Duration {
    let heartbeat = (ttl * 2 / 5).min(Duration::from_secs(4)) * 3 / 8;
    ttl / 4 + heartbeat
}

fn capabilities(ttl: Duration) -> Capabilities {
    let mut capabilities = Capabilities::new("zk");
    capabilities.fencing = true;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = WakeUp::Push {
        bound: Duration::from_millis(100),
    };
    capabilities.liveness = Liveness::Session { ttl };
    capabilities.early_end = early_end(ttl);
    capabilities.reach = Reach::Network;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.permits = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.durability =
        "a hold is on the disks of a majority of the ensemble before it is granted";
    capabilities
}

#[async_trait]
impl Backend for ZkBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        self.try_now(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Attempt> {
        self.wait(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.prove(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.free(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.undo(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.share(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.look_at(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.look_at_all(prefix).await
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.break_hold(name).await
    }

    async fn close(&self) -> Result<()> {
        self.link.close().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ends_half_a_tick_and_a_heartbeat_early() {
        let ms = Duration::from_millis;
        // Sessions of two ticks, the shortest that a server grants, and the default one.
        for (ttl, early) in [(400, 160), (4_000, 1_600), (30_000, 9_000)] {
            assert_eq!(early_end(ms(ttl)), ms(early), "{ttl}");
        }
    }
}
