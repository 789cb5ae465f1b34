//! The connections that the calls of a client share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlock_core::backend::Backoff;
use dlock_core::{ErrorKind, kit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::job::{Job, Sending, Told, Turns};
use super::pool::{Pool, closed};
use super::row::Row;
use super::wire::{Often, Sink, Wire};
use crate::LockMode;
use crate::config::Config;
use crate::error::Trouble;

/// A connection that was idle for longer may be dead without a sign: it is asked first.
const ASK_AFTER: Duration = Duration::from_secs(5);
/// When a call takes this long before it is given up, the idle connections are not trusted either.
const SUSPICIOUS: Duration = Duration::from_millis(250);
/// How much longer a connection may take to be made whose caller has given up.
const UNWANTED: Duration = Duration::from_secs(2);
const SHORTEST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(50);

/// Connections for renewals, beside the others.
const RENEWALS: usize = 2;

/// The shared connections of one client.
#[derive(Debug)]
pub(crate) struct SharedConnections {
    pool: Arc<Pool>,
    /// Bounds how many there are, those included that are being made.
    permits: Arc<Semaphore>,
    /// Beside those: a renewal must not wait behind calls that wait for a row.
    renewals: Arc<Semaphore>,
    stuck_renewals: Arc<Semaphore>,
    isolated: AtomicBool,
    /// Each of our connections has one at the server, and no pooler in between: it may be told [`Pool::often`].
    direct: AtomicBool,
}

impl SharedConnections {
    pub(crate) fn new(config: Config) -> Self {
        let renewals = match config.mode {
            // One call renews many.
            LockMode::Lease => RENEWALS,
            // After an outage each hold that goes on asks for itself.
            LockMode::Session => RENEWALS.max(config.connections),
        };
        Self {
            permits: Arc::new(Semaphore::new(config.connections)),
            renewals: Arc::new(Semaphore::new(renewals)),
            stuck_renewals: Arc::new(Semaphore::new(RENEWALS)),
            isolated: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            pool: Arc::new(Pool::new(config)),
        }
    }

    /// It was seen that no pooler stands in between: the server may be told statements to remember.
    pub(crate) fn set_direct(&self, often: Vec<Often>) {
        let _ = self.pool.often.set(often);
        self.direct.store(true, Ordering::Relaxed);
        // They were told nothing.
        self.forget_idle();
    }

    fn how(&self) -> Sending {
        if self.isolated.load(Ordering::Relaxed) {
            Sending::Isolated
        } else if self.direct.load(Ordering::Relaxed) {
            Sending::Prepared
        } else {
            Sending::Plain
        }
    }

    /// How long an answer may take.
    pub(crate) fn limit(&self) -> Duration {
        self.pool.config.answer_timeout
    }

    /// Whether a call takes two trips, see [`Guest::takes_two_trips`](super::guest::Guest::takes_two_trips).
    pub(crate) fn takes_two_trips(&self) -> bool {
        #[cfg(any(feature = "deadpool", feature = "sqlx"))]
        if let Some(guest) = &self.pool.config.guest {
            return guest.takes_two_trips();
        }
        false
    }

    /// Runs one call within the time limit. A deadlock or a serialization failure is tried again, and so is a call on a connection that
    /// turns out to have died: `again` tells the caller that the server may then carry it out twice.
    pub(crate) async fn call(&self, job: Job<'_>, limit: Duration) -> Result<Told, Trouble> {
        self.call_by(job, limit, Turns::Calls).await
    }

    /// The same, in the turn of others.
    pub(crate) async fn call_by(
        &self,
        job: Job<'_>,
        limit: Duration,
        turns: Turns,
    ) -> Result<Told, Trouble> {
        self.run(job, limit.min(self.limit()), turns).await
    }

    /// As [`call`](SharedConnections::call), also if it takes longer than answers usually do.
    pub(crate) async fn call_within(&self, job: Job<'_>, limit: Duration) -> Result<Told, Trouble> {
        self.run(job, limit, Turns::Calls).await
    }

    async fn run(&self, job: Job<'_>, limit: Duration, turns: Turns) -> Result<Told, Trouble> {
        let guard = Suspicion {
            shared: self,
            started: Instant::now(),
            done: false,
        };
        let permits = match turns {
            Turns::Calls => &self.permits,
            Turns::Renewals => &self.renewals,
            Turns::StuckRenewals => &self.stuck_renewals,
        };
        match tokio::time::timeout(limit, self.tries(job, permits)).await {
            Ok(told) => {
                guard.clear();
                told
            }
            Err(_) => Err(kit::no_answer(limit).into()),
        }
    }

    async fn tries(&self, job: Job<'_>, permits: &Arc<Semaphore>) -> Result<Told, Trouble> {
        #[cfg(any(feature = "deadpool", feature = "sqlx"))]
        if let Some(guest) = &self.pool.config.guest {
            return self.tries_as_guest(guest, job, permits).await;
        }
        let mut backoff = Backoff::new(SHORTEST_RETRY, LONGEST_RETRY);
        let mut again = false;
        let doubt =
            |trouble: Trouble, again: bool| if again { trouble.in_doubt() } else { trouble };
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return Err(doubt(closed(), again));
            };
            let wire = self.wire(permit).await;
            let (wire, fresh, permit) = wire.map_err(|trouble| doubt(trouble, again))?;
            let mut lent = Lent {
                pool: &self.pool,
                wire: Some(wire),
                answered: false,
            };
            let how = self.how();
            match lent.run(job, how).await {
                Ok(rows) => return Ok(Told { rows, again }),
                // Undone by the server.
                Err(trouble) if trouble.contended => {}
                // Refused by our own function, before it did anything.
                Err(trouble) if trouble.has_code("DLK01") && how != Sending::Isolated => {
                    self.isolated.store(true, Ordering::Relaxed);
                    continue;
                }
                // A pooler has come in between, or somebody made the server forget: it did nothing.
                Err(trouble) if trouble.is_foreign() && how == Sending::Prepared => {
                    self.direct.store(false, Ordering::Relaxed);
                    self.forget_idle();
                    continue;
                }
                Err(trouble)
                    if trouble.broken && !fresh && trouble.kind() != ErrorKind::TimedOut =>
                {
                    // The others are as old as this one.
                    self.forget_idle();
                    again |= !trouble.has_code("25006");
                    continue;
                }
                Err(trouble) => return Err(doubt(trouble, again)),
            }
            drop(lent);
            drop(permit);
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// The same by a pool of the user, of which we use no more connections than our own pool would have.
    #[cfg(any(feature = "deadpool", feature = "sqlx"))]
    async fn tries_as_guest(
        &self,
        guest: &super::guest::Guest,
        job: Job<'_>,
        permits: &Semaphore,
    ) -> Result<Told, Trouble> {
        let mut backoff = Backoff::new(SHORTEST_RETRY, LONGEST_RETRY);
        let mut again = false;
        loop {
            let Ok(permit) = permits.acquire().await else {
                return Err(if again { closed().in_doubt() } else { closed() });
            };
            match guest.run(job).await {
                Ok(rows) => return Ok(Told { rows, again }),
                // Undone by the server.
                Err(trouble) if trouble.contended => {}
                Err(trouble) if trouble.has_code("DLK01") => {
                    let refused = Trouble::new(
                        ErrorKind::Unsupported,
                        "the connections of the pool have another default_transaction_isolation than READ COMMITTED, which locks need: let the \
                         pool set it",
                    );
                    return Err(if again {
                        refused.in_doubt()
                    } else {
                        refused.unsent()
                    });
                }
                // It may have died while nobody used it: once more.
                Err(trouble) if trouble.broken && trouble.is_sent() && !again => {
                    again = !trouble.has_code("25006");
                    if !again {
                        return Err(trouble);
                    }
                    continue;
                }
                Err(trouble) => {
                    return Err(if again { trouble.in_doubt() } else { trouble });
                }
            }
            drop(permit);
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// An idle connection, or a new one (`true`).
    async fn wire(
        &self,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Wire, bool, OwnedSemaphorePermit), Trouble> {
        if self.pool.is_closed() {
            return Err(closed());
        }
        let idle = self.pool.idle().pop();
        if let Some(mut wire) = idle {
            if wire.idle_for() < ASK_AFTER || wire.text("").await.is_ok() {
                return Ok((wire, false, permit));
            }
            self.forget_idle();
        }
        // In a task of its own: a caller that gives up must not make the next one begin again. With a slow server or a short limit
        // there would never be a connection. The permit goes with it, or a server that stalls would get a connection from every caller
        // that gave up; so it must not last, or the first callers after the stall would wait for it.
        let (mut give, get) = oneshot::channel();
        let pool = self.pool.clone();
        let direct = self.direct.load(Ordering::Relaxed);
        tokio::spawn(async move {
            let mut opens = std::pin::pin!(pool.open_shared(direct));
            let opened = tokio::select! {
                biased;
                opened = &mut opens => opened,
                () = give.closed() => match tokio::time::timeout(UNWANTED, opens).await {
                    Ok(opened) => opened,
                    Err(_) => return,
                },
            };
            if let Err((Ok(unwanted), permit)) = give.send((opened, permit)) {
                pool.put(unwanted);
                drop(permit);
            }
        });
        match get.await {
            Ok((opened, permit)) => Ok((opened?, true, permit)),
            Err(_) => Err(closed()),
        }
    }

    /// A connection that is not shared.
    pub(crate) async fn open_alone(&self) -> Result<Wire, Trouble> {
        self.pool.open(None).await
    }

    /// A connection that is not shared, and passes on what it hears.
    pub(crate) async fn open_listening(&self, sink: Sink) -> Result<Wire, Trouble> {
        self.pool.open(Some(sink)).await
    }

    /// The next call is made on a new connection.
    pub(crate) fn forget_idle(&self) {
        let gone = std::mem::take(&mut *self.pool.idle());
        drop(gone);
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        self.pool.closed.store(true, Ordering::Release);
        self.permits.close();
        self.renewals.close();
        self.stuck_renewals.close();
        let idle = std::mem::take(&mut *self.pool.idle());
        let all = async {
            for wire in idle {
                wire.close().await;
            }
        };
        // A server that hangs must not keep us.
        let _ = tokio::time::timeout(self.pool.config.connect_timeout, all).await;
    }
}

/// A connection in use. It goes back when its call was answered. One whose call was dropped would give the next call its own answer, but
/// only after the server has done the first one, which may wait for a row.
struct Lent<'a> {
    pool: &'a Pool,
    wire: Option<Wire>,
    answered: bool,
}

impl Lent<'_> {
    async fn run(&mut self, job: Job<'_>, how: Sending) -> Result<Vec<Row>, Trouble> {
        let Some(wire) = self.wire.as_mut() else {
            return Err(closed());
        };
        let outcome = job.run(wire, how).await;
        match &outcome {
            Err(trouble) if trouble.broken => self.wire = None,
            _ => self.answered = true,
        }
        outcome
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.take()
            && self.answered
        {
            self.pool.put(wire);
        }
    }
}

/// When a call is given up after a while, a silent network may be the cause: connections that are idle are then forgotten.
struct Suspicion<'a> {
    shared: &'a SharedConnections,
    started: Instant,
    done: bool,
}

impl Suspicion<'_> {
    fn clear(mut self) {
        self.done = true;
    }
}

impl Drop for Suspicion<'_> {
    fn drop(&mut self) {
        if !self.done && self.started.elapsed() >= SUSPICIOUS {
            self.shared.forget_idle();
        }
    }
}
