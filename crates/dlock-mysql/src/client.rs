//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `mysql_async` and no part of our promises: any version of this crate may change them.

use dlock_core::{Error, Operation, Result, kit};
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};

use crate::connect;
use crate::error::Trouble;
use crate::{Config, MySqlBackend};

impl Config {
    /// Keeps locks over the application's own pool, so that they cost the server no connection more. For the modes `lease` and `unique`; in the others a
    /// hold ends with its connection, so they need their own. These settings must name the same server and database.
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock_mysql::mysql_async::Pool;
    ///
    /// let pool = Pool::from_url("mysql://app:s3cret@db/shop")?; // as the application has it
    /// let backend = dlock_mysql::Config::from_url("mysql://app:s3cret@db/shop")?.connect_over(pool.clone()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What it costs, and what cannot be promised then:
    ///
    /// - A call takes a connection out of the pool, sets it up, prepares its statement, and gives it back to be reset: three trips more than over a
    ///   connection of our own.
    /// - A pool that is used up delays renewals, and with them the hold: leave room in it, for [`connections`](Config::connections) at most.
    /// - Login, TLS and TCP settings are the pool's.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect), and when the pool is one over which locks would not work: one of another database, or one that counts the rows that
    /// were found (`client_found_rows`).
    pub async fn connect_over(self, pool: Pool) -> Result<MySqlBackend> {
        let failed = |error: Error| {
            let error = error.with_operation(Operation::Connect);
            error.with_backend("mysql")
        };
        let limit = self.connect_timeout;
        let conn = tokio::time::timeout(limit, pool.get_conn()).await;
        let conn = conn.map_err(|_| failed(kit::no_connection(limit)))?;
        let conn = conn.map_err(|error| failed(Trouble::from(error).while_connecting().into()))?;
        let opts = conn.opts();
        if opts.client_found_rows() {
            return Err(failed(Error::invalid(
                "the pool has client_found_rows, and locks need to know what was changed: make one without",
            )));
        }
        if opts.db_name() != Some(self.database.as_str()) {
            return Err(failed(Error::invalid(format!(
                "the pool is one of the database {:?}, and the settings name {:?}",
                opts.db_name().unwrap_or_default(),
                self.database
            ))));
        }
        drop(conn);
        MySqlBackend::connect_over(self, pool).await
    }

    /// A pool of connections to the same database, with the login and the certificates of these settings. It connects when it is asked for
    /// a connection, and has no time-outs.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock_mysql::mysql_async::prelude::Queryable;
    ///
    /// let pool = dlock_mysql::Config::from_url("mysql://app:s3cret@db/shop")?.client().await?;
    /// let left: Option<u64> = pool.get_conn().await?.query_first("SELECT items FROM stock").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A setting that is wrong.
    pub async fn client(&self) -> Result<Pool> {
        self.check()?;
        let mut pool = PoolOpts::default();
        if let Some(constraints) = PoolConstraints::new(0, self.connections) {
            pool = pool.with_constraints(constraints);
        }
        let opts = connect::opts(self, "SET autocommit = 1").await?;
        Ok(Pool::new(Opts::from(
            OptsBuilder::from_opts(opts).pool_opts(pool),
        )))
    }
}
