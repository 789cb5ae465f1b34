//! Modes `session` and `advisory`: a hold lives on a connection of its own (R52).
//!
//! A sign of life of that connection makes the hold valid for [`Config::session_validity`](crate::Config::session_validity), counted from
//! the moment the question was sent. Why that is enough for C1 is told in [`mark`].

mod acquire;
mod kind;
mod line;
mod mark;
mod release;
mod renew;
mod spare;
mod undo;
mod wait;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Attempt, AttemptId, Backend, Lease, Renewal, Request};
use dlock_core::{
    Capabilities, ErrorKind, Liveness, LockInfo, Name, Reach, Released, Result, WakeUp,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::kind::Kind;
use self::line::Line;
use self::mark::Mark;
use crate::config::Config;
use crate::connect::{Job, Link, Wire};
use crate::error::Trouble;
use crate::inspect::{lock, locks};
use crate::server::Setup;

/// A waiter wakes within this time after the release, with nobody disturbing.
const WAKE_UP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct CarriedLocks {
    kind: Kind,
    /// For everything that is not a hold: tokens, and the end of connections in doubt.
    link: Arc<Link>,
    config: Config,
    /// How connections that carry a hold begin.
    setup: String,
    seats: Arc<Semaphore>,
    known: Mutex<HashMap<AttemptId, Seat>>,
    /// Connections whose hold was given back in order.
    spare: Mutex<Vec<Wire>>,
    capabilities: Capabilities,
    identity: String,
}

/// What an attempt has at the server.
#[derive(Debug, Clone)]
enum Seat {
    /// It asks, on this connection.
    Asking(Line),
    Held(Arc<Carrier>),
}

/// A hold.
#[derive(Debug)]
struct Carrier {
    seated: tokio::sync::Mutex<Seated>,
    mark: Mark,
    /// Counts it among the sessions.
    _permit: OwnedSemaphorePermit,
}

/// Where a hold lives. When its connection has broken, `line` still tells which one that was.
#[derive(Debug)]
struct Seated {
    wire: Wire,
    line: Line,
}

impl CarriedLocks {
    pub(crate) fn new(link: Arc<Link>, config: Config, setup: &Setup) -> Self {
        let kind = Kind::new(&config, &setup.scope, setup.writable);
        let mut capabilities = Capabilities::new("mysql");
        capabilities.fencing = true;
        capabilities.wake_up = WakeUp::Push { bound: WAKE_UP };
        capabilities.liveness = Liveness::Session {
            ttl: config.session_validity,
        };
        capabilities.reach = Reach::Network;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.durability = "who holds a lock is a committed row: it survives a restart of the server as far as \
             innodb_flush_log_at_trx_commit allows, and a fail-over as far as the replica has received it";
        Self {
            link,
            seats: Arc::new(Semaphore::new(config.max_sessions)),
            known: Mutex::default(),
            spare: Mutex::default(),
            capabilities,
            identity: config.identity_text(),
            setup: format!("{}{}", setup.carrying, kind.setup()),
            kind,
            config,
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<AttemptId, Seat>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Wire>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, attempt: AttemptId) -> Option<Arc<Carrier>> {
        match self.known().get(&attempt) {
            Some(Seat::Held(carrier)) => Some(carrier.clone()),
            _ => None,
        }
    }
}

#[async_trait]
impl Backend for CarriedLocks {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    async fn try_acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.take(request, false).await?)
    }

    async fn acquire(&self, request: &Request) -> Result<Attempt> {
        Ok(self.take(request, true).await?)
    }

    async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        futures::future::join_all(leases.iter().map(|lease| self.prove(lease))).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released> {
        Ok(self.free(lease).await?)
    }

    async fn abandon(&self, request: &Request) -> Result<()> {
        Ok(self.undo(request).await?)
    }

    async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        let args = [name.as_str().into()];
        let job = Job::Exec(&self.kind.marks.inspect, &args);
        let told = self.link.call(job, self.config.answer_timeout).await?;
        Ok(lock(name, &told.answer.rows))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let args = [prefix.into(), (prefix.len() as u64).into(), prefix.into()];
        let job = Job::Exec(&self.kind.marks.list, &args);
        let told = self.link.call(job, self.config.answer_timeout).await?;
        Ok(locks(&told.answer.rows))
    }

    async fn break_lock(&self, name: &Name) -> Result<bool> {
        Ok(self.free_by_force(name).await?)
    }

    async fn close(&self) -> Result<()> {
        let spare = std::mem::take(&mut *self.spare());
        let all = futures::future::join_all(spare.into_iter().map(Wire::close));
        // A server that hangs must not keep us.
        let _ = tokio::time::timeout(self.config.connect_timeout, all).await;
        self.known().clear();
        self.link.close().await;
        Ok(())
    }
}

/// One answer of the server, within the limit. What is dropped here closes its connection.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| {
            Err(Trouble::new(
                ErrorKind::TimedOut,
                format!("the server did not answer within {limit:?}: is it overloaded or hung?"),
            ))
        })
}
