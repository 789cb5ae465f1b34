//! The stock as a row in PostgreSQL, in a table of its own.

use std::time::Duration;

use async_trait::async_trait;
use dlock_postgres::Config;
use dlock_postgres::tokio_postgres::Client;

use crate::demo::stock::Stock;
use crate::exit::{Failure, UNAVAILABLE};

/// The client has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(10);

struct PostgresStock {
    client: Client,
    /// With the schema of the locks. The names are ours: letters, digits and underscores.
    table: String,
}

pub(crate) async fn open(url: &str, id: &str) -> Result<Box<dyn Stock>, Failure> {
    let config = Config::from_url(url)?;
    let table = format!("\"{}\".\"{}\"", config.schema_name(), id.replace('-', "_"));
    let client = config.client().await?;
    Ok(Box::new(PostgresStock { client, table }))
}

impl PostgresStock {
    async fn run(&self, sql: &str) -> Result<(), Failure> {
        self.within(self.client.batch_execute(sql)).await
    }

    async fn within<T, E: std::fmt::Display>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(done) => done.map_err(|error| failed(&error)),
            Err(_) => Err(failed(&"no answer")),
        }
    }
}

#[async_trait]
impl Stock for PostgresStock {
    async fn fill(&self, items: u64) -> Result<(), Failure> {
        let table = &self.table;
        // Those of demos that were killed go when the next one begins: a table's comment says when it was made.
        let old = "DO $$ DECLARE t record; BEGIN \
             FOR t IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relname LIKE 'dlock\\_demo\\_%' AND c.relkind = 'r' \
               AND pg_has_role(c.relowner, 'USAGE') AND obj_description(c.oid) < to_char(now() - interval '1 hour', 'YYYY-MM-DD HH24:MI:SS') \
             LOOP EXECUTE 'DROP TABLE IF EXISTS ' || t.name; END LOOP; END $$";
        self.run(old).await?;
        self.run(&format!(
            "CREATE TABLE {table} (items bigint NOT NULL); INSERT INTO {table} VALUES ({items}); \
             DO $$ BEGIN EXECUTE 'COMMENT ON TABLE {table} IS ' || quote_literal(to_char(now(), 'YYYY-MM-DD HH24:MI:SS')); END $$"
        ))
        .await
    }

    async fn read(&self) -> Result<u64, Failure> {
        let select = format!("SELECT items FROM {}", self.table);
        let row = self.within(self.client.query_opt(&select, &[])).await?;
        let items: Option<i64> = row.and_then(|row| row.try_get(0).ok());
        items
            .and_then(|items| u64::try_from(items).ok())
            .ok_or_else(|| failed(&"the stock is gone"))
    }

    async fn write(&self, items: u64) -> Result<(), Failure> {
        self.run(&format!("UPDATE {} SET items = {items}", self.table))
            .await
    }

    async fn remove(&self) -> Result<(), Failure> {
        self.run(&format!("DROP TABLE {}", self.table)).await
    }
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(UNAVAILABLE, format!("postgres: {error}"))
}
