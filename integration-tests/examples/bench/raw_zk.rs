//! ZooKeeper without dlock, by the crate zookeeper-client.

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

async fn connect(url: &str) -> Result<zookeeper_client::Client> {
    let servers = url.trim_start_matches("zk://");
    let client = zookeeper_client::Client::connect(servers).await?;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    // Somebody else may have made it.
    let _ = client.create("/raw", b"", &persistent).await;
    Ok(client)
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
        self.0.create(&path, b"bench", &options).await?;
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
        Ok(self.client.delete(&self.path, None).await?)
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
