//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Commands and answers are those of the crate `redis` and no part of our promises: any version of this crate may change them.

use std::sync::Arc;

use dlock_core::{Error, Operation, Result};
pub use redis;
use redis::aio::{ConnectionManager, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, FromRedisValue, Value};

use crate::connect::{Connection, RedisLink};
use crate::error::Trouble;
use crate::{Config, RedisBackend};

impl Config {
    /// A connection of its own to the same servers, by whatever way these settings name: one server, Sentinel, Cluster, TLS.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), dlock_core::Error> {
    /// use dlock_redis::client::redis;
    ///
    /// let client = dlock_redis::Config::from_url("redis+cluster://n1,n2")?.client().await?;
    /// let stock: u64 = client.query(redis::cmd("GET").arg("stock")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    pub async fn client(&self) -> Result<Client> {
        self.check()
            .map_err(|error| Self::URL.with_context(error))?;
        let link = RedisLink::new(Arc::new(self.clone()), None);
        link.connect()
            .await
            .map_err(|trouble| with_context(trouble).with_operation(Operation::Connect))?;
        Ok(Client { link })
    }
}

/// A connection that the application has already, for [`Config::connect_over`].
#[derive(Clone)]
pub struct Given(Connection);

impl From<MultiplexedConnection> for Given {
    fn from(connection: MultiplexedConnection) -> Self {
        Self(Connection::One(connection))
    }
}

impl From<ConnectionManager> for Given {
    fn from(connection: ConnectionManager) -> Self {
        Self(Connection::Managed(connection))
    }
}

impl From<ClusterConnection> for Given {
    fn from(connection: ClusterConnection) -> Self {
        Self(Connection::Cluster(connection))
    }
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            Connection::One(_) => "MultiplexedConnection",
            Connection::Managed(_) => "ConnectionManager",
            Connection::Cluster(_) => "ClusterConnection",
        })
    }
}

impl Config {
    /// Keeps locks over a connection that the application has already, so that they cost the server one connection more, for grants, and with
    /// [`Style::Plain`](crate::Style::Plain) none. These settings must name the same server and database; the connection for grants is made by them.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock_redis::client::redis;
    ///
    /// let client = redis::Client::open("redis://cache")?; // as the application has it
    /// let manager = client.get_connection_manager().await?;
    /// let backend = dlock_redis::Config::from_url("redis://cache")?.connect_over(manager.clone()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What cannot be promised then:
    ///
    /// - **Time-outs.** The connection's own response time-out comes before [`answer_timeout`](Config::answer_timeout) where it is shorter, and a large reply
    ///   or a blocking command of the application delays renewals: keep both off it.
    /// - **A frozen connection is not replaced.** A [`ConnectionManager`] connects again when the connection breaks, but not while it is only silent, and a
    ///   [`MultiplexedConnection`] never does: then locks fail with it. A renewal that finds no answer is tried again on the same connection.
    /// - **A request may be sent twice in silence** by a [`ClusterConnection`] that retries: a release whose first answer was lost may then say
    ///   [`AlreadyLost`](dlock_core::Released::AlreadyLost). Build it with `retries(0)`.
    /// - [`replicas`](Config::replicas) is refused: waiting for replicas blocks the connection.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    pub async fn connect_over(self, connection: impl Into<Given>) -> Result<RedisBackend> {
        RedisBackend::connect_over(self, connection.into().0).await
    }
}

/// Made by [`Config::client`]. A connection that broke is replaced for the next command; nothing is sent twice.
#[derive(Debug)]
pub struct Client {
    link: RedisLink,
}

impl Client {
    /// Sends a command to the server that is responsible for its keys.
    ///
    /// # Errors
    ///
    /// Whatever befalls the trip, and an answer of another type.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        read(self.link.query(cmd).await.map_err(with_context)?)
    }

    /// Sends a command to every master. With the answer comes the master's address, if there are several.
    ///
    /// # Errors
    ///
    /// As for [`query`](Client::query), for the first master that fails.
    pub async fn query_masters<T: FromRedisValue>(
        &self,
        cmd: &Cmd,
    ) -> Result<Vec<(Option<String>, T)>> {
        let answers = self.link.query_masters(cmd).await.map_err(with_context)?;
        answers
            .into_iter()
            .map(|(place, answer)| Ok((place, read(answer)?)))
            .collect()
    }
}

fn read<T: FromRedisValue>(answer: Value) -> Result<T> {
    redis::from_redis_value(answer)
        .map_err(|error| with_context(redis::RedisError::from(error).into()))
}

fn with_context(trouble: Trouble) -> Error {
    Error::from(trouble).with_backend("redis")
}
