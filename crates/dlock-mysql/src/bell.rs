//! How a release of `lease` or `unique` wakes one that waits.
//!
//! The row alone decides who holds a lock. Beside it stand two named locks (`GET_LOCK`) of the name, which are a hint and no more:
//!
//! | named lock | who has it |
//! |---|---|
//! | *front* | the one that waits and is next. So whoever gives the lock back can tell whether somebody waits |
//! | *bell* | the holder, if it waited itself or knew that others would; else the first of those who wait |
//!
//! ```text
//!  waits for the front ──▶ has the front, waits for the bell ──▶ has the bell (and leaves the front): tries the row
//!                                                                  │                       │ busy: the holder has no bell
//!                                                                  │ held                  ▼
//!                    the next one has the bell ◀── release: row,   │          asks again every few milliseconds: it is the
//!                                                  then bell ◀─────┘          only one of all who wait for the name
//! ```
//!
//! All of it is one statement on a connection that does nothing else, so the server's queue wakes the next one the moment in which the bell is
//! let go, and nobody else. A connection has one bell at most and waits for nothing while it has it, so there is no circle of waiters (error
//! 3058), whatever locks a program takes in which order.
//!
//! Nothing depends on a bell:
//!
//! - Whoever waits for it looks at the row now and then all the same, and at the end of the holder's lease.
//! - A holder that dies loses its connections, and the bell with them. Of one that is frozen the server ends the connection after
//!   15 s of silence. A [`Bell`] that is dropped rings, or its connection is closed.
//! - Whoever breaks a lock by force ends the connection that has its bell, where it may ([`Bells::break_bell`]).
//! - A client that has no connection left for a bell asks again with pauses, as do those behind a proxy, and those on several nodes, where named
//!   locks mean nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dlock_core::Name;
use dlock_core::backend::{Lease, Renewal};
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::connect::{Connection, Job, SharedConnections};
use crate::key::{BellLocks, bell_locks};
use crate::lately::LatelyBusy;
use crate::server::Setup;

/// How often a connection with a bell gives a sign of life, however far apart the renewals of its hold are.
const SIGN_OF_LIFE: Duration = Duration::from_secs(4);
/// A connection that was silent for longer is not trusted with a wait.
const FRESH: Duration = Duration::from_secs(4);
/// A wait for a bell ends after so many seconds, and is begun again: a waiter whose network fell silent leaves the queue then.
const LONGEST_WAIT: u64 = 60;

/// The bells of one client.
#[derive(Debug)]
pub(crate) struct Bells {
    config: Config,
    /// How a connection for a bell begins; `None` when this client has no bells.
    setup: Option<String>,
    scope: crate::server::Scope,
    /// Bounds the connections.
    permits: Arc<Semaphore>,
    spare: Mutex<Vec<Connection>>,
    closed: AtomicBool,
    lately_busy: LatelyBusy,
}

/// The wait for a bell; `None` when it failed, and the waiter has to go without.
pub(crate) type Turn = BoxFuture<'static, Option<Bell>>;

impl Bells {
    pub(crate) fn new(config: &Config, setup: &Setup) -> Arc<Self> {
        Arc::new(Self {
            setup: setup.bells.clone().filter(|_| config.bells > 0),
            scope: setup.scope.clone(),
            permits: Arc::new(Semaphore::new(config.bells)),
            spare: Mutex::default(),
            closed: AtomicBool::new(false),
            lately_busy: LatelyBusy::default(),
            config: config.clone(),
        })
    }

    pub(crate) fn are_on(&self) -> bool {
        self.setup.is_some()
    }

    pub(crate) fn locks(&self, name: &Name) -> BellLocks {
        bell_locks(
            self.config.mode.as_str(),
            &self.scope.prefix,
            &self.scope.database,
            name,
        )
    }

    /// The named locks by which whoever gives a hold back sees that somebody waits: the front, and the bell if the hold is without it, for then the
    /// first of those who wait has that.
    pub(crate) fn signs_of_waiters(&self, lease: &Lease) -> [String; 2] {
        let BellLocks { front, bell } = self.locks(lease.name());
        match lease.native::<Bell>() {
            Some(_) => [front.clone(), front],
            None => [front, bell],
        }
    }

    /// Others wait for a name, or have it.
    pub(crate) fn note_others(&self, name: &Name) {
        if self.are_on() {
            self.lately_busy.note(name);
        }
    }

    /// Whether others have lately been seen to wait for a name.
    pub(crate) fn others_may_wait(&self, name: &Name) -> bool {
        self.lately_busy.has(name)
    }

    /// Queues for the bell of a name; `None` when there is no connection for it.
    pub(crate) fn queue(self: &Arc<Self>, name: &Name) -> Option<Turn> {
        let setup = self.setup.clone()?;
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let (bells, locks) = (self.clone(), self.locks(name));
        Some(Box::pin(async move {
            let mut connection = match bells.fresh() {
                Some(connection) => connection,
                None => Connection::open(&bells.config, &setup).await.ok()?,
            };
            let wait = wait_text(&locks);
            // The server answers before that: of a network that fell silent there is no answer at all.
            let limit = Duration::from_secs(2 * LONGEST_WAIT) + bells.config.answer_timeout;
            loop {
                match tokio::time::timeout(limit, connection.text(&wait)).await {
                    Ok(Ok(answer)) if answer.first_number() == Some(1) => {
                        return Some(Bell {
                            ringer: Mutex::new(Some(Ringer { connection, permit })),
                            has_rung: AtomicBool::new(false),
                            keeper: OnceLock::new(),
                            bells,
                            bell: locks.bell,
                        });
                    }
                    Ok(Ok(_)) => {}
                    Ok(Err(trouble)) => {
                        tracing::debug!(?trouble, "no bell: a waiter asks again instead");
                        return None;
                    }
                    Err(_) => {
                        tracing::debug!("no answer about a bell: a waiter asks again instead");
                        return None;
                    }
                }
            }
        }))
    }

