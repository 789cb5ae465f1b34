//! etcd without dlock.

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use etcd_client::{
    Compare, CompareOp, EventType, LockOptions, PutOptions, Txn, TxnOp, WatchOptions,
};
use tokio::sync::mpsc;

use crate::bell::Bell;

const LEASE: i64 = 60;

async fn connect(url: &str) -> Result<(etcd_client::Client, i64)> {
    let host = url.trim_start_matches("etcd://");
    let mut client = etcd_client::Client::connect([host], None).await?;
    let lease = client.lease_grant(LEASE, None).await?.id();
    Ok((client, lease))
}

/// The least that a lock can be: put a key under a lease if it is not there, and delete it.
pub(crate) struct Pair {
    client: etcd_client::Client,
    lease: i64,
}

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, lease) = connect(url).await?;
        Ok(Self { client, lease })
    }
}

#[async_trait]
impl Client for Pair {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut client = self.client.clone();
        let options = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(name, "0123456789abcdef0123456789abcdef", Some(options));
        let free = Compare::create_revision(name, CompareOp::Equal, 0);
        // Of many names, one that another task has just now costs the same.
        client.txn(Txn::new().when([free]).and_then([put])).await?;
        let name = name.to_owned();
        Ok(Box::new(Put { client, name }))
    }
}

struct Put {
    client: etcd_client::Client,
    name: String,
}

#[async_trait]
impl Hold for Put {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let delete = TxnOp::delete(self.name.as_str(), None);
        self.client.txn(Txn::new().and_then([delete])).await?;
        Ok(())
    }
}

/// etcd's own service, with a lease for each client.
pub(crate) struct LockRpc {
    client: etcd_client::Client,
    lease: i64,
}

impl LockRpc {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, lease) = connect(url).await?;
        Ok(Self { client, lease })
    }
}

#[async_trait]
impl Client for LockRpc {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut client = self.client.clone();
        let options = LockOptions::new().with_lease(self.lease);
        let held = client.lock(name, Some(options)).await?;
        let key = held.key().to_vec();
        Ok(Box::new(Locked { client, key }))
    }
}

struct Locked {
    client: etcd_client::Client,
    key: Vec<u8>,
}

#[async_trait]
impl Hold for Locked {
    async fn release(mut self: Box<Self>) -> Result<()> {
        self.client.unlock(self.key.clone()).await?;
        Ok(())
    }
}

/// A key that is deleted, and the event of that.
pub(crate) struct DeleteAndEvent {
    client: etcd_client::Client,
    own: String,
}

impl DeleteAndEvent {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, _) = connect(url).await?;
        let own = uuid::Uuid::new_v4().simple().to_string();
        Ok(Self { client, own })
    }

    fn key(&self, name: &str) -> String {
        format!("{name}/{}", self.own)
    }
}

#[async_trait]
impl Bell for DeleteAndEvent {
    async fn listen(&self, name: &str) -> Result<mpsc::UnboundedReceiver<()>> {
        let mut client = self.client.clone();
        client.put(self.key(name), "", None).await?;
        let (tell, heard) = mpsc::unbounded_channel();
        let folder = format!("{name}/");
        let own = self.key(name).into_bytes();
        let options = WatchOptions::new().with_prefix();
        let mut events = client.watch(folder, Some(options)).await?;
        tokio::spawn(async move {
            while let Ok(Some(answer)) = events.message().await {
                let of_others = |event: &&etcd_client::Event| {
                    event.event_type() == EventType::Delete
                        && event.kv().is_some_and(|entry| entry.key() != own)
                };
                if answer.events().iter().any(|event| of_others(&event)) && tell.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(heard)
    }

    async fn ring(&self, name: &str) -> Result<()> {
        let mut client = self.client.clone();
        client.delete(self.key(name), None).await?;
        // To be deleted the next time, while the other one has its turn.
        client.put(self.key(name), "", None).await?;
        Ok(())
    }
}
