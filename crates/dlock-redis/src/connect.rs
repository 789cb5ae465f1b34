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
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::ErrorKind;
use dlock_core::kit::{self, Connected};
use futures::future::join_all;
use redis::Value;
use tokio::runtime::Handle;
use tokio::time::timeout;

pub(crate) use self::call::{Connection, RedisReply, ScriptCall, hash_of};
use self::motion::Outgoing;
use self::silence::{Missing, Silence};
use crate::config::Config;
use crate::error::Trouble;
use crate::script::Script;
use crate::wait::Inbox;

/// The way to the store: one connection (or one for each node), replaced when it breaks or freezes.
pub(crate) struct RedisLink {
    config: Arc<Config>,
    /// Where grants arrive, with its channel; none for a connection that nobody waits on.
    inbox: Option<(Arc<Inbox>, String)>,
    /// The application's own connection, in place of one that is made here.
    given: Option<Connection>,
    current: Connected<OpenConnection, Trouble>,
}

#[derive(Clone)]
struct OpenConnection {
    connection: Connection,
    /// The runtime whose task drives it: the connection is of no use once that stands still.
    home: Option<Handle>,
    silence: Arc<Silence>,
}

impl RedisLink {
    pub(crate) fn new(config: Arc<Config>, inbox: Option<(Arc<Inbox>, String)>) -> Self {
        Self {
            config,
            inbox,
            given: None,
            current: Connected::default(),
        }
    }

