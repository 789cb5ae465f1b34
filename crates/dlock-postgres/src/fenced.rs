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

use dlock_core::fence::{Mark, SqlFence};
use dlock_core::{Error, ErrorKind, FencingToken, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::connect::Arg;
use crate::error::Trouble;
use crate::key::{check_prefix, check_schema};

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
    /// The table with this prefix in this schema, as in `public.shop_fenced`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when one of them is none: small letters, digits and `_`.
    pub fn new(schema: &str, table_prefix: &str) -> Result<Self> {
        check_schema(schema)?;
        check_prefix(table_prefix)?;
        Ok(Self {
            sql: SqlFence::postgres(&format!("{schema}.{table_prefix}fenced"))?,
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
    /// let fence = dlock_postgres::fenced::Fence::new("public", "shop_")?;
    /// assert!(fence.table_sql().starts_with(r#"CREATE TABLE IF NOT EXISTS "public"."shop_fenced""#));
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn table_sql(&self) -> &str {
        self.sql.table_sql()
    }

    /// Checks that nobody with a higher token has written to the resource, and records this one, as part of the caller's transaction.
    ///
    /// Call it before the writes it is to protect, with the same transaction. In a transaction of a stricter kind than READ COMMITTED the
    /// server may answer that others changed the row; that is an error like any other of such a transaction.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when a later holder was here, [`ErrorKind::Conflict`] when the last one was of another store or epoch: roll back.
    /// Others when the server did not answer well.
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
        let mine = self.mark(token)?;
        let args: [Arg<'_>; 4] = [
            (&resource, Type::TEXT),
            (&mine.epoch, Type::INT8),
            (&mine.token, Type::INT8),
            (&mine.store, Type::TEXT),
        ];
        let rows = tx
            .query_typed(self.sql.record_sql(), &args)
            .await
            .map_err(with_context)?;
        let highest = match rows.first() {
            Some(row) => Some(Mark {
                epoch: row.try_get(0).map_err(with_context)?,
                token: row.try_get(1).map_err(with_context)?,
                store: row.try_get(2).map_err(with_context)?,
            }),
            None => None,
        };
        judge(resource, &mine, highest)
    }

    /// The same in a transaction of the crate sqlx (feature `sqlx`).
    ///
    /// # Errors
    ///
    /// As [`check`](Fence::check).
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Fence::check).
    #[cfg(feature = "sqlx")]
    pub async fn check_sqlx(
        &self,
        tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        resource: &str,
        token: FencingToken,
    ) -> Result<()> {
        let mine = self.mark(token)?;
        let query = sqlx::query_as(sqlx::AssertSqlSafe(self.sql.record_sql()));
        let highest: Option<(i64, i64, String)> = query
            .bind(resource)
            .bind(mine.epoch)
            .bind(mine.token)
            .bind(mine.store.as_str())
            .persistent(false)
            .fetch_optional(&mut **tx)
            .await
            .map_err(explain_sqlx)?;
        let highest = highest.map(|(epoch, token, store)| Mark {
            epoch,
            token,
            store,
        });
        judge(resource, &mine, highest)
    }

    /// Forgets what has written to the resource, on purpose: the next write passes, whatever its token. Only when no earlier holder can
    /// still be alive.
    ///
    /// # Errors
    ///
    /// When the server did not answer well.
    pub async fn reset<C: GenericClient>(&self, tx: &C, resource: &str) -> Result<()> {
        let args: [Arg<'_>; 1] = [(&resource, Type::TEXT)];
        let done = tx.query_typed(self.sql.reset_sql(), &args).await;
        done.map(drop).map_err(with_context)
    }

    fn mark(&self, token: FencingToken) -> Result<Mark> {
        Ok(Mark::new(token)?.of_store(&self.store).in_epoch(self.epoch))
    }
}

/// Whether the row that the table has now is ours.
fn judge(resource: &str, mine: &Mark, highest: Option<Mark>) -> Result<()> {
    let outcome = match highest {
        Some(highest) => mine.check(&highest, resource),
        None => Err(Error::new(ErrorKind::Store, "the row of the token is gone")),
    };
    outcome.map_err(|error| error.with_backend("postgres"))
}

#[cfg(feature = "sqlx")]
pub(crate) fn explain_sqlx(error: sqlx::Error) -> Error {
    Error::from(Trouble::from(error)).with_backend("postgres")
}

pub(crate) fn with_context(error: tokio_postgres::Error) -> Error {
    Error::from(Trouble::from(error)).with_backend("postgres")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_names_the_table_of_the_prefix() {
        let sql = Fence::new("s", "x_").expect("a good prefix").sql;
        for sql in [
            sql.table_sql(),
            sql.record_sql(),
            sql.read_sql(),
            sql.reset_sql(),
        ] {
            assert!(sql.contains(r#" "s"."x_fenced" "#), "{sql}");
        }
        Fence::new("s", "x; DROP TABLE users").expect_err("not a prefix");
    }
}
