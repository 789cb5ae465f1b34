//! PostgreSQL without dlock.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use tokio_postgres::{NoTls, Statement};

/// Two updates of a row: the least that a lock in a table can be.
pub(crate) struct Pair {
    client: Arc<tokio_postgres::Client>,
    update: Statement,
}

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let table = "CREATE TABLE IF NOT EXISTS b_raw (id int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50); \
                     INSERT INTO b_raw VALUES (1, 0) ON CONFLICT DO NOTHING";
        client.batch_execute(table).await?;
        let update = "UPDATE b_raw SET n = n + 1 WHERE id = $1 RETURNING n";
        let update = client.prepare(update).await?;
        let client = Arc::new(client);
        Ok(Self { client, update })
    }
}

#[async_trait]
impl Client for Pair {
    async fn lock(&self, _: &str) -> Result<Box<dyn Hold>> {
        self.client.query_one(&self.update, &[&1]).await?;
        Ok(Box::new(Updated {
            client: self.client.clone(),
            update: self.update.clone(),
        }))
    }
}

struct Updated {
    client: Arc<tokio_postgres::Client>,
    update: Statement,
}

#[async_trait]
impl Hold for Updated {
    async fn release(self: Box<Self>) -> Result<()> {
        self.client.query_one(&self.update, &[&1]).await?;
        Ok(())
    }
}

/// The lock of the crate sqlx, which a connection holds.
pub(crate) struct Advisory(sqlx::PgPool);

impl Advisory {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
        Ok(Self(options.connect(url).await?))
    }
}

#[async_trait]
impl Client for Advisory {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let lock = sqlx::postgres::PgAdvisoryLock::new(name);
        let connection = self.0.acquire().await?;
        Ok(Box::new(Taken(lock.acquire(connection).await?)))
    }
}

struct Taken(sqlx::postgres::PgAdvisoryLockGuard<sqlx::pool::PoolConnection<sqlx::Postgres>>);

#[async_trait]
impl Hold for Taken {
    async fn release(self: Box<Self>) -> Result<()> {
        self.0.release_now().await?;
        Ok(())
    }
}
