//! The client below, for questions and data that are not locks (feature `client`).
//!
//! Its types are those of the crate `mysql_async` and no part of our promises: any version of this crate may change them.

use dlock_core::Result;
use mysql_async::{Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts};

use crate::Config;
use crate::connect;

impl Config {
    /// A pool of connections to the same database, with the login and the certificates of these settings. It connects when it is asked for
    /// a connection, and has no time-outs.
    ///
    /// ```no_run
    /// # async fn ask() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock_mysql::mysql_async::prelude::Queryable;
    ///
    /// let pool = dlock_mysql::Config::from_url("mysql://app:s3cret@db/shop")?.client()?;
    /// let left: Option<u64> = pool.get_conn().await?.query_first("SELECT items FROM stock").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// A setting that is wrong.
    pub fn client(&self) -> Result<Pool> {
        self.check()?;
        let mut pool = PoolOpts::default();
        if let Some(constraints) = PoolConstraints::new(0, self.connections) {
            pool = pool.with_constraints(constraints);
        }
        let opts = connect::opts(self, "SET autocommit = 1");
        Ok(Pool::new(Opts::from(
            OptsBuilder::from_opts(opts).pool_opts(pool),
        )))
    }
}
