//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `tokio_postgres` and no part of our promises: any version of this crate may change them.

use dlock_core::{Error, Operation, Result};
use tokio_postgres::Client;

use crate::Config;
use crate::connect::SharedConnections;

impl Config {
    /// A connection to the same database, with the login and the certificates of these settings; of several hosts, to the one that takes
    /// writes. A task of its own drives it until the client is dropped.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = dlock_postgres::Config::from_url("postgres://app:s3cret@db/shop")?.client().await?;
    /// let left: i64 = client.query_one("SELECT items FROM stock", &[]).await?.get(0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A setting that is wrong, or when the server cannot be reached or refuses us.
    pub async fn client(&self) -> Result<Client> {
        self.check()
            .map_err(|error| Self::URL.with_context(error))?;
        let wire = SharedConnections::new(self.clone()).open_alone().await;
        let wire = wire.map_err(|trouble| {
            Error::from(trouble)
                .with_backend("postgres")
                .with_operation(Operation::Connect)
        })?;
        let (client, driver) = wire.into_parts();
        if let Some(driver) = driver {
            tokio::spawn(driver);
        }
        Ok(client)
    }

    /// The schema of our tables.
    pub fn schema_name(&self) -> &str {
        &self.schema
    }
}
