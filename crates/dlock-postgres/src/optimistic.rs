//! Writes that succeed only if nobody else wrote since you read: a version column, without a lock.
//!
//! ```no_run
//! # async fn sell(client: &mut dlock_postgres::tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_postgres::optimistic::Versioned;
//!
//! let stock = Versioned::new("stock", "id", "version")?;
//! let version = stock.read(client, &42_i64).await?.ok_or("no such row")?;
//! // … work …
//! let tx = client.transaction().await?;
//! stock.commit_if(&tx, &42_i64, version).await?; // a conflict when somebody was faster
//! tx.execute("UPDATE stock SET n = n - 1 WHERE id = 42", &[]).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use dlock_core::backend::Backoff;
use dlock_core::{Error, ErrorKind, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use crate::fenced::with_context;

/// A table whose rows have a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    read: String,
    advance: String,
}

impl Versioned {
    /// A table, the column that names a row, and the column with its version: a `bigint` that nothing else changes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when one of them is not a plain name (letters, digits and `_`, as they were written when the table was made;
    /// `schema.table` is fine).
    pub fn new(table: &str, key: &str, version: &str) -> Result<Self> {
        let table = table
            .split('.')
            .map(quoted)
            .collect::<Result<Vec<_>>>()?
            .join(".");
        let (key, version) = (quoted(key)?, quoted(version)?);
        Ok(Self {
            read: format!("SELECT {version} FROM {table} WHERE {key} = $1"),
            advance: format!(
                "UPDATE {table} SET {version} = {version} + 1 WHERE {key} = $1 AND {version} = $2"
            ),
        })
    }

    /// The version of a row now; `None` when there is no such row. The key has the type of its column.
    ///
    /// # Errors
    ///
    /// When the server did not answer well.
    pub async fn read<C: GenericClient>(
        &self,
        client: &C,
        key: &(dyn ToSql + Sync),
    ) -> Result<Option<i64>> {
        let row = client
            .query_opt(&self.read, &[key])
            .await
            .map_err(with_context)?;
        row.map(|row| row.try_get(0).map_err(with_context))
            .transpose()
    }

    /// Advances the version if it is still the one that was read: in a transaction, together with the work, or alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`], which is retryable here, when somebody was faster: roll back, and begin again with [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the version may have been advanced: roll the transaction back.
    pub async fn commit_if<C: GenericClient>(
        &self,
        tx: &C,
        key: &(dyn ToSql + Sync),
        seen: i64,
    ) -> Result<()> {
        let changed = tx
            .execute(&self.advance, &[key, &seen])
            .await
            .map_err(with_context)?;
        judge(changed, seen)
    }

    /// As [`read`](Self::read), by the crate sqlx (feature `sqlx`): by a pool, a connection or a transaction.
    ///
    /// ```no_run
    /// # async fn sell(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let stock = dlock_postgres::optimistic::Versioned::new("stock", "id", "version")?;
    /// let version = stock.read_sqlx(&pool, 42_i64).await?.ok_or("no such row")?;
    /// let mut tx = pool.begin().await?;
    /// stock.commit_if_sqlx(&mut tx, 42_i64, version).await?; // a conflict when somebody was faster
    /// sqlx::query("UPDATE stock SET n = n - 1 WHERE id = 42").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[cfg(feature = "sqlx")]
    pub async fn read_sqlx<'c, K>(
        &self,
        client: impl sqlx::PgExecutor<'c>,
        key: K,
    ) -> Result<Option<i64>>
    where
        K: for<'q> sqlx::Encode<'q, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send,
    {
        sqlx::query_scalar(sqlx::AssertSqlSafe(self.read.as_str()))
            .bind(key)
            .persistent(false)
            .fetch_optional(client)
            .await
            .map_err(crate::fenced::explain_sqlx)
    }

    /// As [`commit_if`](Self::commit_if), in a transaction of the crate sqlx (feature `sqlx`).
    ///
    /// # Errors
    ///
    /// As [`commit_if`](Self::commit_if).
    ///
    /// # Cancel safety
    ///
    /// As [`commit_if`](Self::commit_if).
    #[cfg(feature = "sqlx")]
    pub async fn commit_if_sqlx<K>(
        &self,
        tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        key: K,
        seen: i64,
    ) -> Result<()>
    where
        K: for<'q> sqlx::Encode<'q, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send,
    {
        let advance = sqlx::query(sqlx::AssertSqlSafe(self.advance.as_str()));
        let changed = advance
            .bind(key)
            .bind(seen)
            .persistent(false)
            .execute(&mut **tx)
            .await
            .map_err(crate::fenced::explain_sqlx)?;
        judge(changed.rows_affected(), seen)
    }
}

fn judge(changed: u64, seen: i64) -> Result<()> {
    if changed == 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!("the row no longer has version {seen}: somebody was faster. Read it again, and repeat the work"),
    )
    .with_backend("postgres")
    .with_retryable(true))
}

/// Repeats `work` while it ends in a conflict, with randomised, growing pauses, `times` times at most.
///
/// A conflict is one of [`Versioned::commit_if`], and what the server undoes for the sake of another transaction: a serialization failure
/// and a deadlock, which are known by the error of `tokio_postgres` or sqlx among the sources of the error. The transaction must have been rolled
/// back, as it is when it is dropped.
///
/// # Errors
///
/// The last conflict, or the first error of another kind.
pub async fn retry<T>(times: u32, mut work: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(200));
    let mut left = times.max(1);
    loop {
        left -= 1;
        match work().await {
            Err(error) if is_conflict(&error) && left > 0 => {
                tokio::time::sleep(backoff.pause()).await;
            }
            outcome => return outcome,
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    if error.kind() == ErrorKind::Conflict {
        return true;
    }
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(error) = inner.downcast_ref::<tokio_postgres::Error>() {
            return error.code().is_some_and(|code| is_undone(code.code()));
        }
        #[cfg(feature = "sqlx")]
        if let Some(sqlx::Error::Database(error)) = inner.downcast_ref::<sqlx::Error>() {
            return error.code().is_some_and(|code| is_undone(&code));
        }
        source = inner.source();
    }
    false
}

/// For the sake of another transaction.
fn is_undone(code: &str) -> bool {
    matches!(code, "40001" | "40P01")
}

fn quoted(name: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > 63 || !name.chars().all(good) {
        return Err(Error::invalid(format!(
            "{name:?} is not a plain name of a table or column: letters, digits and '_'"
        )));
    }
    Ok(format!("\"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_get_into_sql() {
        let good = Versioned::new("shop.stock", "id", "version").expect("good names");
        assert_eq!(
            good.read,
            r#"SELECT "version" FROM "shop"."stock" WHERE "id" = $1"#
        );
        for bad in ["", "a b", "a\"", "a;--", "a.b.", "ä"] {
            Versioned::new(bad, "id", "version").expect_err(bad);
        }
        Versioned::new("t", "a.b", "version").expect_err("a column has no table");
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_is_repeated_and_the_last_one_is_told() {
        let mut calls = 0;
        let outcome = retry(5, async || {
            calls += 1;
            if calls < 3 {
                return Err(Error::new(ErrorKind::Conflict, "somebody was faster"));
            }
            Ok(calls)
        })
        .await;
        assert_eq!(outcome.expect("the third is good"), 3);
        let mut calls = 0;
        let outcome: Result<()> = retry(2, async || {
            calls += 1;
            Err(Error::new(ErrorKind::Conflict, "again"))
        })
        .await;
        assert_eq!(outcome.expect_err("all failed").kind(), ErrorKind::Conflict);
        assert_eq!(calls, 2);
    }
}
