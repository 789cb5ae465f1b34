//! ZooKeeper without dlock, by the crate zookeeper-client.

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use tokio::sync::mpsc;
use zookeeper_client::{Acls, AddWatchMode, CreateMode, EventType, LockOptions, LockPrefix};

use crate::bell::Bell;

async fn connect(url: &str) -> Result<zookeeper_client::Client> {
    let servers = url.trim_start_matches("zk://");
    let client = zookeeper_client::Client::connect(servers).await?;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    // Somebody else may have made it.
    let _ = client.create("/raw", b"", &persistent).await;
    Ok(client)
}

/// Whether it was done, or this came in between.
fn unless<T>(
    expected: zookeeper_client::Error,
    done: std::result::Result<T, zookeeper_client::Error>,
) -> Result<()> {
    match done {
        Err(error) if error != expected => Err(error.into()),
        _ => Ok(()),
    }
}

/// The least that a lock can be: a node that goes with its session.
pub(crate) struct Pair(zookeeper_client::Client);

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(Self(connect(url).await?))
    }
}

#[async_trait]
impl Client for Pair {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let path = format!("/raw/{name}");
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        // Of many names, one that another task has just now costs the same.
        let made = self.0.create(&path, b"bench", &options).await;
        unless(zookeeper_client::Error::NodeExists, made)?;
        let client = self.0.clone();
        Ok(Box::new(Node { client, path }))
    }
}

struct Node {
    client: zookeeper_client::Client,
    path: String,
}

#[async_trait]
impl Hold for Node {
    async fn release(self: Box<Self>) -> Result<()> {
        let deleted = self.client.delete(&self.path, None).await;
        unless(zookeeper_client::Error::NoNode, deleted)
    }
}

/// The lock of the crate itself.
pub(crate) struct Recipe(zookeeper_client::Client);

impl Recipe {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(Self(connect(url).await?))
    }
}

#[async_trait]
impl Client for Recipe {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let folder = format!("/raw/{name}");
        let prefix = LockPrefix::new_curator(&folder, "lock-")?;
        let ancestors = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::from(Acls::anyone_all()).with_ancestor_options(ancestors)?;
        let held = self.0.lock(prefix, b"", options).await?;
        let path = held.lock_path().to_owned();
        // It would delete once more, and not wait for it.
        std::mem::forget(held);
        let client = self.0.clone();
        Ok(Box::new(Node { client, path }))
    }
}

/// A node that is deleted, and the event of that.
pub(crate) struct DeleteAndEvent {
    client: zookeeper_client::Client,
    own: String,
}

impl DeleteAndEvent {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        let own = uuid::Uuid::new_v4().simple().to_string();
        Ok(Self { client, own })
    }

    fn path(&self, name: &str) -> String {
        format!("/raw/{name}/{}", self.own)
    }

    async fn put(&self, path: &str) -> Result<()> {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        self.client.create(path, b"", &options).await?;
        Ok(())
    }
}

#[async_trait]
impl Bell for DeleteAndEvent {
    async fn listen(&self, name: &str) -> Result<mpsc::UnboundedReceiver<()>> {
        let folder = format!("/raw/{name}");
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        // The other process may have made it.
        let _ = self.client.create(&folder, b"", &persistent).await;
        let own = self.path(name);
        self.put(&own).await?;
        let (tell, heard) = mpsc::unbounded_channel();
        let watched = self
            .client
            .watch(&folder, AddWatchMode::PersistentRecursive);
        let mut events = watched.await?;
        tokio::spawn(async move {
            loop {
                let event = events.changed().await;
                if event.event_type == EventType::Session {
                    return;
                }
                let rings = event.event_type == EventType::NodeDeleted && event.path != own;
                if rings && tell.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(heard)
    }

    async fn ring(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        self.client.delete(&path, None).await?;
        // To be deleted the next time, while the other one has its turn.
        self.put(&path).await
    }
}
