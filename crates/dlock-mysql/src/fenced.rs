//! Writes that a stale holder cannot make, inside your own transaction.
//!
//! A holder that was paused past its lease does not know it, and writes. A [`Fence`] keeps the highest token seen for each resource in a row,
//! and fails for a lower one, so that the stale holder's transaction is not committed.
//!
//! ```no_run
//! # async fn sell(guard: dlock_core::Guard, conn: &mut dlock_mysql::mysql_async::Conn) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_mysql::{fenced::Fence, mysql_async::{TxOpts, prelude::Queryable}};
//!
//! let fence = Fence::new("shop_")?; // its table is made once, by fence.table_sql()
//! let token = guard.token().ok_or("this backend gives no tokens")?;
//! let mut tx = conn.start_transaction(TxOpts::default()).await?;
//! fence.check(&mut tx, "stock:42", token).await?; // first: it locks the row of the resource until the commit
//! tx.query_drop("UPDATE stock SET n = n - 1 WHERE id = 42").await?;
//! tx.commit().await?;
//! guard.release().await?; // after the commit
//! # Ok(())
//! # }
//! ```

use dlock_core::fence::{Mark, SqlFence};
use dlock_core::{Error, ErrorKind, FencingToken, Result};
use mysql_async::prelude::Queryable;

use crate::error::Trouble;
use crate::key::check_prefix;

/// The table in which the highest token of each resource is kept, and what this program's tokens are: see [`dlock_core::fence`], which
/// also has the statements for other clients.
///
/// It may be in another database than the locks: it belongs where the protected rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    sql: SqlFence,
    epoch: i64,
    store: String,
}

impl Fence {
    /// The table with this prefix, as in `shop_fenced`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when the prefix is not one: letters, digits and `_`, at most 40 of them.
    pub fn new(table_prefix: &str) -> Result<Self> {
        check_prefix(table_prefix)?;
        Ok(Self {
            sql: SqlFence::mysql(&format!("{table_prefix}fenced"))?,
            epoch: 0,
            store: String::new(),
        })
    }

    /// Names the store of the locks ([`Locks::identity`](dlock_core::Locks::identity)), so that a token of another store is told from a lost hold.
    #[must_use]
    pub fn of_store(mut self, identity: impl Into<String>) -> Self {
        self.store = identity.into();
        self
    }

    /// Sets the epoch: one more with every move of the locks to another store. Default: 0.
    #[must_use]
    pub fn in_epoch(mut self, epoch: i64) -> Self {
        self.epoch = epoch;
        self
    }

    /// The SQL that makes the table, if it is not there. Run it once.
    ///
    /// ```
    /// let fence = dlock_mysql::fenced::Fence::new("shop_")?;
    /// assert!(fence.table_sql().starts_with("CREATE TABLE IF NOT EXISTS `shop_fenced`"));
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn table_sql(&self) -> &str {
        self.sql.table_sql()
    }

    /// Checks that nobody with a higher token has written to the resource, and records this one, as part of the caller's transaction.
    ///
    /// Call it before the writes it is to protect, with the same transaction. A resource has a name of up to 255 bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when a later holder was here, [`ErrorKind::Conflict`] when the last one was of another store or epoch: roll back.
    /// Others when the server did not answer well.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection must not be used again: drop it, and the transaction with it.
    pub async fn check<Q: Queryable>(
        &self,
        tx: &mut Q,
        resource: &str,
        token: FencingToken,
    ) -> Result<()> {
        let mine = Mark::new(token)?.of_store(&self.store).in_epoch(self.epoch);
        let args = (
            resource.as_bytes(),
            mine.epoch,
            mine.token,
            mine.store.as_bytes(),
        );
        tx.exec_drop(self.sql.record_sql(), args)
            .await
            .map_err(with_context)?;
        let row: Option<(i64, i64, Vec<u8>)> = tx
            .exec_first(self.sql.read_sql(), (resource.as_bytes(),))
            .await
            .map_err(with_context)?;
        let outcome = match row {
            Some((epoch, token, store)) => {
                let store = String::from_utf8_lossy(&store).into_owned();
                mine.check(
                    &Mark {
                        epoch,
                        token,
                        store,
                    },
                    resource,
                )
            }
            None => Err(Error::new(ErrorKind::Store, "the row of the token is gone")),
        };
        outcome.map_err(|error| error.with_backend("mysql"))
    }

    /// Forgets what has written to the resource, on purpose: the next write passes, whatever its token. Only when no earlier holder can
    /// still be alive.
    ///
    /// # Errors
    ///
    /// When the server did not answer well.
    pub async fn reset<Q: Queryable>(&self, tx: &mut Q, resource: &str) -> Result<()> {
        tx.exec_drop(self.sql.reset_sql(), (resource.as_bytes(),))
            .await
            .map_err(with_context)
    }
}

fn with_context(error: mysql_async::Error) -> Error {
    Error::from(Trouble::from(error)).with_backend("mysql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_names_the_table_of_the_prefix() {
        let sql = Fence::new("x_").expect("a good prefix").sql;
        for sql in [
            sql.table_sql(),
            sql.record_sql(),
            sql.read_sql(),
            sql.reset_sql(),
        ] {
            assert!(sql.contains(" `x_fenced` "), "{sql}");
        }
        Fence::new("x; DROP TABLE users").expect_err("not a prefix");
    }
}
