//! PostgreSQL without dlock.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_bench::{Client, Hold, Result};
use futures::future::poll_fn;
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::{AsyncMessage, NoTls, Statement};

use crate::baselines::number_of;
use crate::bell::Bell;

/// Without what ours alone knows.
fn bare(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

/// Two updates of a row: the least that a lock in a table can be.
pub(crate) struct Pair {
    client: Arc<tokio_postgres::Client>,
    update: Statement,
}

impl Pair {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, connection) = tokio_postgres::connect(bare(url), NoTls).await?;
        tokio::spawn(connection);
        let table = "CREATE TABLE IF NOT EXISTS b_raw (id int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50); \
                     INSERT INTO b_raw SELECT id, 0 FROM generate_series(0, 999) id ON CONFLICT DO NOTHING";
        client.batch_execute(table).await?;
        let update = "UPDATE b_raw SET n = n + 1 WHERE id = $1 RETURNING n";
        let update = client.prepare(update).await?;
        let client = Arc::new(client);
        Ok(Self { client, update })
    }
}

#[async_trait]
impl Client for Pair {
    async fn lock(&self, name: &str) -> Result<Box<dyn Hold>> {
        let row = number_of(name);
        self.client.query_one(&self.update, &[&row]).await?;
        Ok(Box::new(Updated {
            client: self.client.clone(),
            update: self.update.clone(),
            row,
        }))
    }
}

struct Updated {
    client: Arc<tokio_postgres::Client>,
    update: Statement,
    row: i32,
}

#[async_trait]
impl Hold for Updated {
    async fn release(self: Box<Self>) -> Result<()> {
        self.client.query_one(&self.update, &[&self.row]).await?;
        Ok(())
    }
}

/// The lock of the crate sqlx, which a connection holds.
pub(crate) struct Advisory(sqlx::PgPool);

impl Advisory {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
        Ok(Self(options.connect(bare(url)).await?))
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

/// A notification, and its arrival at another connection.
pub(crate) struct Notify {
    client: tokio_postgres::Client,
    heard: Mutex<Option<mpsc::UnboundedReceiver<()>>>,
    own: String,
}

impl Notify {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (client, mut connection) = tokio_postgres::connect(bare(url), NoTls).await?;
        let own = uuid::Uuid::new_v4().simple().to_string();
        let (tell, heard) = mpsc::unbounded_channel();
        let other = own.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message
                    && notification.payload() != other
                    && tell.send(()).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self {
            client,
            heard: Mutex::new(Some(heard)),
            own,
        })
    }
}

#[async_trait]
impl Bell for Notify {
    async fn listen(&self, name: &str) -> Result<mpsc::UnboundedReceiver<()>> {
        self.client
            .batch_execute(&format!("LISTEN \"{name}\""))
            .await?;
        let heard = self.heard.lock().await.take();
        heard.ok_or_else(|| "one name for each client".into())
    }

    async fn ring(&self, name: &str) -> Result<()> {
        let notify = "SELECT pg_notify($1, $2)";
        self.client.execute(notify, &[&name, &self.own]).await?;
        Ok(())
    }
}
