//! Writes that a stale holder cannot make, inside your own transaction.
//!
//! A holder that was paused past its lease does not know it, and writes. A [`Fence`] keeps the highest token seen for each resource in a row,
//! and fails for a lower one, so that the stale holder's transaction is not committed.
//!
//! ```no_run
//! # async fn sell(guard: dlock_core::Guard, client: &mut dlock_postgres::tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_postgres::fenced::Fence;
//!
//! let fence = Fence::new("public", "shop_")?; // its table is made once, by fence.table_sql()
//! let token = guard.token().ok_or("this backend gives no tokens")?;
//! let tx = client.transaction().await?;
//! fence.check(&tx, "stock:42", token).await?; // first: it locks the row of the resource until the commit
//! tx.execute("UPDATE stock SET n = n - 1 WHERE id = 42", &[]).await?;
//! tx.commit().await?;
//! guard.release().await?; // after the commit
//! # Ok(())
//! # }
//! ```

use dlock_core::{Error, ErrorKind, FencingToken, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::connect::Arg;
use crate::error::Trouble;
use crate::key::{check_prefix, check_schema};
use crate::schema::statement_of;

/// The table in which the highest token of each resource is kept.
///
/// It may be in another database than the locks: it belongs where the protected rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    table: String,
    record: String,
}

impl Fence {
    /// The table with this prefix in this schema, as in `public.shop_fenced`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when one of them is none: small letters, digits and `_`.
    pub fn new(schema: &str, table_prefix: &str) -> Result<Self> {
        check_schema(schema)?;
        check_prefix(table_prefix)?;
        let one = |sql: &str| statement_of(sql, schema, table_prefix);
        Ok(Self {
            table: one(
                "CREATE TABLE IF NOT EXISTS {prefix}fenced (resource text PRIMARY KEY, token bigint NOT NULL)",
            ),
            record: one(
                "INSERT INTO {prefix}fenced AS f (resource, token) VALUES ($1, $2) \
                 ON CONFLICT (resource) DO UPDATE SET token = greatest(f.token, EXCLUDED.token) RETURNING token",
            ),
        })
    }

    /// The SQL that makes the table, if it is not there. Run it once.
    ///
    /// ```
    /// let fence = dlock_postgres::fenced::Fence::new("public", "shop_")?;
    /// assert!(fence.table_sql().starts_with(r#"CREATE TABLE IF NOT EXISTS "public"."shop_fenced""#));
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn table_sql(&self) -> &str {
        &self.table
    }

    /// Checks that nobody with a higher token has written to the resource, and records this one, as part of the caller's transaction.
    ///
    /// Call it before the writes it is to protect, with the same transaction. In a transaction of a stricter kind than READ COMMITTED the
    /// server may answer that others changed the row; that is an error like any other of such a transaction.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when a later holder was here: roll back. Others when the server did not answer well.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the token may have been recorded: roll the transaction back.
    pub async fn check<C: GenericClient>(
        &self,
        tx: &C,
        resource: &str,
        token: FencingToken,
    ) -> Result<()> {
        let number = token.as_i64().ok_or_else(|| {
            Error::invalid(format!("the token {token} does not fit into a bigint"))
        })?;
        let args: [Arg<'_>; 2] = [(&resource, Type::TEXT), (&number, Type::INT8)];
        let rows = tx.query_typed(&self.record, &args).await.map_err(explain)?;
        let highest: Option<i64> = rows.first().and_then(|row| row.try_get(0).ok());
        let problem = match highest {
            Some(highest) if highest == number => return Ok(()),
            Some(highest) => Error::new(
                ErrorKind::Lost,
                format!(
                    "a holder with token {highest} has written to {resource:?}, and this one has {token}: its hold was lost. Roll back"
                ),
            ),
            None => Error::new(ErrorKind::Store, "the row of the token is gone"),
        };
        Err(problem.with_backend("postgres"))
    }
}

pub(crate) fn explain(error: tokio_postgres::Error) -> Error {
    Error::from(Trouble::from(error)).with_backend("postgres")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_names_the_table_of_the_prefix() {
        let fence = Fence::new("s", "x_").expect("a good prefix");
        for sql in [&fence.table, &fence.record] {
            assert!(sql.contains(r#" "s"."x_fenced" "#), "{sql}");
        }
        Fence::new("s", "x; DROP TABLE users").expect_err("not a prefix");
    }
}
