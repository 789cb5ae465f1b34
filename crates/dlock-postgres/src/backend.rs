use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Capability, Error, ErrorKind, LockInfo, Name, Operation, Released, Result,
};

use crate::config::{Config, LockMode};
use crate::connect::SharedConnections;
use crate::error::Trouble;
use crate::lease::{LeaseBackend, LeaseLocks};
use crate::session::{SessionBackend, SessionLocks};
use crate::{schema, server};

/// Locks in PostgreSQL.
///
/// Made by [`Config::connect`]; hand it to [`Locks::new`](dlock_core::Locks::new).
#[derive(Debug)]
pub struct PostgresBackend {
    locks: Arc<dyn Backend>,
    /// The same, in the mode that can be swept.
    lease: Option<Arc<LeaseLocks>>,
}

impl PostgresBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        config
            .check()
            .map_err(|error| Config::URL.with_context(error))?;
        Self::open(config)
            .await
            .map_err(|trouble| Error::from(trouble).with_operation(Operation::Connect))
            .map_err(|error| error.with_backend("postgres"))
    }

    async fn open(config: Config) -> Result<Self, Trouble> {
        let shared = Arc::new(SharedConnections::new(config.clone()));
        server::look(&shared, &config).await?;
        let store = schema::prepare(&shared, &config, config.connect_timeout).await?;
        #[cfg(any(feature = "deadpool", feature = "sqlx"))]
        if config.guest.is_some() && !config.servers.is_empty() {
            server::check_listener(&shared, &config, &store).await?;
        }
        let identity = store.text(&config);
        let ask = config.mode == LockMode::Session || config.listen || config.prepare;
        // A pool of the user may be all we have.
        let direct = ask && !config.servers.is_empty() && !server::is_pooled(&shared).await?;
        let prepare = config.prepare && direct;
        match config.mode {
            LockMode::Lease => {
                let listens = config.listen && direct;
                let locks = LeaseLocks::new(shared.clone(), &config, identity, listens);
                if prepare {
                    shared.set_direct(locks.often());
                }
                let locks = Arc::new(locks);
                locks.rehearse().await?;
                Ok(Self {
                    locks: Arc::new(LeaseBackend(locks.clone())),
                    lease: Some(locks),
                })
            }
            LockMode::Session if !direct => Err(server::pooled()),
            LockMode::Session => {
                let locks = SessionLocks::new(shared, config, identity);
                locks.rehearse().await?;
                Ok(Self {
                    locks: Arc::new(SessionBackend(locks)),
                    lease: None,
                })
            }
        }
    }

    /// Removes the rows of locks that nobody has used for `unused`, and tells how many.
    ///
    /// The row of a free lock stays, which makes the next use quick. Programs that use ever new names call this now and then; for others
    /// there is no need. A hold is never touched, and the tokens of a swept name go on above all that were given before.
    ///
    /// # Errors
    ///
    /// When the server did not confirm; [`ErrorKind::Unsupported`] in mode `session`, whose rows stay.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the sweep may happen or not.
    pub async fn sweep(&self, unused: Duration) -> Result<u64> {
        let swept = match &self.lease {
            Some(lease) => lease.sweep_all(unused).await,
            None => Err(Trouble::new(
                ErrorKind::Unsupported,
                "the rows of this mode are not swept: use mode=lease for ever new names",
            )),
        };
        swept.map_err(|trouble| Error::from(trouble).with_backend("postgres"))
    }
}

#[async_trait]
#[deny(
    clippy::missing_trait_methods,
    reason = "a default would answer in place of the mode's own method"
)]
impl Backend for PostgresBackend {
    fn capabilities(&self) -> &Capabilities {
        self.locks.capabilities()
    }

    fn identity(&self) -> &str {
        self.locks.identity()
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        self.locks.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        self.locks.acquire(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.locks.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        self.locks.release(lease).await
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        self.locks.abandon(request).await
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        self.locks.downgrade(lease).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.locks.inspect(name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.locks.list(prefix).await
    }

    fn bounds_trips_of_list(&self) -> bool {
        self.locks.bounds_trips_of_list()
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        self.locks.break_lock(name).await
    }

    async fn others_wait(&self, name: &Name) -> bool {
        self.locks.others_wait(name).await
    }

    async fn changed(&self, name: &Name, seen: Option<&str>) {
        self.locks.changed(name, seen).await;
    }

    async fn wanted(&self, lease: &Lease) {
        self.locks.wanted(lease).await;
    }

    fn sends_in_order(&self) -> bool {
        self.locks.sends_in_order()
    }

    async fn close(&self) -> Result<()> {
        self.locks.close().await
    }

    fn lacks(&self, capability: Capability) -> Error {
        self.locks.lacks(capability)
    }
}
