//! Writes that a stale holder cannot make, from any SQL client.
//!
//! A holder that was paused past its lease does not know it, and writes. A *fence* is a table with one row for each protected resource:
//! the highest token that has written there. A transaction that raises the row first, and looks whether the row now has its own
//! token, can only be that of the latest holder. The statements are here, for sqlx, diesel or whatever speaks to the database of the protected
//! rows; it need not be the store of the locks. (`dlock-mysql` and `dlock-postgres` have the same with their own clients.)
//!
//! ```no_run
//! use dlock_core::fence::{Mark, SqlFence};
//! use dlock_core::{Guard, Locks};
//!
//! type AnyError = Box<dyn std::error::Error + Send + Sync>;
//!
//! async fn sell_one(locks: &Locks, guard: &Guard, pool: &sqlx::PgPool) -> Result<(), AnyError> {
//!     let fence = SqlFence::postgres("public.shop_fenced")?; // its table was made once, by fence.table_sql()
//!     let token = guard.token().ok_or("this store gives no tokens")?;
//!     let mine = Mark::new(token)?.of_store(locks.identity());
//!
//!     let mut tx = pool.begin().await?;
//!     // The first statement: it locks the row of the resource until the commit.
//!     let (epoch, token, store) = sqlx::query_as(sqlx::AssertSqlSafe(fence.record_sql()))
//!         .bind("stock:42")
//!         .bind(mine.epoch)
//!         .bind(mine.token)
//!         .bind(&mine.store)
//!         .fetch_one(&mut *tx)
//!         .await?;
//!     mine.check(&Mark { epoch, token, store }, "stock:42")?; // an error drops tx, which rolls back
//!     sqlx::query("UPDATE stock SET n = n - 1 WHERE id = 42").execute(&mut *tx).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! ```
//!
//! # When the store changes
//!
//! Tokens of one store are no match for those of another: Redis counts in microseconds since 1970, etcd in revisions. Whoever moves the locks from
//! one store to another would find every write refused. So a mark names the store that its token came from, and an *epoch*, a number that you
//! raise by one with every such move. A mark of a higher epoch passes whatever the token was before; one of a lower epoch, or of another store in
//! the same epoch, is refused with [`ErrorKind::Conflict`] and the reason: it is not a lost hold. Stop the programs that use the
//! old store before those with the new epoch begin: no token can order holders of two stores that are in use at once.

use crate::{Error, ErrorKind, FencingToken, Result};

/// The statements of a fence, for one table. Their parameters are, in this order: resource, epoch, token, store.
///
/// [The page of the module](self) has a whole transaction. On MySQL and MariaDB it takes two statements in place of the one:
///
/// ```
/// use dlock_core::fence::SqlFence;
///
/// let fence = SqlFence::mysql("shop.fenced")?;
/// let in_the_transaction = [
///     fence.record_sql(), // with resource, epoch, token and store
///     fence.read_sql(),   // with the resource: its row is for `Mark::check`
///     "UPDATE stock SET n = n - 1 WHERE id = 42",
/// ];
/// # assert!(in_the_transaction.iter().all(|sql| !sql.is_empty()));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlFence {
    table: String,
    record: String,
    read: String,
    reset: String,
}

/// Whose write it is, and what a fence's row holds: the columns `epoch`, `token` and `store`.
///
/// ```
/// # use dlock_core::{ErrorKind, FencingToken};
/// use dlock_core::fence::Mark;
///
/// # let (first, second) = (FencingToken::new(7), FencingToken::new(8)); // of guard.token()
/// let late = Mark::new(first)?.of_store("redis://cache");
/// let row = Mark::new(second)?.of_store("redis://cache"); // a later holder has written
/// assert_eq!(late.check(&row, "stock:42").unwrap_err().kind(), ErrorKind::Lost);
///
/// // The locks were moved to another store, whose numbers are smaller: the epoch says that they count.
/// let moved = Mark::new(FencingToken::new(1))?.of_store("etcd://e1").in_epoch(1);
/// assert_eq!(row.check(&moved, "stock:42").unwrap_err().kind(), ErrorKind::Conflict); // who has not moved is refused
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// How often the locks were moved to another store.
    pub epoch: i64,
    /// The token of the hold.
    pub token: i64,
    /// Which store the token came from, as [`Locks::identity`](crate::Locks::identity) tells; empty when that is not told.
    pub store: String,
}

