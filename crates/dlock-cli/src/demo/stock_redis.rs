//! The stock as a key in Redis.

use async_trait::async_trait;
use dlock_redis::Config;
use dlock_redis::client::{Client, redis};

use crate::demo::stock::Stock;
use crate::exit::Failure;

/// A demo that was killed leaves its key no longer than this.
const FORGET_AFTER: u64 = 3600;

struct RedisStock {
    client: Client,
    key: String,
}

pub(crate) async fn open(url: &str, id: &str) -> Result<Box<dyn Stock>, Failure> {
    Ok(Box::new(RedisStock {
        client: Config::from_url(url)?.client().await?,
        key: id.to_owned(),
    }))
}

#[async_trait]
impl Stock for RedisStock {
    async fn fill(&self, items: u64) -> Result<(), Failure> {
        self.write(items).await
    }

    async fn read(&self) -> Result<u64, Failure> {
        Ok(self.client.query(redis::cmd("GET").arg(&self.key)).await?)
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(items).arg("EX").arg(FORGET_AFTER);
        Ok(self.client.query(&set).await?)
    }

    async fn remove(&self) -> Result<(), Failure> {
        Ok(self.client.query(redis::cmd("DEL").arg(&self.key)).await?)
    }
}
