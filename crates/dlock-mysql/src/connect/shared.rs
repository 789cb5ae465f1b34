//! The connections that the calls of a client share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::backend::Backoff;
use dlock_core::{ErrorKind, kit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::connection::Connection;
use super::value::{Answer, Arg};
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

/// One call, told to [`SharedConnections::call`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Job<'a> {
    /// A prepared statement.
    Exec(&'a str, &'a [Arg<'a>]),
    /// Arguments bound to variables, and several statements that use them.
    Batch(&'a str, &'a [Arg<'a>], &'a str),
    /// Text without arguments.
    Text(&'a str),
    /// A statement that is to be prepared, and not run.
    Prepare(&'a str),
}

impl Job<'_> {
    async fn run(self, connection: &mut Connection) -> Result<Answer, Trouble> {
        match self {
            Self::Exec(sql, args) => connection.exec(sql, args).await,
            Self::Batch(bind, args, sql) => connection.batch(bind, args, sql).await,
            Self::Text(sql) => connection.text(sql).await,
            Self::Prepare(sql) => connection.prepare(sql).await.map(|()| Answer::default()),
        }
    }
}

/// The shared connections of one client.
#[derive(Debug)]
pub(crate) struct SharedConnections {
    pool: Arc<Pool>,
    /// Bounds how many there are, those included that are being made.
    permits: Arc<Semaphore>,
}

#[derive(Debug)]
struct Pool {
    config: Config,
    setup: String,
    idle: Mutex<Vec<Connection>>,
    closed: AtomicBool,
    /// Statements that every connection prepares when it is opened.
    hot: OnceLock<Vec<String>>,
}

impl SharedConnections {
    pub(crate) fn new(config: Config, setup: String) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(config.connections)),
            pool: Arc::new(Pool {
                config,
                setup,
                idle: Mutex::default(),
                closed: AtomicBool::new(false),
                hot: OnceLock::new(),
            }),
        }
    }

    /// Prepares the statements that are used most, here and on all later connections, so that they need no trip of their own, and a
    /// missing permission shows now.
    pub(crate) async fn rehearse(&self, hot: &[&str]) -> Result<(), Trouble> {
        for sql in hot {
            let prepare = self.call(Job::Prepare(sql), self.pool.config.connect_timeout);
            let outcome = prepare.await;
            outcome.map_err(|trouble| trouble.about("checking what we may do").unsent())?;
        }
        // It is set once, when the backend connects; a second set would be refused, and the first list stay.
        let _ = self
            .pool
            .hot
            .set(hot.iter().map(|sql| (*sql).to_owned()).collect());
        Ok(())
    }

    /// Runs one call within the time limit. A deadlock or a lock wait inside it is tried again, and so is a call on a connection that
    /// turns out to have died: `again` tells the caller that the server may then have carried it out twice.
    pub(crate) async fn call(&self, job: Job<'_>, limit: Duration) -> Result<Told, Trouble> {
        self.call_within(job, limit.min(self.pool.config.answer_timeout))
            .await
    }

    /// As [`call`](SharedConnections::call), also if it takes longer than answers usually do.
    pub(crate) async fn call_within(&self, job: Job<'_>, limit: Duration) -> Result<Told, Trouble> {
        let guard = Suspicion {
            shared: self,
            started: Instant::now(),
            done: false,
        };
        let outcome = tokio::time::timeout(limit, self.tries(job)).await;
        match outcome {
            Ok(told) => {
                guard.clear();
                told
            }
            Err(_) => Err(Trouble::new(
                ErrorKind::TimedOut,
                format!("the server did not answer within {limit:?}: is it overloaded or hung?"),
            )),
        }
    }

    async fn tries(&self, job: Job<'_>) -> Result<Told, Trouble> {
        let mut backoff = Backoff::new(SHORTEST_RETRY, LONGEST_RETRY);
        let mut again = false;
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                return Err(if again { closed().in_doubt() } else { closed() });
            };
            let (mut connection, fresh, permit) = self
                .connection(permit)
                .await
                .map_err(|trouble| if again { trouble.in_doubt() } else { trouble })?;
            match job.run(&mut connection).await {
                Ok(answer) => {
                    self.give_back(connection);
                    return Ok(Told { answer, again });
                }
                Err(trouble) if trouble.contended => {
                    // Of several statements the first may have been carried out.
                    again |= trouble.is_sent();
                    if connection.is_open() {
                        self.give_back(connection);
                    }
                }
                Err(trouble)
                    if trouble.broken && !fresh && trouble.kind() != ErrorKind::TimedOut =>
                {
                    // The others are as old as this one.
                    self.forget_idle();
                    again |= trouble.is_sent();
                    continue;
                }
                Err(trouble) => {
                    if connection.is_open() {
                        self.give_back(connection);
                    }
                    return Err(if again { trouble.in_doubt() } else { trouble });
                }
            }
            drop(permit);
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// An idle connection, or a new one (`true`).
    async fn connection(
        &self,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Connection, bool, OwnedSemaphorePermit), Trouble> {
        if self.pool.is_closed() {
            return Err(closed());
        }
        let idle = self.pool.idle().pop();
        if let Some(mut connection) = idle {
            if connection.idle_for() < ASK_AFTER || connection.ping().await.is_ok() {
                return Ok((connection, false, permit));
            }
            self.forget_idle();
        }
        // In a task of its own: a caller that gives up must not make the next one begin again. With a slow server or a short limit
        // there would never be a connection. The permit goes with it, or a server that stalls would get a connection from every caller
        // that gave up; so it must not last, or the first callers after the stall would wait for it.
        let (mut give, get) = oneshot::channel();
        let pool = self.pool.clone();
        tokio::spawn(async move {
            let mut opens = std::pin::pin!(pool.open());
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

    fn give_back(&self, connection: Connection) {
        self.pool.put(connection);
    }

    fn forget_idle(&self) {
        // Dropped when the lock is free again: closing them spawns tasks.
        let gone = std::mem::take(&mut *self.pool.idle());
        drop(gone);
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        self.pool.closed.store(true, Ordering::Release);
        self.permits.close();
        let idle = std::mem::take(&mut *self.pool.idle());
        let all = futures::future::join_all(idle.into_iter().map(Connection::close));
        // A server that hangs must not keep us.
        let _ = tokio::time::timeout(self.pool.config.connect_timeout, all).await;
    }
}

impl Pool {
    async fn open(&self) -> Result<Connection, Trouble> {
        let mut connection = Connection::open(&self.config, &self.setup).await?;
        // One that is given back after each call prepares what it runs, and no more.
        let hot = self.hot.get().filter(|_| self.config.pool.is_none());
        for sql in hot.into_iter().flatten() {
            let prepare =
                tokio::time::timeout(self.config.answer_timeout, connection.prepare(sql)).await;
            match prepare {
                Ok(Ok(())) => {}
                // MariaDB looks at the server's variables here already: it was demoted.
                Ok(Err(trouble)) if trouble.broken => return Err(trouble.unsent()),
                // What is wrong with it shows when it is used.
                Ok(Err(_)) => break,
                Err(_) => {
                    return Err(Trouble::new(
                        ErrorKind::TimedOut,
                        format!(
                            "a new connection did not answer within {:?}: is the server overloaded or hung?",
                            self.config.answer_timeout
                        ),
                    )
                    .unsent());
                }
            }
        }
        Ok(connection)
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.idle();
        // The application may need its own.
        let is_ours = self.config.pool.is_none();
        if is_ours
            && !self.is_closed()
            && connection.is_open()
            && idle.len() < self.config.connections
        {
            idle.push(connection);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a call brought.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) answer: Answer,
    /// A first try may have been carried out before this one.
    pub(crate) again: bool,
}

fn closed() -> Trouble {
    kit::closed().into()
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
