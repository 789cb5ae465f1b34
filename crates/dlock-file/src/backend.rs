use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Busy, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Fairness, Hearing, Liveness, LockInfo, Name, Reach, Released, Result, WakeUp,
};

use crate::access::Access;
use crate::acquire::{LockSpec, Taken};
use crate::connect::{Store, blocking, locked};
use crate::fence::TURNS;
use crate::{renew, wait};

/// One client of a folder of locks.
///
/// Made by [`Config::connect`](crate::Config::connect). Its methods need a tokio runtime with time enabled; I/O is not needed.
#[derive(Debug)]
pub struct FileBackend {
    store: Arc<Store>,
    identity: String,
    capabilities: Capabilities,
}

impl FileBackend {
    pub(crate) fn open(folder: &Path, access: Access) -> Result<Self> {
        let store = Store::open(folder, access)?;
        let mut capabilities = Capabilities::new("file");
        capabilities.fencing = true;
        capabilities.fairness = Fairness::Fifo;
        capabilities.wake_up = WakeUp::Push {
            bound: wait::FIRST_LOOKS,
        };
        capabilities.liveness = Liveness::Process;
        capabilities.reach = Reach::Host;
        capabilities.shared = true;
        capabilities.downgrade = true;
        capabilities.permits = true;
        capabilities.inspect = true;
        // Nobody renews, so a holder would not be told that its lock was broken.
        capabilities.break_lock = false;
        capabilities.turns = TURNS;
        capabilities.wanted = Hearing::Told {
            bound: wait::HOLDERS_LOOK,
        };
        capabilities.durability = "the locks end with their processes; a machine that restarts has none, and tokens go on increasing";
        Ok(Self {
            identity: format!("file:{}", store.folder.display()),
            store: Arc::new(store),
            capabilities,
        })
    }
}

#[async_trait]
impl Backend for FileBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let from = request.now();
        let spec = LockSpec::of(request);
        let outcome = blocking(&self.store, move |store| store.try_acquire(&spec, None)).await?;
        Ok(match outcome {
            Taken::Held { token } => Outcome::Held(Lease::new(request, from).with_token(token)),
            Taken::Busy { .. } => Outcome::Busy(Busy::default()),
        })
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        wait::acquire(&self.store, request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        renew::renew(&self.store, leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let (name, attempt) = (lease.name().clone(), lease.attempt());
        blocking(&self.store, move |store| store.release(&name, attempt)).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        let spec = LockSpec::of(request);
        blocking(&self.store, move |store| store.abandon(&spec)).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let (name, attempt) = (lease.name().clone(), lease.attempt());
        blocking(&self.store, move |store| store.downgrade(&name, attempt)).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let name = name.clone();
        blocking(&self.store, move |store| store.inspect(&name)).await
    }

    async fn others_wait(&self, name: &Name) -> bool {
        wait::is_waited_for(&self.store, name).await
    }

    async fn wanted(&self, lease: &Lease) {
        wait::wanted(&self.store, lease.name()).await;
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let prefix = prefix.to_owned();
        blocking(&self.store, move |store| store.list(&prefix)).await
    }

    async fn close(&self) -> Result<()> {
        locked(&self.store.wake_socket).take();
        locked(&self.store.life).take();
        Ok(())
    }
}
