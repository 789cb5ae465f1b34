//! A lock that lives inside your own transaction: it is yours from [`lock`](TransactionLocks::lock) to the commit or rollback.
//!
//! Nothing else is needed for work that is one transaction in one database: no lease, no renewal, no token, and no way to lose it
//! before the commit. What the transaction does is undone with it.
//!
//! ```no_run
//! # async fn sell(client: &mut dlock_postgres::tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_postgres::transaction::TransactionLocks;
//!
//! let locks = TransactionLocks::new("public", "shop_")?; // its table is made once, by locks.table_sql()
//! let tx = client.transaction().await?;
//! locks.lock(&tx, "stock:42").await?; // waits for the transaction that has it; see also try_lock and lock_within
//! tx.execute("UPDATE stock SET n = n - 1 WHERE id = 42", &[]).await?;
//! tx.commit().await?; // and the lock is free
//! # Ok(())
//! # }
//! ```
//!
//! It is a row and not an advisory lock: those have keys of 64 bits, which strangers share, and two names may have the same.

use std::time::Duration;

use dlock_core::{Error, Name, Result};
use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::connect::Arg;
use crate::error::Trouble;
use crate::fenced::with_context;
use crate::key::{check_prefix, check_schema};
use crate::schema::statement_of;

/// Behind the statement that got the lock: the transaction's own time-out is back.
const GOT: &str = "SELECT set_config('lock_timeout', current_setting('dlock.lock_timeout'), true); RELEASE SAVEPOINT dlock_lock";
/// Behind one that did not: the transaction is as it was before.
const NOT_GOT: &str = "ROLLBACK TO SAVEPOINT dlock_lock; RELEASE SAVEPOINT dlock_lock";

/// Before a statement that waits for so long at most. What fails undoes the whole transaction, unless there is a savepoint.
fn begin(limit: Duration) -> String {
    // 0 would be for ever.
    let limit = limit.as_millis().clamp(1, 2_147_483_647);
    format!(
        "SAVEPOINT dlock_lock; SELECT set_config('dlock.lock_timeout', current_setting('lock_timeout'), true), \
         set_config('lock_timeout', '{limit}ms', true)"
    )
}

/// The table whose rows are the locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionLocks {
    table: String,
    lock: String,
}

impl TransactionLocks {
    /// The table with this prefix in this schema, as in `public.shop_transactions`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid) when one of them is none: small letters, digits and `_`.
    pub fn new(schema: &str, table_prefix: &str) -> Result<Self> {
        check_schema(schema)?;
        check_prefix(table_prefix)?;
        let one = |sql: &str| statement_of(sql, schema, table_prefix);
        Ok(Self {
            table: one(
                "CREATE TABLE IF NOT EXISTS {prefix}transactions (name text COLLATE \"C\" PRIMARY KEY, used timestamptz NOT NULL)",
            ),
            lock: one(
                "INSERT INTO {prefix}transactions (name, used) VALUES ($1, clock_timestamp()) \
                 ON CONFLICT (name) DO UPDATE SET used = clock_timestamp()",
            ),
        })
    }

    /// The SQL that makes the table, if it is not there. Run it once.
    pub fn table_sql(&self) -> &str {
        &self.table
    }

