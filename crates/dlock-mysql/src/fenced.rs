//! Writes that a stale holder cannot make (R13), inside your own transaction.
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
//! guard.release().await?; // after the commit (R2)
//! # Ok(())
//! # }
//! ```

use dlock_core::{Error, ErrorKind, FencingToken, Result};
use mysql_async::prelude::Queryable;

use crate::error::Trouble;
use crate::key::check_prefix;
use crate::schema::statement;

/// The table in which the highest token of each resource is kept.
///
/// It may be in another database than the locks: it belongs where the protected rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    table: String,
    record: String,
    read: String,
}

impl Fence {
    /// The table with this prefix, as in `shop_fenced`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when the prefix is not one: letters, digits and `_`, at most 40 of them.
    pub fn new(table_prefix: &str) -> Result<Self> {
        check_prefix(table_prefix)?;
        let one = |sql: &str| statement(sql, table_prefix);
        Ok(Self {
            table: one(include_str!("sql/schema_fenced.sql")),
            record: one(include_str!("sql/fenced_record.sql")),
            read: one(include_str!("sql/fenced_read.sql")),
        })
    }

    /// The SQL that makes the table, if it is not there. Run it once.
    ///
    /// ```
    /// let fence = dlock_mysql::fenced::Fence::new("shop_")?;
    /// assert!(fence.table_sql().starts_with("CREATE TABLE IF NOT EXISTS `shop_fenced`"));
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn table_sql(&self) -> &str {
        &self.table
    }

    /// Checks that nobody with a higher token has written to the resource, and records this one, as part of the caller's transaction.
    ///
    /// Call it before the writes it is to protect, with the same transaction. A resource has a name of up to 255 bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when a later holder was here: roll back. Others when the server did not answer well.
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
        let args = (resource.as_bytes(), token.get());
        tx.exec_drop(self.record.as_str(), args)
            .await
            .map_err(explain)?;
        let highest: Option<Option<u64>> = tx
            .exec_first(self.read.as_str(), (resource.as_bytes(),))
            .await
            .map_err(explain)?;
        let problem = match highest.flatten() {
            Some(highest) if highest == token.get() => return Ok(()),
            Some(highest) => Error::new(
                ErrorKind::Lost,
                format!(
                    "a holder with token {highest} has written to {resource:?}, and this one has {token}: its hold was lost. Roll back"
                ),
            ),
            None => Error::new(ErrorKind::Store, "the row of the token is gone"),
        };
        Err(problem.with_backend("mysql"))
    }
}

fn explain(error: mysql_async::Error) -> Error {
    Error::from(Trouble::from(error)).with_backend("mysql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_names_the_table_of_the_prefix() {
        let fence = Fence::new("x_").expect("a good prefix");
        for sql in [&fence.table, &fence.record, &fence.read] {
            assert!(sql.contains(" `x_fenced` "), "{sql}");
        }
        Fence::new("x; DROP TABLE users").expect_err("not a prefix");
    }
}