    /// A hold of this name was ended by force, and its client does not know that yet: ends the connection that has the bell, so that the next one is
    /// woken now. Where that belongs to another user, and we may not, the next one asks by itself about a second later. If it is one of those who wait that has
    /// the bell, it asks every few milliseconds, and does so without it too.
    pub(crate) async fn break_bell(
        &self,
        shared: &SharedConnections,
        name: &Name,
        limit: Duration,
    ) {
        if !self.are_on() {
            return;
        }
        // An error if nobody has it.
        let kill = format!("KILL IS_USED_LOCK('{}')", self.locks(name).bell);
        if let Err(trouble) = shared.call(Job::Text(&kill), limit).await {
            tracing::debug!(?trouble, %name, "nobody had the bell of a lock that was broken, or we may not end it");
        }
    }

    fn fresh(&self) -> Option<Connection> {
        let mut spare = self.spare();
        spare.retain(|connection| connection.idle_for() < FRESH);
        spare.pop()
    }

    fn keep(&self, connection: Connection) {
        if connection.is_open() && !self.closed.load(Ordering::Acquire) {
            self.spare().push(connection);
        }
    }

    /// Ends the connections that nobody uses; others end with what uses them.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.permits.close();
        let spare = std::mem::take(&mut *self.spare());
        let all = futures::future::join_all(spare.into_iter().map(Connection::close));
        // A server that hangs must not keep us.
        let _ = tokio::time::timeout(self.config.connect_timeout, all).await;
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the front, then for the bell, and leaves the front: 1 when it has the bell, and then nothing else. The branches of CASE are
/// looked at one after the other, and only the one that is taken is carried out.
fn wait_text(locks: &BellLocks) -> String {
    let BellLocks { front, bell } = locks;
    format!(
        "SELECT CASE WHEN GET_LOCK('{front}', {LONGEST_WAIT}) = 1 THEN \
         CASE WHEN GET_LOCK('{bell}', {LONGEST_WAIT}) = 1 THEN RELEASE_LOCK('{front}') \
         ELSE 0 * RELEASE_LOCK('{front}') END ELSE 0 END"
    )
}

/// A bell that is ours.
#[derive(Debug)]
pub(crate) struct Bell {
    /// `None` once it has rung, and while the server is given a sign of life.
    ringer: Mutex<Option<Ringer>>,
    has_rung: AtomicBool,
    /// The task that gives signs of life, while a hold has the bell.
    keeper: OnceLock<AbortHandle>,
    bells: Arc<Bells>,
    bell: String,
}

/// The connection that has the bell.
#[derive(Debug)]
struct Ringer {
    connection: Connection,
    permit: OwnedSemaphorePermit,
}

impl Bell {
    /// Lets the bell go, which wakes the next one, in the background: nobody waits for that but the one that is woken.
    pub(crate) fn ring(&self) {
        self.has_rung.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.get() {
            // One that waits for the answer to a sign of life has the connection: dropped with it, that is closed, and the server lets go of the bell.
            keeper.abort();
        }
        let Some(Ringer {
            mut connection,
            permit,
        }) = self.ringer().take()
        else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            // Dropped, it is closed, and the server lets go of the bell.
            return;
        };
        let release = format!("DO RELEASE_LOCK('{}')", self.bell);
        let bells = self.bells.clone();
        runtime.spawn(async move {
            let limit = bells.config.answer_timeout;
            if let Ok(Ok(_)) = tokio::time::timeout(limit, connection.text(&release)).await {
                bells.keep(connection);
            }
            drop(permit);
        });
    }

    /// The bell of a hold, which may last: the server must not end its connection.
    pub(crate) fn kept(self) -> Arc<Self> {
        let bell = Arc::new(self);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let weak = Arc::downgrade(&bell);
            let keeper = runtime.spawn(async move {
                loop {
                    tokio::time::sleep(SIGN_OF_LIFE).await;
                    let Some(bell) = weak.upgrade() else {
                        return;
                    };
                    bell.give_sign_of_life().await;
                }
            });
            // The first one, as nobody else has the bell yet.
            let _ = bell.keeper.set(keeper.abort_handle());
        }
        bell
    }

    async fn give_sign_of_life(&self) {
        let Some(mut ringer) = self.ringer().take() else {
            return;
        };
        let limit = self.bells.config.answer_timeout;
        if let Ok(Ok(())) = tokio::time::timeout(limit, ringer.connection.ping()).await {
            *self.ringer() = Some(ringer);
            // The release may have come meanwhile, and found nothing to ring with.
            if self.has_rung.load(Ordering::Acquire) {
                self.ring();
            }
        }
    }

    fn ringer(&self) -> MutexGuard<'_, Option<Ringer>> {
        self.ringer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

/// Lets the bells of holds go that were lost: nobody releases these, and a guard on them may be kept for long.
pub(crate) fn ring_lost(leases: &[Arc<Lease>], renewals: &[Renewal]) {
    for (lease, renewal) in leases.iter().zip(renewals) {
        if matches!(renewal, Renewal::Lost(_)) {
            ring(lease);
        }
    }
}

/// A hold has ended: the next one may try.
pub(crate) fn ring(lease: &Lease) {
    if let Some(bell) = lease.native::<Bell>() {
        bell.ring();
    }
}
