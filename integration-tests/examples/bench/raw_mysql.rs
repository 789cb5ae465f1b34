//! MySQL without dlock. A client has one connection, which one task uses at a time.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tokio::sync::{Mutex, OwnedMutexGuard};

async fn connect(url: &str) -> Result<Arc<Mutex<Conn>>> {
    let conn = Conn::new(Opts::from_url(url)?).await?;
    Ok(Arc::new(Mutex::new(conn)))
}

/// Two updates of a row: the least that a lock in a table can be.
pub(crate) struct Pair(Arc<Mutex<Conn>>);

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let conn = connect(url).await?;
        let table = "CREATE TABLE IF NOT EXISTS b_raw (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB";
        let mut first = conn.lock().await;
        first.query_drop(table).await?;
        let row = "INSERT IGNORE INTO b_raw VALUES (1, 0)";
        first.query_drop(row).await?;
        drop(first);
        Ok(Self(conn))
    }
}

const UPDATE: &str = "UPDATE b_raw SET n = n + 1 WHERE id = ?";

#[async_trait]
impl Client for Pair {
    async fn lock(&self, _: &str) -> Result<Box<dyn Hold>> {
        let mut conn = self.0.clone().lock_owned().await;
        conn.exec_drop(UPDATE, (1,)).await?;
        Ok(Box::new(Updated(conn)))
    }
}

struct Updated(OwnedMutexGuard<Conn>);

#[async_trait]
impl Hold for Updated {
    async fn release(mut self: Box<Self>) -> Result<()> {
        Ok(self.0.exec_drop(UPDATE, (1,)).await?)
    }
}

/// The server's own, which a connection holds.
pub(crate) struct GetLock(Arc<Mutex<Conn>>);

impl GetLock {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(Self(connect(url).await?))
    }
}

#[async_trait]
impl Client for GetLock {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut conn = self.0.clone().lock_owned().await;
        let name = name.to_owned();
        let got: Option<i64> = conn
            .exec_first("SELECT GET_LOCK(?, 600)", (name.as_str(),))
            .await?;
        if got != Some(1) {
            return Err("busy".into());
        }
        Ok(Box::new(Got { conn, name }))
    }
}

struct Got {
    conn: OwnedMutexGuard<Conn>,
    name: String,
}

#[async_trait]
impl Hold for Got {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let free = "SELECT RELEASE_LOCK(?)";
        Ok(self.conn.exec_drop(free, (self.name.as_str(),)).await?)
    }
}
