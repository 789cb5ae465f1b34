//! The client, its reconnects and time-outs. The only module, with `error.rs`, that names client types.

mod call;
mod motion;
mod open;
#[cfg(feature = "client")]
mod query;
mod scan;
mod silence;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::ErrorKind;
use redis::Value;
use tokio::runtime::Handle;
use tokio::time::timeout;

use self::call::Connection;
pub(crate) use self::call::{Answer, Call, hash_of};
use self::motion::What;
use self::silence::Silence;
use crate::config::Config;
use crate::error::Trouble;
use crate::wait::Inbox;

/// The way to the store: one connection (or one for each node), replaced when it breaks or freezes.
pub(crate) struct Link {
    config: Arc<Config>,
    /// Where grants arrive, with its channel; none for a connection that nobody waits on.
    inbox: Option<(Arc<Inbox>, String)>,
    current: Mutex<Option<Current>>,
    /// Held while one caller connects for all; the last failure and the number of that attempt.
    connecting: tokio::sync::Mutex<Option<(u64, Trouble)>>,
    attempts: AtomicU64,
    closed: AtomicBool,
}

#[derive(Clone)]
struct Current {
    connection: Connection,
    number: u64,
    /// The runtime whose task drives it: the connection is of no use once that stands still.
    home: Option<Handle>,
    silence: Arc<Silence>,
}

