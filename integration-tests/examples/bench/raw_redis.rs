//! Redis without dlock, on one server or on several.

use std::time::Duration;

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use futures::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, Value,
};
use tokio::sync::{Mutex, mpsc};

use crate::bell::Bell;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const LEASE: Duration = Duration::from_secs(30);

/// The servers of a URL of ours, as others write them.
fn servers(url: &str) -> Vec<String> {
    let hosts = url.split_once("://").map_or(url, |(_, hosts)| hosts);
    let hosts = hosts.split(['/', '?']).next().unwrap_or_default();
    hosts
        .split(',')
        .map(|host| format!("redis://{host}"))
        .collect()
}

async fn connect(
    url: &str,
    push: Option<mpsc::UnboundedSender<PushInfo>>,
) -> Result<MultiplexedConnection> {
    let info = url.into_connection_info()?;
    let login = info.redis_settings().clone();
    let info = info.set_redis_settings(login.set_protocol(ProtocolVersion::RESP3));
    let mut settings = AsyncConnectionConfig::new().set_response_timeout(None);
    if let Some(push) = push {
        settings = settings.set_push_sender(push);
    }
    let client = redis::Client::open(info)?;
    let connection = client.get_multiplexed_async_connection_with_config(&settings);
    Ok(connection.await?)
}

/// The convention everybody knows, at all servers at once. Of many names, one that another task has just now costs the same.
pub(crate) struct Pair {
    connections: Vec<MultiplexedConnection>,
    /// Of the script.
    hash: String,
}

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (mut connections, mut hash) = (Vec::new(), String::new());
        for server in servers(url) {
            let mut connection = connect(&server, None).await?;
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(COMPARE_AND_DELETE);
            hash = load.query_async(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self { connections, hash })
    }
}

#[async_trait]
impl Client for Pair {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let owner = uuid::Uuid::new_v4().simple().to_string();
        let takes = self.connections.iter().cloned().map(|mut connection| {
            let mut set = redis::cmd("SET");
            set.arg(name).arg(&owner).arg("NX");
            set.arg("PX").arg(LEASE.as_millis() as u64);
            async move { set.query_async::<Option<String>>(&mut connection).await }
        });
        try_join_all(takes).await?;
        Ok(Box::new(Held {
            connections: self.connections.clone(),
            hash: self.hash.clone(),
            name: name.to_owned(),
            owner,
        }))
    }
}

struct Held {
    connections: Vec<MultiplexedConnection>,
    hash: String,
    name: String,
    owner: String,
}

#[async_trait]
impl Hold for Held {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let frees = self.connections.iter_mut().map(|connection| {
            let mut free = redis::cmd("EVALSHA");
            free.arg(&self.hash).arg(1).arg(&self.name).arg(&self.owner);
            async move { free.query_async::<i64>(connection).await }
        });
        try_join_all(frees).await?;
        Ok(())
    }
}

/// The crate rslock. It has no queue: its own pauses, and as many tries as it takes.
pub(crate) struct RsLock(rslock::LockManager);

impl RsLock {
    pub(crate) fn new(url: &str) -> Self {
        Self(rslock::LockManager::new(servers(url)))
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

/// A message by a script, and its arrival at another connection.
pub(crate) struct Message {
    connection: MultiplexedConnection,
    pushed: Mutex<Option<mpsc::UnboundedReceiver<PushInfo>>>,
    hash: String,
    own: String,
}

const PUBLISH: &str = "return redis.call('PUBLISH', ARGV[1], ARGV[2])";

impl Message {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (push, pushed) = mpsc::unbounded_channel();
        let mut connection = connect(url, Some(push)).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(PUBLISH);
        let hash = load.query_async(&mut connection).await?;
        Ok(Self {
            connection,
            pushed: Mutex::new(Some(pushed)),
            hash,
            own: uuid::Uuid::new_v4().simple().to_string(),
        })
    }
}

#[async_trait]
impl Bell for Message {
    async fn listen(&self, name: &str) -> Result<mpsc::UnboundedReceiver<()>> {
        self.connection.clone().subscribe(name).await?;
        let (tell, heard) = mpsc::unbounded_channel();
        let pushed = self.pushed.lock().await.take();
        let mut pushed = pushed.ok_or("one name for each client")?;
        let own = Value::BulkString(self.own.clone().into_bytes());
        tokio::spawn(async move {
            while let Some(info) = pushed.recv().await {
                let is_word = info.kind == PushKind::Message;
                if is_word && info.data.last() != Some(&own) && tell.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(heard)
    }

    async fn ring(&self, name: &str) -> Result<()> {
        let mut connection = self.connection.clone();
        let mut ring = redis::cmd("EVALSHA");
        ring.arg(&self.hash).arg(0).arg(name).arg(&self.own);
        ring.query_async::<i64>(&mut connection).await?;
        Ok(())
    }
}
