use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Error, Fairness, Hearing, Liveness, LockInfo, Name, Operation, Reach, Released,
    Result, WakeUp,
};

use crate::config::Config;
use crate::connect::Cluster;
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::store::Store;

/// One client of an etcd cluster. Made by [`Config::connect`].
#[derive(Debug)]
pub struct EtcdBackend {
    pub(crate) store: Store,
    capabilities: Capabilities,
    identity: String,
}

impl EtcdBackend {
    /// A client over `cluster`, within `limit`.
    pub(crate) async fn connect(
        config: &Config,
        cluster: Cluster,
        limit: Duration,
    ) -> Result<Self> {
        let store = Store::connect(config, cluster, limit).await?;
        Ok(Self {
            capabilities: capabilities(store.sessions.ttl()),
            identity: config.identity(),
            store,
        })
    }
}

impl EtcdBackend {
    /// How many hold a lock or wait for it, by one small answer however long the queue is; [`inspect`](dlock_core::Locks::inspect) reads all of it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// let backend = dlock_etcd::Config::from_url("etcd://localhost")?.connect().await?;
    /// let waiting = backend.queue_length(&dlock_core::Name::new("stock:42")?).await?;
    /// println!("{waiting} hold or want it");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What befalls the trip.
    pub async fn queue_length(&self, name: &Name) -> Result<u64> {
        let asked = self.store.queue_length(name).await;
        asked.map_err(|trouble| about(name, trouble))
    }

    /// How many hold a lock or wait for it before the first task of this client that waits in its queue; `None` when none does. It reads the names of those who
    /// are before, and nothing of those who came later.
    ///
    /// With [`Order::ByClient`](dlock_core::Order::ByClient) a client has one place in the queue, whatever the number of its tasks.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// use std::sync::Arc;
    ///
    /// let backend = Arc::new(dlock_etcd::Config::from_url("etcd://localhost")?.connect().await?);
    /// let locks = dlock_core::Locks::builder(backend.clone()).build()?;
    /// let mutex = locks.mutex("stock:42")?;
    /// let waits = tokio::spawn(async move { mutex.lock().await });
    /// if let Some(before) = backend.queue_position(&dlock_core::Name::new("stock:42")?).await? {
    ///     println!("{before} are before us");
    /// }
    /// # waits.await.ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What befalls the trip.
    pub async fn queue_position(&self, name: &Name) -> Result<Option<u64>> {
        let asked = self.store.queue_position(name).await;
        asked.map_err(|trouble| about(name, trouble))
    }
}

fn about(name: &Name, trouble: Trouble) -> Error {
    Error::from(trouble)
        .with_backend("etcd")
        .with_operation(Operation::Inspect)
        .with_name(name)
}

fn capabilities(ttl: Duration) -> Capabilities {
    let mut capabilities = Capabilities::new("etcd");
    capabilities.fencing = true;
    capabilities.turns = TURNS;
    capabilities.wanted = Hearing::Told {
        bound: Duration::from_millis(50),
    };
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

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(self.store.try_acquire(request).await?)
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
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

    /// Each page has `answer_timeout` at each server, however many pages there are.
    fn bounds_trips_of_list(&self) -> bool {
        true
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        if self.store.changed(name, seen).await.is_err() {
            // Those who watch look at intervals in any case.
            std::future::pending::<()>().await;
        }
    }

    async fn others_wait(&self, name: &Name) -> bool {
        // Who cannot be asked is not waited for: a holder gives way to somebody who is there.
        self.store.others_wait(name).await.unwrap_or(false)
    }

    async fn wanted(&self, lease: &Lease) {
        if self.store.wanted(lease).await.is_err() {
            // Core asks with each renewal, too.
            std::future::pending::<()>().await;
        }
    }

    /// All requests go through one connection, as long as it works. The server may still take up the second before the first: then it finds the entry of the
    /// release in its way, waits behind it, and is told of its end (docs/decisions/0011).
    fn sends_in_order(&self) -> bool {
        true
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        Ok(self.store.break_lock(name).await?)
    }

    async fn close(&self) -> Result<()> {
        Ok(self.store.sessions.close().await?)
    }
}
