//! The stock as a key in Redis.

use async_trait::async_trait;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use crate::demo::stock::Stock;
use crate::exit::Failure;
use crate::redis_link::failed;

/// A demo that was killed leaves its key no longer than this.
const FORGET_AFTER: u64 = 3600;

pub(crate) struct RedisStock {
    connection: MultiplexedConnection,
    key: String,
}

impl RedisStock {
    pub(crate) fn new(connection: MultiplexedConnection, key: &str) -> Self {
        Self {
            connection,
            key: key.to_owned(),
        }
    }
}

#[async_trait]
impl Stock for RedisStock {
    async fn read(&self) -> Result<u64, Failure> {
        let mut connection = self.connection.clone();
        connection
            .get(&self.key)
            .await
            .map_err(|error| failed(&error))
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        let mut connection = self.connection.clone();
        let written = connection.set_ex(&self.key, items, FORGET_AFTER);
        written.await.map_err(|error| failed(&error))
    }

    async fn remove(&self) -> Result<(), Failure> {
        let mut connection = self.connection.clone();
        connection
            .del(&self.key)
            .await
            .map_err(|error| failed(&error))
    }
}
