//! Writes that succeed only if nobody else wrote since you read: a version column, without a lock.
//!
//! ```no_run
//! # async fn sell(conn: &mut dlock_mysql::mysql_async::Conn) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_mysql::{mysql_async::{TxOpts, prelude::Queryable}, optimistic::Versioned};
//!
//! let stock = Versioned::new("stock", "id", "version")?;
//! let version = stock.read(conn, 42).await?.ok_or("no such row")?;
//! // … work …
//! let mut tx = conn.start_transaction(TxOpts::default()).await?;
//! stock.commit_if(&mut tx, 42, version).await?; // a conflict when somebody was faster
//! tx.query_drop("UPDATE stock SET n = n - 1 WHERE id = 42").await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use dlock_core::backend::Backoff;
use dlock_core::{Error, ErrorKind, Result};
use mysql_async::Value;
use mysql_async::prelude::Queryable;

use crate::error::Trouble;

/// A table whose rows have a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    read: String,
    advance: String,
}

impl Versioned {
    /// A table, the column that names a row, and the column with its version: an integer that nothing else changes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when one of them is not a plain name (letters, digits, `_` and `$`; `database.table` is fine).
    pub fn new(table: &str, key: &str, version: &str) -> Result<Self> {
        let table = table
            .split('.')
            .map(quoted)
            .collect::<Result<Vec<_>>>()?
            .join(".");
        let (key, version) = (quoted(key)?, quoted(version)?);
        Ok(Self {
            read: format!("SELECT {version} FROM {table} WHERE {key} = ?"),
            advance: format!(
                "UPDATE {table} SET {version} = {version} + 1 WHERE {key} = ? AND {version} = ?"
            ),
        })
    }

    /// The version of a row now; `None` when there is no such row.
    ///
    /// # Errors
    ///
    /// When the server did not answer well.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection must not be used again.
    pub async fn read<Q: Queryable>(
        &self,
        conn: &mut Q,
        key: impl Into<Value> + Send,
    ) -> Result<Option<u64>> {
        let found: Option<Option<u64>> = conn
            .exec_first(self.read.as_str(), (key.into(),))
            .await
            .map_err(with_context)?;
        Ok(found.flatten())
    }

    /// Advances the version if it is still the one that was read: in a transaction, together with the work, or alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`], which is retryable here, when somebody was faster: roll back, and begin again with [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection must not be used again: drop it, and the transaction with it.
    pub async fn commit_if<Q: Queryable>(
        &self,
        tx: &mut Q,
        key: impl Into<Value> + Send,
        seen: u64,
    ) -> Result<()> {
        let result = tx
            .exec_iter(self.advance.as_str(), (key.into(), seen))
            .await
            .map_err(with_context)?;
        let changed = result.affected_rows();
        result.drop_result().await.map_err(with_context)?;
        if changed == 1 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!("the row no longer has version {seen}: somebody was faster. Read it again, and repeat the work"),
        )
        .with_backend("mysql")
        .with_retryable(true))
    }
}

/// Repeats `work` while it ends in a conflict, with randomised, growing pauses, `times` times at most.
///
/// A conflict is one of [`Versioned::commit_if`], and what the server undoes for the sake of another transaction: a deadlock, a wait for a row
/// that took too long, and a row that has changed since it was read (`innodb_snapshot_isolation`). The last ones are known by the
/// [`mysql_async::Error`] among the sources of the error. The transaction must have been rolled back, as it is when it is dropped.
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

/// "Record has changed since last read", "Lock wait timeout exceeded", "Deadlock found".
const UNDONE: [u16; 3] = [1020, 1205, 1213];

fn is_conflict(error: &Error) -> bool {
    if error.kind() == ErrorKind::Conflict {
        return true;
    }
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(mysql_async::Error::Server(server)) = inner.downcast_ref() {
            return UNDONE.contains(&server.code);
        }
        source = inner.source();
    }
    false
}

fn quoted(name: &str) -> Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        return Err(Error::invalid(format!(
            "{name:?} is not a plain name of a table or column: letters, digits, '_' and '$'"
        )));
    }
    Ok(format!("`{name}`"))
}

fn with_context(error: mysql_async::Error) -> Error {
    Error::from(Trouble::from(error)).with_backend("mysql")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_get_into_sql() {
        let good = Versioned::new("shop.stock", "id", "version").expect("good names");
        assert_eq!(
            good.read,
            "SELECT `version` FROM `shop`.`stock` WHERE `id` = ?"
        );
        for bad in ["", "a b", "a`", "a;--", "a.b.", "ä"] {
            Versioned::new(bad, "id", "version").expect_err(bad);
        }
        Versioned::new("t", "a.b", "version").expect_err("a column has no table");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_server_undoes_for_another_one_is_repeated() {
        for (code, expected) in [(1213, 3), (1205, 3), (1020, 3), (1062, 1)] {
            let mut calls = 0;
            let outcome: Result<()> = retry(3, async || {
                calls += 1;
                Err(with_context(mysql_async::Error::Server(
                    mysql_async::ServerError {
                        code,
                        message: "said the server".to_owned(),
                        state: "HY000".to_owned(),
                    },
                )))
            })
            .await;
            outcome.expect_err("it fails each time");
            assert_eq!(calls, expected, "{code}");
        }
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
