//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Commands and answers are those of the crate `redis` and no part of our promises: any version of this crate may change them.

use std::sync::Arc;

use dlock_core::{Error, Operation, Result};
pub use redis;
use redis::{Cmd, FromRedisValue, Value};

use crate::Config;
use crate::connect::Link;
use crate::error::Trouble;

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
            .map_err(|error| error.with_operation(Operation::Configure))
            .map_err(|error| error.with_backend("redis"))?;
        let link = Link::new(Arc::new(self.clone()), None);
        link.connect()
            .await
            .map_err(|trouble| explain(trouble).with_operation(Operation::Connect))?;
        Ok(Client { link })
    }
}

/// Made by [`Config::client`]. A connection that broke is replaced for the next command; nothing is sent twice.
#[derive(Debug)]
pub struct Client {
    link: Link,
}

impl Client {
    /// Sends a command to the server that is responsible for its keys.
    ///
    /// # Errors
    ///
    /// Whatever befalls the trip, and an answer of another type.
    pub async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        read(self.link.query(cmd).await.map_err(explain)?)
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
        let answers = self.link.query_masters(cmd).await.map_err(explain)?;
        answers
            .into_iter()
            .map(|(place, answer)| Ok((place, read(answer)?)))
            .collect()
    }
}

fn read<T: FromRedisValue>(answer: Value) -> Result<T> {
    redis::from_redis_value(answer).map_err(|error| explain(redis::RedisError::from(error).into()))
}

fn explain(trouble: Trouble) -> Error {
    Error::from(trouble).with_backend("redis")
}
