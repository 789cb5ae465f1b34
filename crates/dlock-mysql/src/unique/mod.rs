//! Mode `unique`: a row while the lock is held, none while it is free.

mod acquire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{
    Capabilities, ErrorKind, Hearing, Liveness, LockInfo, Name, Reach, Released, Result,
};

use crate::bell::{self, Bells};
use crate::config::Config;
use crate::connect::{Arg, Job, SharedConnections};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::inspect::{lock, locks};
use crate::key::micros;
use crate::renew::{Extend, renewal};
use crate::schema::guarded;
use crate::server::Setup;
use crate::wait::{self, Tried, Tries};
use crate::waiters::Waiters;

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
    end: String,
    sweep: String,
    extend: Extend,
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
                end: one(include_str!("../sql/unique_break.sql")),
                sweep: one(include_str!("../sql/unique_sweep.sql")),
                extend: Extend::new(
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
        hot.extend(self.sql.extend.of_one());
        self.shared.rehearse(&hot).await
    }

    async fn exec(&self, sql: &str, args: &[Arg<'_>]) -> Result<crate::connect::Told, Trouble> {
        self.shared.call(Job::Exec(sql, args), self.limit).await
    }

    async fn free(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let id = lease.token().map_or(0, u64::from);
        let [front, bell] = self.bells.signs_of_waiters(lease);
        let who_waits = match self.bells.are_on() {
            true => format!("; SELECT COALESCE(IS_USED_LOCK('{front}'), IS_USED_LOCK('{bell}'))"),
            false => String::new(),
        };
        // Numbers and digits alone, so that the release and the question are one request.
        let release = self.sql.release.replace("{id}", &id.to_string());
        let release = release.replace("{attempt}", &hex(attempt.as_uuid().as_bytes()));
        let release = release.replace("{name}", &hex(lease.name().as_str().as_bytes()));
        let text = format!("{release}{who_waits}");
        let told = self.shared.call(Job::Text(&text), self.limit).await?;
        if told.answer.first_number().is_some() {
            self.bells.note_others(lease.name());
        }
        match (told.answer.affected, told.again) {
            (0, false) => Ok(Released::AlreadyLost),
            // A first try, whose answer was lost, may have freed it.
            (0, true) => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke before the answer came",
            )),
            _ => Ok(Released::Freed),
        }
    }

    pub(crate) async fn sweep(&self, unused: Duration) -> Result<u64, Trouble> {
        let told = self.exec(&self.sql.sweep, &[micros(unused).into()]).await?;
        Ok(told.answer.affected)
    }
}

#[async_trait]
impl Tries for UniqueLocks {
    async fn attempt(&self, request: &Request, look_first: bool) -> Result<Tried, Trouble> {
        self.take(request, look_first).await
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn bells(&self) -> &Arc<Bells> {
        &self.bells
    }
}

#[async_trait]
impl Backend for UniqueLocks {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(self.take(request, false).await?.into())
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome> {
        Ok(wait::acquire(self, request).await?)
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let all: Vec<&Lease> = leases.iter().map(Arc::as_ref).collect();
        let found = self.sql.extend.run(&self.shared, &all, self.limit).await;
        let renewals: Vec<_> = leases.iter().map(|lease| renewal(&found, lease)).collect();
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

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let told = self
            .exec(&self.sql.inspect, &[name.as_str().into()])
            .await?;
        Ok(lock(name, &told.answer.rows))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let args = [prefix.into(), (prefix.len() as u64).into(), prefix.into()];
        let told = self.exec(&self.sql.list, &args).await?;
        Ok(locks(&told.answer.rows))
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        let told = self.exec(&self.sql.end, &[name.as_str().into()]).await?;
        let ended = told.answer.affected > 0 || told.again;
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

/// Bytes as they stand in a statement.
fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}
