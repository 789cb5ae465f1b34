//! The stock as a row in MySQL or MariaDB, in a table of its own.

use std::time::Duration;

use async_trait::async_trait;
use dlock_mysql::Config;
use dlock_mysql::mysql_async::prelude::Queryable;
use dlock_mysql::mysql_async::{Conn, Error, Pool};

use crate::demo::stock::Stock;
use crate::exit::{Failure, UNAVAILABLE};

/// The client has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(10);
/// Those of demos that were killed. The names are ours: letters, digits and underscores.
const OLD_TABLES: &str = "SELECT CONVERT(table_name USING utf8mb4) FROM information_schema.tables \
     WHERE table_schema = DATABASE() AND table_name LIKE 'dlock\\_demo\\_%' AND create_time < NOW() - INTERVAL 1 HOUR";

struct MySqlStock {
    pool: Pool,
    table: String,
}

pub(crate) async fn open(url: &str, id: &str) -> Result<Box<dyn Stock>, Failure> {
    Ok(Box::new(MySqlStock {
        pool: Config::from_url(url)?.client().await?,
        table: id.replace('-', "_"),
    }))
}

impl MySqlStock {
    /// On a connection that belongs to this trip: one whose future was dropped answers the next question wrongly.
    async fn trip<T>(
        &self,
        work: impl AsyncFnOnce(&mut Conn) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let trip = async {
            let mut connection = self.pool.get_conn().await?;
            work(&mut connection).await
        };
        match tokio::time::timeout(PATIENCE, trip).await {
            Ok(done) => done.map_err(|error| failed(&error)),
            Err(_) => Err(failed(&"no answer")),
        }
    }
}

#[async_trait]
impl Stock for MySqlStock {
    async fn fill(&self, items: u64) -> Result<(), Failure> {
        let table = &self.table;
        let create =
            format!("CREATE TABLE {table} (items BIGINT UNSIGNED NOT NULL) ENGINE = InnoDB");
        let insert = format!("INSERT INTO {table} VALUES ({items})");
        self.trip(async |connection: &mut Conn| {
            for old in connection.query::<String, _>(OLD_TABLES).await? {
                connection
                    .query_drop(format!("DROP TABLE IF EXISTS `{old}`"))
                    .await?;
            }
            connection.query_drop(create).await?;
            connection.query_drop(insert).await
        })
        .await
    }

    async fn read(&self) -> Result<u64, Failure> {
        let select = format!("SELECT items FROM {}", self.table);
        let items = self
            .trip(async |connection: &mut Conn| connection.query_first(select).await)
            .await?;
        items.ok_or_else(|| failed(&"the stock is gone"))
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        let update = format!("UPDATE {} SET items = {items}", self.table);
        self.trip(async |connection: &mut Conn| connection.query_drop(update).await)
            .await
    }

    async fn remove(&self) -> Result<(), Failure> {
        let drop = format!("DROP TABLE {}", self.table);
        self.trip(async |connection: &mut Conn| connection.query_drop(drop).await)
            .await
    }
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(UNAVAILABLE, format!("mysql: {error}"))
}
