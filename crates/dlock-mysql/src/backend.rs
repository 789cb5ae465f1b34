use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Capability, Error, ErrorKind, LockInfo, Name, Operation, Released, Result,
};
#[cfg(feature = "client")]
use mysql_async::Pool;

use crate::carried::{ConnectionBackend, ConnectionLocks};
use crate::config::{Config, LockMode};
use crate::connect::SharedConnections;
use crate::error::Trouble;
use crate::lease::{LeaseBackend, LeaseLocks};
use crate::unique::{UniqueBackend, UniqueLocks};
use crate::{schema, server};

/// Locks in MySQL or MariaDB.
///
/// Made by [`Config::connect`]; hand it to [`Locks::new`](dlock_core::Locks::new).
#[derive(Debug)]
pub struct MySqlBackend {
    locks: Arc<dyn Backend>,
    /// The same, in the modes that can be swept.
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Lease(Arc<LeaseLocks>),
    Unique(Arc<UniqueLocks>),
    None,
}

impl MySqlBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        config
            .check()
            .map_err(|error| Config::URL.with_context(error))?;
        Self::open(config)
            .await
            .map_err(|trouble| Error::from(trouble).with_operation(Operation::Connect))
            .map_err(|error| error.with_backend("mysql"))
    }

    #[cfg(feature = "client")]
    pub(crate) async fn connect_over(mut config: Config, pool: Pool) -> Result<Self> {
        if matches!(config.mode, LockMode::Session | LockMode::Advisory) {
            let refused = Error::new(
                ErrorKind::Unsupported,
                format!(
                    "mode={} ends a hold by closing its connection, and these are the application's: use mode=lease, or connect",
                    config.mode
                ),
            );
            return Err(Config::URL.with_context(refused));
        }
        config.pool = Some(pool);
        Self::connect(config).await
    }

    async fn open(config: Config) -> Result<Self, Trouble> {
        let setup = server::look(&config).await?;
        let shared = Arc::new(SharedConnections::new(config.clone(), setup.shared.clone()));
        let limit = config.connect_timeout;
        schema::prepare(
            &shared,
            config.mode,
            &config.table_prefix,
            config.create_tables,
            limit,
        )
        .await?;
        match config.mode {
            LockMode::Lease => {
                let locks = Arc::new(LeaseLocks::new(shared, &config, &setup));
                locks.rehearse().await?;
                Ok(Self {
                    locks: Arc::new(LeaseBackend(locks.clone())),
                    rows: Rows::Lease(locks),
                })
            }
            LockMode::Unique => {
                let locks = Arc::new(UniqueLocks::new(shared, &config, &setup));
                locks.rehearse().await?;
                Ok(Self {
                    locks: Arc::new(UniqueBackend(locks.clone())),
                    rows: Rows::Unique(locks),
                })
            }
            LockMode::Session | LockMode::Advisory => {
                let locks = ConnectionLocks::new(shared, config, &setup);
                locks.rehearse().await?;
                Ok(Self {
                    locks: Arc::new(ConnectionBackend(locks)),
                    rows: Rows::None,
                })
            }
        }
    }

    /// Removes the rows of locks that nobody has used for `unused`, and tells how many.
    ///
    /// In mode `lease` the row of a free lock stays: it keeps the counter of the tokens. In mode `unique` only the rows of holders that died
    /// stay, until the lock is taken again. Programs that use ever new names call this now and then; for
    /// others there is no need. A hold is never touched, and the tokens of a swept name go on above all that were given before.
    ///
    /// # Errors
    ///
    /// When the server did not confirm; [`ErrorKind::Unsupported`] in the other modes, whose rows stay.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the sweep may happen or not.
    pub async fn sweep(&self, unused: Duration) -> Result<u64> {
        let swept = match &self.rows {
            Rows::Lease(rows) => rows.sweep(unused).await,
            Rows::Unique(rows) => rows.sweep(unused).await,
            Rows::None => Err(Trouble::new(
                ErrorKind::Unsupported,
                "the rows of this mode are not swept: use mode=lease for ever new names",
            )),
        };
        swept.map_err(|trouble| Error::from(trouble).with_backend("mysql"))
    }
}

#[async_trait]
#[deny(
    clippy::missing_trait_methods,
    reason = "a default would answer in place of the mode's own method"
)]
impl Backend for MySqlBackend {
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