impl Link {
    pub(crate) fn new(config: Arc<Config>, inbox: Option<(Arc<Inbox>, String)>) -> Self {
        Self {
            config,
            inbox,
            current: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Connects now, if it is not connected.
    pub(crate) async fn connect(&self) -> Result<(), Trouble> {
        self.connection().await.map(|_| ())
    }

    /// One trip. When the connection turns out to be dead, it is tried once more on a new one. The flag is set when the first request may
    /// have been done: then it was perhaps done twice.
    pub(crate) async fn call(
        &self,
        call: &Call<'_>,
        limit: Duration,
    ) -> Result<(Answer, bool), Trouble> {
        match self.call_once(call, limit).await {
            Ok(answer) => Ok((answer, false)),
            Err(trouble) if trouble.may_go_again() => {
                tracing::debug!(
                    error = trouble.message(),
                    "the connection broke, trying a new one"
                );
                // In a box, like everything rare: the future of every call is as large as its largest part.
                let again = Box::pin(self.call_once(call, limit)).await;
                match again {
                    Ok(answer) => Ok((answer, trouble.sent)),
                    Err(again) if trouble.sent => Err(again.in_doubt()),
                    Err(again) => Err(again),
                }
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// One trip for something that cannot wait until a connection has been silent for long: when no answer came within `limit`, the same is
    /// asked on a new connection. For what may be done twice.
    pub(crate) async fn call_urgently(
        &self,
        call: &Call<'_>,
        limit: Duration,
    ) -> Result<Answer, Trouble> {
        let number = self.number();
        let trouble = match self.call(call, limit).await {
            Ok((answer, _)) => return Ok(answer),
            Err(trouble) if trouble.kind == ErrorKind::TimedOut && trouble.sent => trouble,
            Err(trouble) => return Err(trouble),
        };
        tracing::debug!(
            error = trouble.message(),
            "no answer to something urgent, trying a new connection"
        );
        if let Some(number) = number {
            self.give_up(number);
        }
        let again = Box::pin(self.call(call, limit)).await;
        again.map(|(answer, _)| answer).map_err(Trouble::in_doubt)
    }

    /// One trip, whatever comes of it.
    pub(crate) async fn call_once(
        &self,
        call: &Call<'_>,
        limit: Duration,
    ) -> Result<Answer, Trouble> {
        let mut current = self.connection().await?;
        let what = What::Script(call);
        let until = current.connection.until(limit);
        let trip = self.within(limit, &mut current, what).await;
        match (trip, until) {
            (Err(trouble), Some(until)) if trouble.passing => {
                let moving = Box::pin(self.in_motion(what, until, trouble));
                Ok(moving.await?.into())
            }
            (trip, _) => Ok(trip?.into()),
        }
    }

    /// One trip, and then the proof that `replicas` replicas have received it, if it changed anything worth it.
    pub(crate) async fn call_replicated(
        &self,
        call: &Call<'_>,
        limit: Duration,
        worth_it: impl Fn(&Answer) -> bool,
    ) -> Result<(Answer, u32), Trouble> {
        // WAIT counts from the last write of its own connection, so it must be on the same one.
        let mut wait = redis::cmd("WAIT");
        let patience = self.config.replicas_timeout;
        wait.arg(self.config.replicas).arg(millis(patience));
        let mut current = self.connection().await?;
        let (answer, count) = if let Some(until) = current.connection.until(limit) {
            let what = What::Counted(call, &wait);
            let both = match self.within(limit + patience, &mut current, what).await {
                Err(trouble) if trouble.passing => self.in_motion(what, until, trouble).await?,
                both => both?,
            };
            let mut both = match both {
                Value::Array(both) => both,
                _ => Vec::new(),
            };
            let (count, answer) = (both.pop(), both.pop());
            (
                answer.unwrap_or(Value::Nil).into(),
                count.unwrap_or(Value::Nil).extract_error(),
            )
        } else {
            let answer = self.within(limit, &mut current, What::Script(call)).await?;
            let answer = Answer::from(answer);
            if !worth_it(&answer) {
                return Ok((answer, 0));
            }
            let what = What::Command(&wait);
            match self.within(limit + patience, &mut current, what).await {
                Ok(count) => (answer, Ok(count)),
                // Whatever was said, the request before it was done.
                Err(trouble) => return Err(trouble.in_doubt()),
            }
        };
        if !worth_it(&answer) {
            return Ok((answer, 0));
        }
        match count.map_err(|error| Trouble::from(error).in_doubt())? {
            Value::Int(count) => Ok((answer, u32::try_from(count).unwrap_or(0))),
            _ => Ok((answer, 0)),
        }
    }

    /// Publishes an empty message to our own inbox, where there is one.
    pub(crate) async fn tell_ourselves(&self) -> Result<(), Trouble> {
        let Some((_, channel)) = &self.inbox else {
            return Ok(());
        };
        let mut current = self.connection().await?;
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg("");
        let what = What::At(None, &publish);
        let limit = self.config.answer_timeout;
        self.within(limit, &mut current, what).await.map(|_| ())
    }

    /// The runtime that drives the connection in use.
    pub(crate) fn home(&self) -> Option<Handle> {
        self.locked().as_ref()?.home.clone()
    }

    /// Ends the connection; later calls are refused.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        *self.locked() = None;
    }

    fn locked(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<Current, Trouble> {
        let current = self.locked().clone();
        match current {
            Some(current) => Ok(current),
            None => Box::pin(self.reconnect()).await,
        }
    }

    async fn reconnect(&self) -> Result<Current, Trouble> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Trouble::new(ErrorKind::Closed, "this client was closed").unsent());
        }
        let limit = self.config.connect_timeout;
        let too_slow = || {
            Trouble::new(
                ErrorKind::TimedOut,
                format!("no connection within {limit:?}: is the server alive and reachable?"),
            )
            .unsent()
        };
        let seen = self.attempts.load(Ordering::Acquire);
        let mut last = timeout(limit, self.connecting.lock())
            .await
            .map_err(|_| too_slow())?;
        if let Some(current) = self.locked().as_ref() {
            return Ok(current.clone());
        }
        // An attempt that began after we came has failed for us too.
        if let Some((attempt, trouble)) = last.as_ref()
            && *attempt > seen
        {
            return Err(trouble.clone());
        }
        let number = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let opened = match timeout(limit, self.open()).await {
            Ok(opened) => opened.map_err(Trouble::unsent),
            Err(_) => Err(too_slow()),
        };
        match opened {
            Ok((connection, silence)) => {
                let current = Current {
                    connection,
                    number,
                    home: Handle::try_current().ok(),
                    silence: Arc::new(silence),
                };
                *last = None;
                *self.locked() = Some(current.clone());
                Ok(current)
            }
            Err(trouble) => {
                *last = Some((number, trouble.clone()));
                Err(trouble)
            }
        }
    }

    /// Waits for an answer, and gives the connection up when it is dead or frozen.
    async fn within(
        &self,
        limit: Duration,
        current: &mut Current,
        what: What<'_>,
    ) -> Result<Value, Trouble> {
        let trip = timeout(limit, current.connection.go(what)).await;
        let mut trouble = match trip {
            Ok(Ok(answer)) => {
                current.silence.ended(what);
                return Ok(answer);
            }
            Ok(Err(error)) => Trouble::from(error),
            Err(_) => no_answer(limit),
        };
        // The client finds the way in a cluster by itself, and keeps its connections.
        trouble.broken &= !(trouble.passing && self.config.is_cluster());
        let frozen = trouble.kind == ErrorKind::TimedOut && current.silence.goes_on(what);
        if trouble.broken || frozen {
            self.give_up(current.number);
        }
        Err(trouble)
    }

    fn give_up(&self, number: u64) {
        let mut current = self.locked();
        if current
            .as_ref()
            .is_some_and(|current| current.number == number)
        {
            *current = None;
        }
    }
}

/// What a node of a quorum must know: whether it is still talking to the same server.
impl Link {
    /// The number of the connection in use; a new connection has a higher one.
    pub(crate) fn number(&self) -> Option<u64> {
        self.locked().as_ref().map(|current| current.number)
    }

    /// What the server says about itself, and the number of the connection on which it did.
    pub(crate) async fn server_info(&self) -> Result<(u64, Answer), Trouble> {
        let mut current = self.connection().await?;
        let mut ask = redis::cmd("INFO");
        ask.arg("server");
        let info = self
            .within(
                self.config.answer_timeout,
                &mut current,
                What::At(None, &ask),
            )
            .await?;
        Ok((current.number, info.into()))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("config", &self.config)
            .field("connected", &self.locked().is_some())
            .finish_non_exhaustive()
    }
}

pub(crate) fn no_answer(limit: Duration) -> Trouble {
    Trouble::new(
        ErrorKind::TimedOut,
        format!("no answer within {limit:?}: is the server alive and reachable?"),
    )
}

/// Whole milliseconds, at least one.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