    /// Waits for the lock, as part of the caller's transaction, as long as the server lets a statement wait (`lock_timeout`).
    ///
    /// Take several in one order, or the server ends one of two transactions that wait for each other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid) for a bad name; others when the server did not answer well. The transaction is then of no more use.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may still wait for the lock: roll the transaction back.
    pub async fn lock(&self, tx: &Transaction<'_>, name: &str) -> Result<()> {
        let name = Name::new(name)?;
        let name = name.as_str();
        let args: [Arg<'_>; 1] = [(&name, Type::TEXT)];
        tx.execute_typed(&self.lock, &args)
            .await
            .map_err(with_context)?;
        Ok(())
    }

    /// Takes the lock if it is free; `false` when another transaction has it. The transaction can go on in both cases.
    ///
    /// # Errors
    ///
    /// As [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](TransactionLocks::lock).
    pub async fn try_lock(&self, tx: &Transaction<'_>, name: &str) -> Result<bool> {
        self.lock_within(tx, name, Duration::ZERO).await
    }

    /// Waits for the lock for at most `limit`; `false` when another transaction still has it. The transaction can go on in both cases.
    ///
    /// # Errors
    ///
    /// As [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](TransactionLocks::lock).
    pub async fn lock_within(
        &self,
        tx: &Transaction<'_>,
        name: &str,
        limit: Duration,
    ) -> Result<bool> {
        let name = Name::new(name)?;
        let name = name.as_str();
        let args: [Arg<'_>; 1] = [(&name, Type::TEXT)];
        let begin = begin(limit);
        tx.batch_execute(&begin).await.map_err(with_context)?;
        let got = tx.execute_typed(&self.lock, &args).await;
        let got = is_got(got.map_err(Trouble::from).map(drop))?;
        let end = if got { GOT } else { NOT_GOT };
        tx.batch_execute(end).await.map_err(with_context)?;
        Ok(got)
    }

    /// The same in a transaction of the crate sqlx (feature `sqlx`).
    ///
    /// ```no_run
    /// # async fn sell(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = dlock_postgres::transaction::TransactionLocks::new("public", "shop_")?;
    /// let mut tx = pool.begin().await?;
    /// locks.lock_sqlx(&mut tx, "stock:42").await?;
    /// sqlx::query("UPDATE stock SET n = n - 1 WHERE id = 42").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](TransactionLocks::lock).
    #[cfg(feature = "sqlx")]
    pub async fn lock_sqlx(
        &self,
        tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        name: &str,
    ) -> Result<()> {
        let name = Name::new(name)?;
        let query = sqlx::query(sqlx::AssertSqlSafe(self.lock.as_str())).bind(name.as_str());
        query
            .persistent(false)
            .execute(&mut **tx)
            .await
            .map_err(crate::fenced::explain_sqlx)?;
        Ok(())
    }

    /// As [`try_lock`](TransactionLocks::try_lock), in a transaction of the crate sqlx (feature `sqlx`).
    ///
    /// # Errors
    ///
    /// As [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](TransactionLocks::lock).
    #[cfg(feature = "sqlx")]
    pub async fn try_lock_sqlx(
        &self,
        tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        name: &str,
    ) -> Result<bool> {
        self.lock_within_sqlx(tx, name, Duration::ZERO).await
    }

    /// As [`lock_within`](TransactionLocks::lock_within), in a transaction of the crate sqlx (feature `sqlx`).
    ///
    /// # Errors
    ///
    /// As [`lock`](TransactionLocks::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](TransactionLocks::lock).
    #[cfg(feature = "sqlx")]
    pub async fn lock_within_sqlx(
        &self,
        tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
        name: &str,
        limit: Duration,
    ) -> Result<bool> {
        use crate::fenced::explain_sqlx;
        let name = Name::new(name)?;
        let begin = sqlx::raw_sql(sqlx::AssertSqlSafe(begin(limit)));
        begin.execute(&mut **tx).await.map_err(explain_sqlx)?;
        let query = sqlx::query(sqlx::AssertSqlSafe(self.lock.as_str())).bind(name.as_str());
        let got = query.persistent(false).execute(&mut **tx).await;
        let got = is_got(got.map_err(Trouble::from).map(drop))?;
        let end = sqlx::raw_sql(if got { GOT } else { NOT_GOT });
        end.execute(&mut **tx).await.map_err(explain_sqlx)?;
        Ok(got)
    }
}

fn is_got(asked: Result<(), Trouble>) -> Result<bool> {
    match asked {
        Ok(()) => Ok(true),
        Err(trouble) if trouble.has_code("55P03") => Ok(false),
        Err(trouble) => Err(Error::from(trouble).with_backend("postgres")),
    }
}
