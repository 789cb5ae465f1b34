//! Mode `lease`: one row for each lock, with the time until which it is held.

mod acquire;
mod backend;
mod inspect;
mod release;
mod renew;
mod statements;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Outcome, Request};
use dlock_core::{Capabilities, Hearing, Liveness, Name, Reach};

pub(crate) use self::backend::LeaseBackend;
use self::statements::Statements;
use crate::bell::Bells;
use crate::config::Config;
use crate::connect::SharedConnections;
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::server::Setup;
use crate::wait::{self, Tried, Tries};
use crate::waiters::Waiters;

/// Locks of mode `lease`. The verbs of the backend are methods of it, each in the file of its name.
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
        hot.extend(sql.renew.of_one());
        self.shared.rehearse(&hot).await
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        wait::acquire(self, request).await
    }

    pub(super) async fn others_wait(&self, name: &Name) -> bool {
        self.waiters.others_wait(name, self.limit).await
    }

    /// Ends all connections.
    pub(super) async fn close(&self) {
        self.bells.close().await;
        self.shared.close().await;
    }
}

#[async_trait]
impl Tries for LeaseLocks {
    async fn try_once(&self, request: &Request, look_first: bool) -> Result<Tried, Trouble> {
        self.try_acquire(request, look_first).await
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn bells(&self) -> &Arc<Bells> {
        &self.bells
    }
}