impl Mark {
    /// The mark of a hold, in the first epoch, of a store that is not told.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a token that a signed `BIGINT` cannot hold, which no store of this library gives.
    pub fn new(token: FencingToken) -> Result<Self> {
        let number = token.as_i64().ok_or_else(|| {
            Error::invalid(format!("the token {token} does not fit into a bigint"))
        })?;
        Ok(Self {
            epoch: 0,
            token: number,
            store: String::new(),
        })
    }

    /// Names the store, so that a token of another one is told from a lost hold.
    #[must_use]
    pub fn of_store(mut self, identity: impl Into<String>) -> Self {
        self.store = identity.into();
        self
    }

    /// Sets the epoch: one more with every move of the locks to another store.
    #[must_use]
    pub fn in_epoch(mut self, epoch: i64) -> Self {
        self.epoch = epoch;
        self
    }

    /// Compares this mark with the row of the resource, as it is after [`record_sql`](SqlFence::record_sql).
    ///
    /// # Errors
    ///
    /// Roll the transaction back: [`ErrorKind::Lost`] when a later holder of the same store was here, [`ErrorKind::Conflict`] when the tokens
    /// cannot be compared, since the row is of another store or of a later epoch.
    pub fn check(&self, highest: &Self, resource: &str) -> Result<()> {
        if self == highest {
            return Ok(());
        }
        let (theirs, ours) = (&highest.store, &self.store);
        if highest.epoch > self.epoch {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the fence of {resource:?} is in epoch {} (store {theirs:?}), and this write comes with epoch {} (store {ours:?}): it is from \
                     before the move, so give this program the new settings. Roll back",
                    highest.epoch, self.epoch
                ),
            ));
        }
        if theirs != ours {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the fence of {resource:?} has a token of the store {theirs:?}, and this one is of {ours:?}: they cannot be compared. If the locks \
                     were moved, raise the epoch to {}; or reset the fence. Roll back",
                    highest.epoch.saturating_add(1)
                ),
            ));
        }
        Err(Error::new(
            ErrorKind::Lost,
            format!(
                "a holder with token {} has written to {resource:?}, and this one has {}: its hold was lost. Roll back",
                highest.token, self.token
            ),
        ))
    }
}

impl SqlFence {
    /// For MySQL and MariaDB, with `?` for parameters. The table may be named with its database: `shop.fenced`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when a part of the name has other characters than letters, digits and `_`.
    pub fn mysql(table: &str) -> Result<Self> {
        let t = quoted(table, '`')?;
        Ok(Self {
            table: format!(
                "CREATE TABLE IF NOT EXISTS {t} (resource VARBINARY(255) NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, \
                 token BIGINT NOT NULL, store VARBINARY(1024) NOT NULL) ENGINE = InnoDB"
            ),
            // Assignments are made in this order, and each sees those before it.
            record: format!(
                "INSERT INTO {t} (resource, epoch, token, store) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE \
                 token = IF(VALUES(epoch) > epoch OR (VALUES(epoch) = epoch AND VALUES(store) = store AND VALUES(token) > token), \
                 VALUES(token), token), store = IF(VALUES(epoch) > epoch, VALUES(store), store), epoch = GREATEST(epoch, VALUES(epoch))"
            ),
            read: format!("SELECT epoch, token, store FROM {t} WHERE resource = ? FOR UPDATE"),
            reset: format!("DELETE FROM {t} WHERE resource = ?"),
        })
    }

