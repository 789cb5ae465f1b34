//! Mode `session`: a hold is an advisory lock of a connection of its own, which the server frees with the connection.
//!
//! A sign of life of that connection makes the hold valid for [`Config::session_validity`](crate::Config::session_validity), counted from the
//! moment the question was sent. The holder's *mark*, a committed row, is cleared by a release in order. Whoever gets the advisory lock and
//! finds another's mark waits for that one's validity before it holds: so two never hold at once, whatever was reset or killed. It is what
//! dlock-mysql does, for the same reasons (decision 7); the statements are in `sql/session.sql`.
//!
//! | word | what it is |
//! |---|---|
//! | key | the advisory lock of a name. It is drawn by lot and kept beside the name, so two names never share one |
//! | mark | the row of the name: who held it last, and whether it left in order |
//! | sign | another advisory lock, which each of our connections takes for itself: by it anybody finds the connection at the server, and ends it |

mod abandon;
mod acquire;
mod backend;
mod connection;
mod inspect;
mod release;
mod renew;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{Capabilities, Hearing, Liveness, Reach, WakeUp, kit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::Type;

pub(crate) use self::backend::SessionBackend;
use self::connection::Carrier;
use crate::config::Config;
use crate::connect::{Often, SharedConnections};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::schema::statement;

/// A waiter wakes within this time after the release, with nobody disturbing.
const WAKE_UP: Duration = Duration::from_millis(100);

/// Locks of mode `session`. The verbs of the backend are methods of it, each in the file of its name.
#[derive(Debug)]
pub(crate) struct SessionLocks {
    /// For all that is not a hold.
    shared: Arc<SharedConnections>,
    config: Config,
    sql: Statements,
    /// What a connection is told once.
    often: Vec<Often>,
    sessions: Arc<Semaphore>,
    attempts: Mutex<HashMap<AttemptId, AttemptState>>,
    /// Connections whose hold was given back in order.
    spare: Mutex<Vec<Carrier>>,
    capabilities: Capabilities,
    identity: String,
}

/// What an attempt has at the server.
#[derive(Debug, Clone)]
enum AttemptState {
    /// It asks, on the connection with this sign.
    Asking(i64),
    Holding(Arc<Hold>),
}

#[derive(Debug)]
struct Hold {
    carried_by: tokio::sync::Mutex<CarriedBy>,
    token: i64,
    _permit: OwnedSemaphorePermit,
}

/// Where a hold lives now. When its connection has broken, the sign still tells which one that was.
#[derive(Debug)]
struct CarriedBy {
    carrier: Option<Carrier>,
    sign: i64,
    /// A release was sent, and its answer was not seen: what is free now may have been freed by it.
    is_release_sent: bool,
}

#[derive(Debug)]
struct Statements {
    wait: String,
    claim: String,
    prove: String,
    go_on: String,
    release: String,
    abandon: String,
    break_mark: String,
    read: String,
    known: String,
    end: String,
    waits: String,
    others: String,
    inspect: String,
    list: String,
}

impl Statements {
    fn new(config: &Config) -> Self {
        let fill = |sql: &str| statement(sql, config);
        let look =
            |which: &str| fill(&include_str!("../sql/session_look.sql").replace("{which}", which));
        Self {
            wait: fill("SELECT pg_advisory_lock({prefix}session_key($1))::text"),
            claim: fill(
                "SELECT said, number, mark FROM {prefix}session_acquire($1, $2, $3, $4, $5, $6, $7)",
            ),
            prove: fill("SELECT {prefix}session_prove($1, $2, $3)"),
            go_on: fill("SELECT {prefix}session_go_on($1, $2, $3, $4)"),
            release: fill("SELECT {prefix}session_release($1, $2, $3, $4)"),
            abandon: fill(
                "UPDATE {prefix}sessions SET owner = NULL, dead_at = NULL WHERE name = $1 AND owner = $2 RETURNING 1",
            ),
            break_mark: fill(
                "UPDATE {prefix}sessions SET broken = true WHERE name = $1 AND owner IS NOT NULL RETURNING sign, valid_us, token",
            ),
            read: fill(
                "SELECT sign, valid_us, token FROM {prefix}sessions WHERE name = $1 AND owner IS NOT NULL",
            ),
            known: fill("SELECT {prefix}session_has($1, NULL)"),
            end: fill(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted \
                 AND (classid::bigint << 32 | objid::bigint) = $1 \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            ),
            waits: fill(
                "SELECT EXISTS (SELECT FROM pg_locks s, pg_locks w WHERE s.locktype = 'advisory' AND s.objsubid = 1 AND s.granted \
                 AND (s.classid::bigint << 32 | s.objid::bigint) = $1 AND w.pid = s.pid AND w.locktype = 'advisory' AND NOT w.granted)",
            ),
            others: fill(
                "SELECT EXISTS (SELECT FROM pg_locks w, {prefix}sessions n WHERE n.name = $1 AND w.locktype = 'advisory' AND w.objsubid = 1 \
                 AND NOT w.granted AND (w.classid::bigint << 32 | w.objid::bigint) = n.key \
                 AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                 AND NOT EXISTS (SELECT FROM pg_locks s WHERE s.pid = w.pid AND s.locktype = 'advisory' AND s.objsubid = 1 AND s.granted \
                 AND (s.classid::bigint << 32 | s.objid::bigint) = ANY ($2)))",
            ),
            inspect: look("name = $1"),
            list: look("starts_with(name, $1)"),
        }
    }
}

impl Statements {
    fn often(&self) -> Vec<Often> {
        let (text, uuid, long) = (Type::TEXT, Type::UUID, Type::INT8);
        let which = [text.clone(), uuid, long.clone()];
        let claim = [&which[..], &[long, text, Type::BOOL, Type::INT8]];
        vec![
            (self.claim.clone(), claim.concat()),
            (self.prove.clone(), which.to_vec()),
            (self.release.clone(), [&which[..], &[Type::BOOL]].concat()),
        ]
    }
}

impl SessionLocks {
    pub(crate) fn new(shared: Arc<SharedConnections>, config: Config, identity: String) -> Self {
        let mut capabilities = Capabilities::new("postgres");
        capabilities.fencing = true;
        capabilities.wake_up = WakeUp::Push { bound: WAKE_UP };
        capabilities.liveness = Liveness::Session {
            ttl: config.session_validity,
        };
        capabilities.reach = Reach::Network;
        capabilities.inspect = true;
        capabilities.break_lock = true;
        capabilities.turns = TURNS;
        capabilities.wanted = Hearing::Asks;
        capabilities.durability = "who holds a lock is a committed row: it survives a restart of the server, and a fail-over as far as the standby has received it";
        let sql = Statements::new(&config);
        Self {
            often: sql.often(),
            sql,
            sessions: Arc::new(Semaphore::new(config.max_sessions)),
            attempts: Mutex::default(),
            spare: Mutex::default(),
            capabilities,
            identity,
            shared,
            config,
        }
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<AttemptId, AttemptState>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, attempt: AttemptId) -> Option<Arc<Hold>> {
        match self.attempts().get(&attempt) {
            Some(AttemptState::Holding(hold)) => Some(hold.clone()),
            _ => None,
        }
    }

    /// Ends all connections.
    async fn close(&self) {
        let spare = std::mem::take(&mut *self.spare());
        let all = futures::future::join_all(spare.into_iter().map(Carrier::close));
        // A server that hangs must not keep us.
        let _ = tokio::time::timeout(self.config.connect_timeout, all).await;
        self.attempts().clear();
        self.shared.close().await;
    }
}

/// One answer of the server, within the limit. What is dropped here closes its connection.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| Err(kit::no_answer(limit).into()))
}
