use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Attempt, Backend, Lease, Renewal, Request};
use dlock_core::{
    Capabilities, Error, ErrorKind, Fairness, Liveness, LockInfo, Name, Operation, Reach, Released,
    Result, WakeUp,
};

use crate::config::Config;
use crate::connect::Link;
use crate::error::Trouble;
use crate::wait::Listener;
use crate::{schema, server};

/// How soon a waiter that listens wakes, with nobody disturbing.
const BOUND: Duration = Duration::from_millis(50);
/// The longest pause of a waiter that asks.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Locks in PostgreSQL.
///
/// Made by [`Config::connect`]; hand it to [`Locks::new`](dlock_core::Locks::new).
#[derive(Debug)]
pub struct PostgresBackend {
    pub(crate) link: Arc<Link>,
    pub(crate) sql: Statements,
    pub(crate) waiter_lease: Duration,
    pub(crate) listener: Listener,
    capabilities: Capabilities,
    identity: String,
}

/// The statements, with the names of the functions filled in.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) acquire: String,
    pub(crate) release: String,
    pub(crate) renew: String,
    pub(crate) downgrade: String,
    pub(crate) break_lock: String,
    pub(crate) sweep: String,
    pub(crate) inspect: String,
    pub(crate) list: String,
}

impl Statements {
    fn new(config: &Config) -> Self {
        let fill = |sql: &str| schema::statement(sql, config);
        let look = |which: &str| fill(&include_str!("sql/look.sql").replace("{which}", which));
        Self {
            acquire: fill(
                "SELECT said, number, last_token FROM {prefix}acquire($1, $2, $3, $4, $5, $6, $7, $8)",
            ),
            release: fill("SELECT {prefix}release($1, $2, $3)"),
            renew: fill("SELECT renewed, left_out FROM {prefix}renew($1, $2, $3)"),
            downgrade: fill("SELECT {prefix}downgrade($1, $2)"),
            break_lock: fill("SELECT {prefix}break($1)"),
            sweep: fill("SELECT {prefix}sweep($1)"),
            inspect: look("name = $1"),
            list: look("starts_with(name, $1)"),
        }
    }
}

impl PostgresBackend {
    pub(crate) async fn connect(config: Config) -> Result<Self> {
        let explain =
            |error: Error, operation| error.with_backend("postgres").with_operation(operation);
        config
            .check()
            .and_then(|()| config.check_files())
            .map_err(|error| explain(error, Operation::Configure))?;
        Self::open(config)
            .await
            .map_err(|trouble| explain(trouble.into(), Operation::Connect))
    }

    async fn open(config: Config) -> Result<Self, Trouble> {
        let link = Arc::new(Link::new(config.clone()));
        server::look(&link, &config).await?;
        schema::prepare(&link, &config, config.connect_timeout).await?;
        let listens = config.listen && !server::is_pooled(&link).await?;
        let backend = Self {
            sql: Statements::new(&config),
            waiter_lease: config.waiter_lease,
            listener: Listener::new(link.clone(), listens),
            capabilities: capabilities(listens),
            identity: config.identity_text(),
            link,
        };
        backend.rehearse().await?;
        Ok(backend)
    }

    /// Shows a missing permission now: it changes nothing, for no lock has such a name.
    async fn rehearse(&self) -> Result<(), Trouble> {
        let about = |trouble: Trouble| trouble.about("checking what we may do").unsent();
        self.undo("", uuid::Uuid::nil(), Duration::from_micros(1))
            .await
            .map_err(about)?;
        self.ask_about("").await.map_err(about)?;
        Ok(())
    }

    /// Removes the rows of locks that nobody has used for `unused`, and tells how many.
    ///
    /// The row of a free lock stays, which makes the next use quick. Programs that use ever new names call this now and then; for others
    /// there is no need. A hold is never touched, and the tokens of a swept name go on above all that were given before.
    ///
    /// # Errors
    ///
    /// When the server did not confirm.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the sweep may happen or not.
    pub async fn sweep(&self, unused: Duration) -> Result<u64> {
        self.sweep_all(unused)
            .await
            .map_err(|trouble| Error::from(trouble).with_backend("postgres"))
    }
}

fn capabilities(listens: bool) -> Capabilities {
    let mut capabilities = Capabilities::new("postgres");
    capabilities.fencing = true;
    capabilities.fairness = Fairness::Fifo;
    capabilities.wake_up = if listens {
        WakeUp::Push { bound: BOUND }
    } else {
        WakeUp::Poll {
            longest: LONGEST_PAUSE,
        }
    };
    capabilities.liveness = Liveness::Lease;
    capabilities.reach = Reach::Network;
    capabilities.shared = true;
    capabilities.downgrade = true;
    capabilities.permits = true;
    capabilities.inspect = true;
    capabilities.break_lock = true;
    capabilities.durability = "a hold is a committed row: it survives a restart of the server, and a fail-over as far as the standby has received it";
    capabilities
}

#[async_trait]
impl Backend for PostgresBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.attempt(request).await?)
    }

    async fn acquire(&self, request: &Request) -> Result<Attempt> {
        self.wait(request).await
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        self.extend(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        Ok(self.free(lease).await?)
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        Ok(self.give_up(request).await?)
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        if self.share(lease).await? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Lost,
            "the hold is gone, so there is nothing to downgrade",
        ))
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        Ok(self.look(name).await?)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        Ok(self.look_at_all(prefix).await?)
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        Ok(self.free_by_force(name).await?)
    }

    async fn close(&self) -> Result<()> {
        self.listener.close();
        self.link.close().await;
        Ok(())
    }
}