    /// The same over a connection that the application has.
    #[cfg(feature = "client")]
    pub(crate) fn over(config: Arc<Config>, given: Connection) -> Self {
        Self {
            given: Some(given),
            ..Self::new(config, None)
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
        call: &ScriptCall<'_>,
        limit: Duration,
    ) -> Result<(RedisReply, bool), Trouble> {
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
                    Ok(answer) => Ok((answer, trouble.is_sent())),
                    Err(again) if trouble.is_sent() => Err(again.in_doubt()),
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
        call: &ScriptCall<'_>,
        limit: Duration,
    ) -> Result<RedisReply, Trouble> {
        let number = self.number();
        let trouble = match self.call(call, limit).await {
            Ok((answer, _)) => return Ok(answer),
            Err(trouble) if trouble.kind() == ErrorKind::TimedOut && trouble.is_sent() => trouble,
            Err(trouble) => return Err(trouble),
        };
        tracing::debug!(
            error = trouble.message(),
            "no answer to something urgent, trying a new connection"
        );
        if let Some(number) = number {
            self.current.give_up(number);
        }
        let again = Box::pin(self.call(call, limit)).await;
        again.map(|(answer, _)| answer).map_err(Trouble::in_doubt)
    }

    /// One trip, whatever comes of it.
    pub(crate) async fn call_once(
        &self,
        call: &ScriptCall<'_>,
        limit: Duration,
    ) -> Result<RedisReply, Trouble> {
        let mut current = self.connection().await?;
        let what = Outgoing::Script(call);
        let until = current.0.connection.until(limit);
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
        call: &ScriptCall<'_>,
        limit: Duration,
        worth_it: impl Fn(&RedisReply) -> bool,
    ) -> Result<(RedisReply, u32), Trouble> {
        // WAIT counts from the last write of its own connection, so it must be on the same one.
        let mut wait = redis::cmd("WAIT");
        let patience = self.config.replicas_timeout;
        wait.arg(self.config.replicas).arg(millis(patience));
        let mut current = self.connection().await?;
        let (answer, count) = if let Some(until) = current.0.connection.until(limit) {
            let what = Outgoing::Counted(call, &wait);
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
            let answer = self
                .within(limit, &mut current, Outgoing::Script(call))
                .await?;
            let answer = RedisReply::from(answer);
            if !worth_it(&answer) {
                return Ok((answer, 0));
            }
            let what = Outgoing::Command(&wait);
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
        let what = Outgoing::At(None, &publish);
        let limit = self.config.answer_timeout;
        self.within(limit, &mut current, what).await.map(|_| ())
    }

    /// Lets every master of a cluster know a script that can be run without keys, as far as they answer in time: else its first use costs two
    /// answers, and nothing is wrong.
    pub(crate) async fn teach(&self, script: &Script) -> Result<(), Trouble> {
        let mut current = self.connection().await?;
        let nodes = self.masters(&mut current).await?;
        let mut run = redis::cmd("EVAL");
        run.arg(script.source).arg(0).arg("1");
        let limit = self.config.connect_timeout / 4;
        join_all(nodes.iter().map(|node| {
            let (mut connection, run) = (current.0.connection.clone(), run.clone());
            async move {
                timeout(limit, connection.send_to(node.as_ref(), run))
                    .await
                    .ok()
            }
        }))
        .await;
        Ok(())
    }

    /// The runtime that drives the connection in use.
    pub(crate) fn home(&self) -> Option<Handle> {
        self.current.look(|current, _| current.home.clone())?
    }

    /// Ends the connection; later calls are refused.
    pub(crate) fn close(&self) {
        self.current.close();
    }

    async fn connection(&self) -> Result<(OpenConnection, u64), Trouble> {
        match self.current.get() {
            Some(current) => Ok(current),
            // In a box, like everything rare: the future of every call is as large as its largest part.
            None => Box::pin(self.reconnect()).await,
        }
    }

    async fn reconnect(&self) -> Result<(OpenConnection, u64), Trouble> {
        let make = async {
            let (connection, silence) = self.open().await.map_err(Trouble::unsent)?;
            Ok(OpenConnection {
                connection,
                home: Handle::try_current().ok(),
                silence: Arc::new(silence),
            })
        };
        let limit = self.config.connect_timeout;
        self.current.get_or_make(limit, make).await
    }

    /// Waits for an answer, and gives the connection up when it is dead or frozen.
    async fn within(
        &self,
        limit: Duration,
        (current, number): &mut (OpenConnection, u64),
        what: Outgoing<'_>,
    ) -> Result<Value, Trouble> {
        let asked = Instant::now();
        let mut waits = PendingAnswer {
            link: self,
            silence: current.silence.clone(),
            number: *number,
            since: asked,
            over: false,
        };
        let trip = timeout(limit, current.connection.go(what)).await;
        waits.over = true;
        drop(waits);
        let mut trouble = match trip {
            Ok(Ok(answer)) => {
                current.silence.ended(what);
                return Ok(answer);
            }
            Ok(Err(error)) => Trouble::from(error),
            Err(_) => kit::no_answer(limit).into(),
        };
        // The client finds the way in a cluster by itself, and keeps its connections.
        trouble.broken &= !(trouble.passing && self.config.is_cluster());
        let missing = Missing {
            asked,
            hasty: limit < self.config.answer_timeout,
        };
        let frozen =
            trouble.kind() == ErrorKind::TimedOut && current.silence.goes_on(what, missing);
        if trouble.broken || frozen {
            self.current.give_up(*number);
        }
        Err(trouble)
    }
}

/// A call that waits for its answer, and may be dropped before there is one.
struct PendingAnswer<'a> {
    link: &'a RedisLink,
    silence: Arc<Silence>,
    number: u64,
    since: Instant,
    over: bool,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        if !self.over && self.silence.given_up(self.since) {
            self.link.current.give_up(self.number);
        }
    }
}

/// What a node of a quorum must know: whether it is still talking to the same server.
impl RedisLink {
    /// The number of the connection in use; a new connection has a higher one.
    pub(crate) fn number(&self) -> Option<u64> {
        self.current.look(|_, number| number)
    }

    /// What the server says about itself, and the number of the connection on which it did.
    pub(crate) async fn server_info(&self) -> Result<(u64, RedisReply), Trouble> {
        let mut current = self.connection().await?;
        let mut ask = redis::cmd("INFO");
        ask.arg("server");
        let info = self
            .within(
                self.config.answer_timeout,
                &mut current,
                Outgoing::At(None, &ask),
            )
            .await?;
        Ok((current.1, info.into()))
    }
}

impl fmt::Debug for RedisLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLink")
            .field("config", &self.config)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

/// Whole milliseconds, at least one.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
