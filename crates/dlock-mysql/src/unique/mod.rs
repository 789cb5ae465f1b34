//! Mode `unique`: a row while the lock is held, none while it is free.

mod acquire;
mod backend;
mod inspect;
mod release;
mod renew;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Outcome, Request};
use dlock_core::{Capabilities, Hearing, Liveness, Name, Reach};

pub(crate) use self::backend::UniqueBackend;
use crate::bell::Bells;
use crate::config::Config;
use crate::connect::{Arg, Job, SharedConnections, Told};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::renew::RenewStatements;
use crate::schema::guarded;
use crate::server::Setup;
use crate::wait::{self, Tried, Tries};
use crate::waiters::Waiters;

/// Locks of mode `unique`. The verbs of the backend are methods of it, each in the file of its name.
#[derive(Debug)]
pub(crate) struct UniqueLocks {
    shared: Arc<SharedConnections>,
    sql: Statements,
    waiters: Waiters,
    bells: Arc<Bells>,
    limit: Duration,
    capabilities: Capabilities,
    identity: String,
}

#[derive(Debug)]
struct Statements {
    claim: String,
    look: String,
    take_over: String,
    release: String,
    abandon: String,
    forget: String,
    inspect: String,
    list: String,
    break_lock: String,
    sweep: String,
    renew: RenewStatements,
}

impl UniqueLocks {
    pub(crate) fn new(shared: Arc<SharedConnections>, config: &Config, setup: &Setup) -> Self {
        let mut capabilities = Capabilities::new("mysql");
        capabilities.fencing = true;
        capabilities.turns = TURNS;
        capabilities.wanted = Hearing::Asks;
        let bells = Bells::new(config, setup);
        wait::declare(&bells, &mut capabilities);
        capabilities.liveness = Liveness::Lease;
        capabilities.reach = Reach::Network;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.durability = "a hold is a committed row: it survives a restart of the server as far as \
             innodb_flush_log_at_trx_commit allows, and a fail-over as far as the replica has received it";
        let prefix = &config.table_prefix;
        let one = |sql: &str| guarded(sql, prefix, setup.takes_writes);
        Self {
            waiters: Waiters::of_unique(&shared, &config.table_prefix, setup.takes_writes),
            shared,
            sql: Statements {
                claim: one(include_str!("../sql/unique_claim.sql")),
                look: one(include_str!("../sql/unique_look.sql")),
                take_over: one(include_str!("../sql/unique_take_over.sql")),
                release: one(include_str!("../sql/unique_release.sql")),
                abandon: one(include_str!("../sql/unique_abandon.sql")),
                forget: one(include_str!("../sql/unique_forget.sql")),
                inspect: one(include_str!("../sql/unique_inspect.sql")),
                list: one(include_str!("../sql/unique_list.sql")),
                break_lock: one(include_str!("../sql/unique_break.sql")),
                sweep: one(include_str!("../sql/unique_sweep.sql")),
                renew: RenewStatements::new(
                    &one(include_str!("../sql/unique_renew.sql")),
                    &one(include_str!("../sql/unique_still_ours.sql")),
                ),
            },
            bells,
            limit: config.answer_timeout,
            capabilities,
            identity: config.identity_text(),
        }
    }

    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let mut hot = vec![self.sql.claim.as_str(), &self.sql.look];
        hot.extend(self.sql.renew.of_one());
        self.shared.rehearse(&hot).await
    }

    async fn exec(&self, sql: &str, args: &[Arg<'_>]) -> Result<Told, Trouble> {
        self.shared.call(Job::Exec(sql, args), self.limit).await
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
impl Tries for UniqueLocks {
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