    /// For PostgreSQL, with `$1` for parameters. The table may be named with its schema: `public.fenced`.
    ///
    /// # Errors
    ///
    /// As for [`mysql`](SqlFence::mysql).
    pub fn postgres(table: &str) -> Result<Self> {
        let t = quoted(table, '"')?;
        Ok(Self {
            table: format!(
                "CREATE TABLE IF NOT EXISTS {t} (resource text PRIMARY KEY, epoch bigint NOT NULL, token bigint NOT NULL, store text NOT NULL)"
            ),
            record: format!(
                "INSERT INTO {t} AS f (resource, epoch, token, store) VALUES ($1, $2, $3, $4) ON CONFLICT (resource) DO UPDATE SET \
                 token = CASE WHEN EXCLUDED.epoch > f.epoch \
                 OR (EXCLUDED.epoch = f.epoch AND EXCLUDED.store = f.store AND EXCLUDED.token > f.token) THEN EXCLUDED.token ELSE f.token END, \
                 store = CASE WHEN EXCLUDED.epoch > f.epoch THEN EXCLUDED.store ELSE f.store END, \
                 epoch = greatest(f.epoch, EXCLUDED.epoch) RETURNING epoch, token, store"
            ),
            read: format!("SELECT epoch, token, store FROM {t} WHERE resource = $1 FOR UPDATE"),
            reset: format!("DELETE FROM {t} WHERE resource = $1"),
        })
    }

    /// Makes the table, if it is not there. Run it once.
    pub fn table_sql(&self) -> &str {
        &self.table
    }

    /// Locks the row of the resource until the transaction ends, and raises it. Parameters: resource, epoch, token, store. PostgreSQL gives
    /// the row back: epoch, token, store. For MySQL run [`read_sql`](SqlFence::read_sql) after it.
    pub fn record_sql(&self) -> &str {
        &self.record
    }

    /// Reads the row under the lock that [`record_sql`](SqlFence::record_sql) took. Parameter: resource.
    pub fn read_sql(&self) -> &str {
        &self.read
    }

    /// Forgets what has written to a resource: the next write passes, whatever its token. Only when no earlier holder can still be alive; a
    /// higher epoch is the safer way. Parameter: resource.
    pub fn reset_sql(&self) -> &str {
        &self.reset
    }
}

/// A table's name, perhaps with what it is in, in the quotes of the database.
fn quoted(table: &str, quote: char) -> Result<String> {
    let good = |part: &&str| {
        !part.is_empty()
            && part.len() <= 64
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let parts: Vec<&str> = table.split('.').collect();
    if parts.len() > 2 || !parts.iter().all(good) {
        return Err(Error::invalid(format!(
            "the table of a fence is {table:?}: it must be letters, digits and '_', with at most one '.'"
        )));
    }
    let quoted: Vec<String> = parts
        .iter()
        .map(|part| format!("{quote}{part}{quote}"))
        .collect();
    Ok(quoted.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: i64, token: i64, store: &str) -> Mark {
        let store = store.to_owned();
        Mark {
            epoch,
            token,
            store,
        }
    }

    #[test]
    fn a_refusal_says_the_true_reason() {
        let row = mark(1, 9, "etcd");
        row.check(&row, "r").expect("its own row");
        for (mine, kind, reason) in [
            (mark(1, 8, "etcd"), ErrorKind::Lost, "its hold was lost"),
            (
                mark(1, 8, "redis"),
                ErrorKind::Conflict,
                "raise the epoch to 2",
            ),
            (
                mark(1, 99, "redis"),
                ErrorKind::Conflict,
                "cannot be compared",
            ),
            (
                mark(0, 99, "redis"),
                ErrorKind::Conflict,
                "from before the move",
            ),
        ] {
            let error = mine.check(&row, "r").expect_err(reason);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn names_of_tables_are_quoted_or_refused() {
        let fence = SqlFence::postgres("public.fenced").expect("a name");
        for sql in [&fence.table, &fence.record, &fence.read, &fence.reset] {
            assert!(sql.contains(r#" "public"."fenced" "#), "{sql}");
        }
        for bad in ["", "a.b.c", "x; DROP TABLE users", "a.", "\"a\""] {
            SqlFence::mysql(bad).expect_err(bad);
        }
    }
}
