//! MySQL without dlock. A connection serves one task at a time, so a client of several tasks has several.

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

use crate::baselines::number_of;
use crate::pool::{Pool, Pooled};

async fn connect(url: String) -> Result<Conn> {
    // Ours alone knows these.
    let url = url.split('?').next().unwrap_or_default();
    Ok(Conn::new(Opts::from_url(url)?).await?)
}

/// A table with a row for each of the names that a crowd uses.
async fn table(conn: &mut Conn) -> Result<()> {
    let table =
        "CREATE TABLE IF NOT EXISTS b_raw (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB";
    conn.query_drop(table).await?;
    let rows: Vec<String> = (0..1_000).map(|id| format!("({id}, 0)")).collect();
    let rows = format!("INSERT IGNORE INTO b_raw VALUES {}", rows.join(", "));
    Ok(conn.query_drop(rows).await?)
}

/// Two updates of a row: the least that a lock in a table can be.
pub(crate) struct Pair(Pool<Conn>);

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let mut conn = connect(url.to_owned()).await?;
        table(&mut conn).await?;
        Ok(Self(Pool::new(url, conn)))
    }
}

const UPDATE: &str = "UPDATE b_raw SET n = n + 1 WHERE id = ?";

#[async_trait]
impl Client for Pair {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut conn = self.0.take(connect).await?;
        let id = number_of(name);
        conn.exec_drop(UPDATE, (id,)).await?;
        // Another task may have the connection meanwhile: nothing holds it.
        drop(conn);
        let conn = self.0.take(connect).await?;
        Ok(Box::new(Updated { conn, id }))
    }
}

struct Updated {
    conn: Pooled<Conn>,
    id: i32,
}

#[async_trait]
impl Hold for Updated {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let id = self.id;
        Ok(self.conn.exec_drop(UPDATE, (id,)).await?)
    }
}

/// The server's own, which a connection holds.
pub(crate) struct GetLock {
    connections: Pool<Conn>,
    /// With a committed update behind it: the least that brings a token.
    with_update: bool,
}

impl GetLock {
    pub(crate) async fn connect(url: &str, with_update: bool) -> Result<Self> {
        let mut conn = connect(url.to_owned()).await?;
        if with_update {
            table(&mut conn).await?;
        }
        Ok(Self {
            connections: Pool::new(url, conn),
            with_update,
        })
    }
}

#[async_trait]
impl Client for GetLock {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let mut conn = self.connections.take(connect).await?;
        let take = "SELECT GET_LOCK(?, 600)";
        let got: Option<i64> = conn.exec_first(take, (name,)).await?;
        if got != Some(1) {
            return Err("busy".into());
        }
        if self.with_update {
            conn.exec_drop(UPDATE, (number_of(name),)).await?;
        }
        let name = name.to_owned();
        Ok(Box::new(Got { conn, name }))
    }
}

struct Got {
    conn: Pooled<Conn>,
    name: String,
}

#[async_trait]
impl Hold for Got {
    async fn release(mut self: Box<Self>) -> Result<()> {
        let name = self.name.clone();
        let free = "SELECT RELEASE_LOCK(?)";
        Ok(self.conn.exec_drop(free, (name,)).await?)
    }
}
