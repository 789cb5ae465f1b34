//! Mode `lease`: one row for each lock, with the time until which it is held.

mod acquire;
mod inspect;
mod release;
mod renew;
mod statements;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, Error, ErrorKind, Hearing, Liveness, LockInfo, Mode, Name, Reach, Released,
    Result,
};

use self::statements::Statements;
use crate::bell::{self, Bells};
use crate::config::Config;
use crate::connect::SharedConnections;
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::server::Setup;
use crate::wait::{self, Tried, Tries};
use crate::waiters::Waiters;

#[derive(Debug)]
pub(crate) struct LeaseLocks {
    shared: Arc<SharedConnections>,
    sql: Statements,
    waiters: Waiters,
    bells: Arc<Bells>,
    /// For calls without a limit of their own.
    limit: Duration,
    capabilities: Capabilities,
    identity: String,
}

impl LeaseLocks {
    pub(crate) fn new(shared: Arc<SharedConnections>, config: &Config, setup: &Setup) -> Self {
        let mut capabilities = Capabilities::new("mysql");
        capabilities.fencing = true;
        capabilities.turns = TURNS;
        capabilities.wanted = Hearing::Asks;
        let bells = Bells::new(config, setup);
        wait::declare(&bells, &mut capabilities);
        capabilities.liveness = Liveness::Lease;
        capabilities.reach = Reach::Network;
        capabilities.shared = true;
        capabilities.downgrade = true;
        capabilities.permits = true;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.durability = "a hold is a committed row: it survives a restart of the server as far as \
             innodb_flush_log_at_trx_commit allows, and a fail-over as far as the replica has received it";
        Self {
            waiters: Waiters::of_lease(&shared, &config.table_prefix, setup.takes_writes),
            shared,
            sql: Statements::new(&config.table_prefix, setup.takes_writes, bells.are_on()),
            bells,
            limit: config.answer_timeout,
            capabilities,
            identity: config.identity_text(),
        }
    }

    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let sql = &self.sql;
        let mut hot = vec![sql.acquire.as_str(), &sql.acquire_closely];
        hot.extend([sql.release.as_str(), &sql.first_use, &sql.peek]);
        hot.extend(sql.extend.of_one());
        self.shared.rehearse(&hot).await
    }
}

#[async_trait]
impl Tries for LeaseLocks {
    async fn attempt(&self, request: &Request, look_first: bool) -> Result<Tried, Trouble> {
        match request.mode() {
            Mode::Exclusive => self.take(request, look_first).await,
            Mode::Shared => self.take_part(request, 0).await,
            Mode::Permit { limit } => self.take_part(request, limit).await,
            other => Err(Trouble::new(
                ErrorKind::Unsupported,
                format!("this backend does not know the mode \"{other}\": update it"),
            )
            .unsent()),
        }
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn bells(&self) -> &Arc<Bells> {
        &self.bells
    }
}

#[async_trait]
impl Backend for LeaseLocks {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(self.attempt(request, false).await?.into())
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(wait::acquire(self, request).await?)
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let renewals = self.extend(leases).await;
        bell::ring_lost(leases, &renewals);
        renewals
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        let freed = self.free(lease).await;
        // Behind the commit, or the one that is woken would find the lock held. Whatever became of it: the next one asks the row.
        bell::ring(lease);
        Ok(freed?)
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        Ok(self.undo(request).await?)
    }

    async fn downgrade(&self, lease: &Lease) -> Result<()> {
        if self.share(lease).await? {
            // Those who wait may share the lock now.
            bell::ring(lease);
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
        let ended = self.free_by_force(name).await?;
        if ended {
            self.bells
                .free_by_force(&self.shared, name, self.limit / 4)
                .await;
        }
        Ok(ended)
    }

    async fn others_wait(&self, name: &Name) -> bool {
        self.waiters.others_wait(name, self.limit).await
    }

    async fn close(&self) -> Result<()> {
        self.bells.close().await;
        self.shared.close().await;
        Ok(())
    }
}
