//! Mode `unique`: a row while the lock is held, none while it is free (R50).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Attempt, Backend, Busy, Lease, Renewal, Request};
use dlock_core::{
    Capabilities, ErrorKind, Liveness, LockInfo, Name, Reach, Released, Result, WakeUp,
};

use crate::config::Config;
use crate::connect::{Arg, Job, Line, Link};
use crate::error::Trouble;
use crate::inspect::{lock, locks};
use crate::key::micros;
use crate::renew::{Extend, Found, renewal};
use crate::schema::guarded;
use crate::server::Setup;

/// The longest pause between two questions of a waiter.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often a lock that changes under our hands is looked at before it counts as busy.
const LOOKS: usize = 4;
/// "Duplicate entry".
const DUPLICATE: u16 = 1062;

#[derive(Debug)]
pub(crate) struct UniqueLocks {
    link: Arc<Link>,
    sql: Statements,
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
    pub(crate) fn new(link: Arc<Link>, config: &Config, setup: &Setup) -> Self {
        let mut capabilities = Capabilities::new("mysql");
        capabilities.fencing = true;
        capabilities.wake_up = WakeUp::Poll {
            longest: LONGEST_PAUSE,
        };
        capabilities.liveness = Liveness::Lease;
        capabilities.reach = Reach::Network;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.durability = "a hold is a committed row: it survives a restart of the server as far as \
             innodb_flush_log_at_trx_commit allows, and a fail-over as far as the replica has received it";
        let prefix = &config.table_prefix;
        let one = |sql: &str| guarded(sql, prefix, setup.takes_writes);
        Self {
            link,
            sql: Statements {
                claim: one(include_str!("sql/unique_claim.sql")),
                look: one(include_str!("sql/unique_look.sql")),
                take_over: one(include_str!("sql/unique_take_over.sql")),
                release: one(include_str!("sql/unique_release.sql")),
                abandon: one(include_str!("sql/unique_abandon.sql")),
                forget: one(include_str!("sql/unique_forget.sql")),
                inspect: one(include_str!("sql/unique_inspect.sql")),
                list: one(include_str!("sql/unique_list.sql")),
                end: one(include_str!("sql/unique_break.sql")),
                sweep: one(include_str!("sql/unique_sweep.sql")),
                extend: Extend::new(
                    &one(include_str!("sql/unique_renew.sql")),
                    &one(include_str!("sql/unique_still_ours.sql")),
                ),
            },
            limit: config.answer_timeout,
            capabilities,
            identity: config.identity_text(),
        }
    }

    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let mut hot = vec![self.sql.claim.as_str(), &self.sql.release, &self.sql.look];
        hot.extend(self.sql.extend.of_one());
        self.link.rehearse(&hot).await
    }

    async fn exec(&self, sql: &str, args: &[Arg<'_>]) -> Result<crate::connect::Told, Trouble> {
        self.link.call(Job::Exec(sql, args), self.limit).await
    }

    /// Claims the lock, and draws the token while it is ours.
    async fn take(&self, request: &Request) -> Result<Attempt, Trouble> {
        let attempt = request.attempt();
        let name = Arg::from(request.name().as_str());
        let owner = Arg::from(attempt.as_uuid().as_bytes().as_slice());
        let lease = Arg::from(micros(request.lease()));
        let label = Arg::from(request.label());
        let claim = [
            name.clone(),
            owner.clone(),
            lease.clone(),
            lease.clone(),
            label.clone(),
        ];
        let look = [owner.clone(), name.clone(), owner.clone()];
        if request.is_contended() {
            // One that waits looks first: a claim locks the row of the holder.
            let told = self.exec(&self.sql.look, &look).await?;
            if let InTheWay::Others(left) = self.in_the_way(&told.answer.rows)? {
                return Ok(busy(left));
            }
        }
        for _ in 0..LOOKS {
            let sent = request.now();
            let told = self.exec(&self.sql.claim, &claim).await?;
            let from = match told.answer.affected {
                0 => {
                    let told = self.exec(&self.sql.look, &look).await?;
                    match self.in_the_way(&told.answer.rows)? {
                        InTheWay::Nothing => continue,
                        InTheWay::Others(left) => return Ok(busy(left)),
                        InTheWay::Ours(token) => match self.extend(request).await? {
                            Some(lease) => return Ok(Attempt::Held(lease.with_token(token))),
                            None => continue,
                        },
                        InTheWay::Expired(id) => {
                            let from = request.now();
                            let args = [
                                owner.clone(),
                                lease.clone(),
                                lease.clone(),
                                label.clone(),
                                id.into(),
                            ];
                            match self.exec(&self.sql.take_over, &args).await {
                                Ok(told) if told.answer.affected == 1 => from,
                                // Somebody was faster, or the attempt was abandoned: look again.
                                Ok(_) => continue,
                                Err(trouble) if trouble.code == Some(DUPLICATE) => continue,
                                Err(trouble) => return Err(trouble),
                            }
                        }
                    }
                }
                1 => sent,
                // The claim is of a request that was sent before.
                _ => match self.extend(request).await? {
                    Some(lease) => return Ok(Attempt::Held(lease.with_token(told.answer.id))),
                    None => continue,
                },
            };
            let told = self.exec(&self.sql.claim, &claim).await?;
            if told.answer.affected == 2 {
                let lease = Lease::new(request, from).with_token(told.answer.id);
                return Ok(Attempt::Held(lease));
            }
        }
        // Others come and go, or ours has its token already: undo what there may be, so that busy is proof.
        self.undo(request).await?;
        Ok(Attempt::Busy(Busy::default()))
    }

    fn in_the_way(&self, lines: &[Line]) -> Result<InTheWay, Trouble> {
        let ours = |line: &Line| line.number(1) == Some(1);
        if lines
            .iter()
            .any(|line| ours(line) && line.number(2) == Some(1))
        {
            return Err(abandoned());
        }
        let Some(line) = lines.first() else {
            return Ok(InTheWay::Nothing);
        };
        let (id, left) = (line.number(0).unwrap_or(0), line.number(4).unwrap_or(0));
        Ok(if left == 0 {
            InTheWay::Expired(id)
        } else if !ours(line) {
            InTheWay::Others(Duration::from_micros(left))
        } else if line.number(3) == Some(1) {
            InTheWay::Ours(id)
        } else {
            InTheWay::Nothing
        })
    }

    /// Begins the lease of a hold anew that this very attempt has; `None` when it is gone.
    async fn extend(&self, request: &Request) -> Result<Option<Lease>, Trouble> {
        let lease = Lease::new(request, request.now());
        let found = self
            .sql
            .extend
            .run(&self.link, &[&lease], self.limit)
            .await?;
        Ok(match found {
            Found::Some(ours) if ours.is_empty() => None,
            _ => Some(lease),
        })
    }

    async fn undo(&self, request: &Request) -> Result<(), Trouble> {
        let attempt = request.attempt();
        let owner = Arg::from(attempt.as_uuid().as_bytes().as_slice());
        self.exec(&self.sql.abandon, &[owner.clone(), owner])
            .await?;
        if let Err(trouble) = self.exec(&self.sql.forget, &[]).await {
            tracing::debug!(?trouble, "old markers were not removed");
        }
        Ok(())
    }

    async fn free(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let id = lease.token().map_or(0, u64::from);
        let args: [Arg<'_>; 3] = [
            id.into(),
            attempt.as_uuid().as_bytes().as_slice().into(),
            lease.name().as_str().into(),
        ];
        let told = self.exec(&self.sql.release, &args).await?;
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

/// Why a claim did not get in.
enum InTheWay {
    /// It is gone already.
    Nothing,
    Others(Duration),
    /// This attempt holds it, with this token.
    Ours(u64),
    Expired(u64),
}

fn busy(left: Duration) -> Attempt {
    Attempt::Busy(Busy {
        retry_after: Some(left),
    })
}

fn abandoned() -> Trouble {
    Trouble::new(
        ErrorKind::Store,
        "this attempt was abandoned: make a new one",
    )
    .unsent()
}

#[async_trait]
impl Backend for UniqueLocks {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.take(request).await?)
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let all: Vec<&Lease> = leases.iter().map(Arc::as_ref).collect();
        let found = self.sql.extend.run(&self.link, &all, self.limit).await;
        leases.iter().map(|lease| renewal(&found, lease)).collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        Ok(self.free(lease).await?)
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
        Ok(told.answer.affected > 0 || told.again)
    }

    async fn close(&self) -> Result<()> {
        self.link.close().await;
        Ok(())
    }
}
