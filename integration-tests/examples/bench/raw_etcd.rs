//! etcd without dlock.

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use etcd_client::{Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp};

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
        let taken = client.txn(Txn::new().when([free]).and_then([put])).await?;
        if !taken.succeeded() {
            return Err("busy".into());
        }
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
