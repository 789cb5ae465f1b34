//! The stock as a key in etcd.

use async_trait::async_trait;
use dlock_etcd::Config;
use dlock_etcd::client::etcd_client::{Client, Error, PutOptions};

use crate::demo::stock::Stock;
use crate::exit::{Failure, UNAVAILABLE};

/// A demo that was killed leaves its key no longer than this.
const FORGET_AFTER: i64 = 3600;

struct EtcdStock {
    client: Client,
    key: String,
}

pub(crate) async fn open(url: &str, id: &str) -> Result<Box<dyn Stock>, Failure> {
    let config = Config::from_url(url)?;
    let mut last = Failure::new(UNAVAILABLE, "etcd: no server is named");
    // The client would send a part of the requests to a member that is down.
    for endpoint in config.endpoints() {
        let mut client = match config.client(&endpoint).await {
            Ok(client) => client,
            Err(error) => {
                last = error.into();
                continue;
            }
        };
        match client.status().await {
            Ok(_) => {
                let key = id.to_owned();
                return Ok(Box::new(EtcdStock { client, key }));
            }
            Err(error) => last = failed(&error),
        }
    }
    Err(last)
}

#[async_trait]
impl Stock for EtcdStock {
    async fn fill(&self, items: u64) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let lease = client.lease_grant(FORGET_AFTER, None).await;
        let lease = lease.map_err(|error| failed(&error))?;
        let options = PutOptions::new().with_lease(lease.id());
        let put = client.put(self.key.as_str(), items.to_string(), Some(options));
        put.await.map(drop).map_err(|error| failed(&error))
    }

    async fn read(&self) -> Result<u64, Failure> {
        let mut client = self.client.clone();
        let got = client.get(self.key.as_str(), None).await;
        let got = got.map_err(|error| failed(&error))?;
        let text = got.kvs().first().and_then(|kv| kv.value_str().ok());
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| Failure::new(UNAVAILABLE, "etcd: the stock is gone"))
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        let mut client = self.client.clone();
        // Keeps the lease of `fill`.
        let options = PutOptions::new().with_ignore_lease();
        let put = client.put(self.key.as_str(), items.to_string(), Some(options));
        put.await.map(drop).map_err(|error| failed(&error))
    }

    async fn remove(&self) -> Result<(), Failure> {
        let mut client = self.client.clone();
        let got = client.get(self.key.as_str(), None).await;
        let got = got.map_err(|error| failed(&error))?;
        match got.kvs().first().map(|kv| kv.lease()) {
            Some(lease) if lease != 0 => client.lease_revoke(lease).await.map(drop),
            _ => client.delete(self.key.as_str(), None).await.map(drop),
        }
        .map_err(|error| failed(&error))
    }
}

fn failed(error: &Error) -> Failure {
    Failure::new(UNAVAILABLE, format!("etcd: {error}"))
}
