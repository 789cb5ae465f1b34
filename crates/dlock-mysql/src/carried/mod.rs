//! Modes `session` and `advisory`: a hold lives on a connection of its own.
//!
//! A sign of life of that connection makes the hold valid for [`Config::session_validity`](crate::Config::session_validity), counted from
//! the moment the question was sent. Why that is enough for [C1](dlock_core::contract#c1) is told in [`mark`].
//!
//! # Words
//!
//! | word | what it is |
//! |---|---|
//! | lock at the server | a row that is locked, or a `GET_LOCK`: what the server gives to one connection at a time ([`kind`]) |
//! | mark | a row of the name in a table: who held it last, and whether it left in order ([`mark`]) |
//! | [`Connection`] | one connection. One that carries a hold does nothing else until that is over |
//! | [`SharedConnections`] | the others: for all that is not a hold |
//! | [`PlaceOfWaiter`] | how a holder finds those who wait: a named lock that each of them has taken ([`wait`]) |
//! | [`CallSign`] | how anybody finds a connection at the server: a named lock that it has taken, and nobody waits for |
//! | [`AttemptState`] | what an attempt of core has at the server: it asks, or it is a hold |
//! | [`Hold`] | an attempt that core was told holds, and the [`HoldConnection`] it lives on now |
//! | [`HoldKey`] | which hold of a name it is: its attempt, and the last of its tokens |
//! | [`MarkRow`](mark::MarkRow) | a mark as somebody has read it |
//! | [`MarkVersion`](mark::MarkVersion) | which version of a mark that was. A change names it, and changes nothing if there is a later one |
//!
//! # The life of an attempt
//!
//! On the long way; mode `advisory` has a short one past the first two boxes, where the mark has no owner ([`take`]).
//!
//! ```text
//!              lock not granted: try → busy, wait → the server's queue
//!            ┌──────────────┐
//!            ▼              │          the mark has no owner          mark claimed
//!  ┌───────────────────┐    │  lock  ┌───────────────────────────┐  ┌───────────┐
//!  │ asks, on its own  ├────┴───────▶│ granted: look at the mark ├─▶│   holds   │◀─┐ proved: the connection has the lock,
//!  │ connection        │    granted  └─────┬───────────────▲─────┘  └──┬──┬──┬──┘  │ the server takes writes, the mark is
//!  └────────┬──────────┘                   │ another's     │ its       │  │  └─────┘ ours and nobody counts our time
//!           │                              ▼ mark          │ time      │  │
//!           │                        ┌───────────────────┐ │ is over   │  │ the connection broke, or was demoted: the lock is
//!           │                        │ counts its time,  ├─┘           │  │ taken on a new one. Mark still ours → holds;
//!           │                        │ a try: busy       │             │  │ else → lost
//!           │                        └───────────────────┘             │  └─────────▶ (moves) ──▶ holds, or lost
//!           │ given up (abandon)                                       │ release: the mark is cleared and the lock given back,
//!           ▼                                                          ▼ in one request
//!  the connection is ended, and a mark of the attempt cleared      free: its connection is kept for the next attempt
//! ```

mod abandon;
mod acquire;
mod backend;
mod call_sign;
mod grab;
mod granted;
mod inspect;
mod kind;
mod mark;
mod release;
mod renew;
mod short_way;
mod spare;
mod take;
mod wait;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{Capabilities, ErrorKind, Hearing, Liveness, Reach, WakeUp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use self::backend::ConnectionBackend;
use self::call_sign::CallSign;
use self::kind::{Kind, PlaceOfWaiter};
use self::mark::HoldKey;
use crate::config::Config;
use crate::connect::{Connection, SharedConnections};
use crate::error::Trouble;
use crate::fence::TURNS;
use crate::lately::LatelyBusy;
use crate::server::Setup;

/// A waiter wakes within this time after the release, with nobody disturbing.
const WAKE_UP: Duration = Duration::from_millis(100);

/// Locks of modes `session` and `advisory`. The verbs of the backend are methods of it, each in the file of its name.
#[derive(Debug)]
pub(crate) struct ConnectionLocks {
    kind: Kind,
    /// For everything that is not a hold: tokens, and the end of connections in doubt.
    shared: Arc<SharedConnections>,
    config: Config,
    /// How connections that carry a hold begin.
    setup: String,
    sessions: Arc<Semaphore>,
    attempts: Mutex<HashMap<AttemptId, AttemptState>>,
    /// Connections whose hold was given back in order.
    spare: Mutex<Vec<Connection>>,
    /// Nothing is kept any more.
    closed: AtomicBool,
    /// Those who want one of these wait at once, and do not try before.
    lately_busy: LatelyBusy,
    capabilities: Capabilities,
    identity: String,
}

/// What an attempt has at the server.
#[derive(Debug, Clone)]
enum AttemptState {
    /// It asks, on this connection.
    Asking(CallSign),
    Holding(Arc<Hold>),
}

/// An attempt that holds.
#[derive(Debug)]
struct Hold {
    carried_by: tokio::sync::Mutex<HoldConnection>,
    key: HoldKey,
    /// Where it stood among those who wait, if it had to: it gives that up with the hold.
    waited: Option<PlaceOfWaiter>,
    /// The server's number of the connection that it came by.
    opened_as: u32,
    /// Counts it among the sessions.
    _permit: OwnedSemaphorePermit,
}

/// Where a hold lives now. When its connection has broken, `call_sign` still tells which one that was.
#[derive(Debug)]
struct HoldConnection {
    connection: Connection,
    call_sign: CallSign,
}

impl ConnectionLocks {
    pub(crate) fn new(shared: Arc<SharedConnections>, config: Config, setup: &Setup) -> Self {
        let kind = Kind::new(&config, setup);
        let mut capabilities = Capabilities::new("mysql");
        capabilities.fencing = true;
        capabilities.turns = TURNS;
        capabilities.wanted = Hearing::Asks;
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
            shared,
            sessions: Arc::new(Semaphore::new(config.max_sessions)),
            attempts: Mutex::default(),
            spare: Mutex::default(),
            closed: AtomicBool::new(false),
            lately_busy: LatelyBusy::default(),
            capabilities,
            identity: config.identity_text(),
            setup: format!("{}{}", setup.carrying, kind.setup()),
            kind,
            config,
        }
    }

    fn attempts(&self) -> MutexGuard<'_, HashMap<AttemptId, AttemptState>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self, attempt: AttemptId) -> Option<Arc<Hold>> {
        match self.attempts().get(&attempt) {
            Some(AttemptState::Holding(hold)) => Some(hold.clone()),
            _ => None,
        }
    }

    /// Asked with the hold's connection in hand: whoever had it before may have given the hold back, and the connection may carry another
    /// hold by now.
    fn is_held_still(&self, attempt: AttemptId, hold: &Arc<Hold>) -> bool {
        self.held(attempt)
            .is_some_and(|now| Arc::ptr_eq(&now, hold))
    }

    /// Ends all connections.
    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let spare = std::mem::take(&mut *self.spare());
        let all = futures::future::join_all(spare.into_iter().map(Connection::close));
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
        .unwrap_or_else(|_| {
            Err(Trouble::new(
                ErrorKind::TimedOut,
                format!("the server did not answer within {limit:?}: is it overloaded or hung?"),
            ))
        })
}
