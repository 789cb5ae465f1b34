use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Fairness, Hearing, Liveness, LockInfo, Name, Operation, Reach, Released, Result,
    WakeUp,
};

use crate::crowd::Crowd;
use crate::current_session::CurrentSession;
use crate::fence::TURNS;
use crate::pace::Pace;
use crate::quiet::Quiet;
use crate::{Config, Style};

/// One client of a ZooKeeper ensemble: one session, which carries all its holds. Made by [`Config::connect`].
#[derive(Debug)]
pub struct ZkBackend {
    pub(crate) sessions: CurrentSession,
    /// Below the chroot.
    pub(crate) folder: String,
    pub(crate) chroot: String,
    pub(crate) style: Style,
    pub(crate) quiet: Quiet,
    pub(crate) crowd: Crowd,
    identity: String,
    capabilities: Capabilities,
}

impl ZkBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        let (folder, chroot) = (config.folder_path(), config.chroot_path().to_owned());
        let (identity, style) = (config.identity_text(), config.style_of_names());
        let sessions = CurrentSession::open(config)
            .await
            .map_err(|error| error.with_backend("zk").with_operation(Operation::Connect))?;
        Ok(Self {
            capabilities: capabilities(sessions.ttl()),
            sessions,
            folder,
            chroot,
            style,
            quiet: Quiet::default(),
            crowd: Crowd::default(),
            identity,
        })
    }

    /// The node of a lock, below the chroot.
    pub(crate) fn lock_path(&self, name: &Name) -> String {
        format!("{}/{}", self.folder, crate::key::encode(name))
    }
}

fn capabilities(ttl: Duration) -> Capabilities {
    let mut capabilities = Capabilities::new("zk");
    capabilities.fencing = true;
    capabilities.turns = TURNS;
    capabilities.wanted = Hearing::Told {
        bound: Duration::from_millis(100),
    };
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = WakeUp::Push {
        bound: Duration::from_millis(100),
    };
    capabilities.liveness = Liveness::Session { ttl };
    capabilities.early_expiry = Pace::of(ttl).early_expiry();
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

/// Each verb has its own file, where a method of the same name does the work: `self.renew` below is that one.
#[async_trait]
impl Backend for ZkBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.list(prefix).await
    }

    /// However many locks there are: a server that is silent ends the connection, and the list with it.
    fn bounds_trips_of_list(&self) -> bool {
        true
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        if self.changed(name, seen).await.is_err() {
            // Those who watch look at intervals in any case.
            std::future::pending::<()>().await;
        }
    }

    async fn others_wait(&self, name: &Name) -> bool {
        // Who cannot be asked is not waited for: a holder gives way to somebody who is there.
        self.others_wait(name).await.unwrap_or(false)
    }

    async fn wanted(&self, lease: &Lease) {
        if self.wanted(lease).await.is_err() {
            // Core asks with each renewal, too.
            std::future::pending::<()>().await;
        }
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.break_lock(name).await
    }

    async fn close(&self) -> Result<()> {
        self.sessions.close().await;
        Ok(())
    }
}
