//! Redis without dlock.

use std::time::Duration;

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use redis::aio::MultiplexedConnection;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const LEASE: Duration = Duration::from_secs(30);

/// The convention everybody knows.
pub(crate) struct Pair {
    connection: MultiplexedConnection,
    /// Of the script.
    hash: String,
}

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(COMPARE_AND_DELETE);
        let hash = load.query_async(&mut connection).await?;
        Ok(Self { connection, hash })
    }
}

#[async_trait]
impl Client for Pair {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut connection = self.connection.clone();
        let owner = uuid::Uuid::new_v4().simple().to_string();
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&owner).arg("NX");
        set.arg("PX").arg(LEASE.as_millis() as u64);
        let taken: Option<String> = set.query_async(&mut connection).await?;
        taken.ok_or("busy")?;
        Ok(Box::new(Held {
            connection,
            hash: self.hash.clone(),
            name: name.to_owned(),
            owner,
        }))
    }
}

struct Held {
    connection: MultiplexedConnection,
    hash: String,
    name: String,
    owner: String,
}

#[async_trait]
impl Hold for Held {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let mut free = redis::cmd("EVALSHA");
        free.arg(&self.hash).arg(1).arg(&self.name).arg(&self.owner);
        let freed: i64 = free.query_async(&mut self.connection).await?;
        if freed == 1 {
            Ok(())
        } else {
            Err("lost".into())
        }
    }
}

/// The crate rslock with one server. It has no queue: its own pauses, and as many tries as it takes.
pub(crate) struct RsLock(rslock::LockManager);

impl RsLock {
    pub(crate) fn new(url: &str) -> Self {
        Self(rslock::LockManager::new(vec![url]))
    }
}

#[async_trait]
impl Client for RsLock {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        loop {
            if let Ok(lock) = self.0.lock(name, LEASE).await {
                let manager = self.0.clone();
                return Ok(Box::new(RsLocked { manager, lock }));
            }
        }
    }
}

struct RsLocked {
    manager: rslock::LockManager,
    lock: rslock::Lock,
}

#[async_trait]
impl Hold for RsLocked {
    async fn release(self: Box<Self>) -> Result<()> {
        self.manager.unlock(&self.lock).await;
        Ok(())
    }
}
