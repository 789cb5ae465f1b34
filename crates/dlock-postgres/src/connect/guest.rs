//! Pools that the user has made: a lock and the work it protects then share one.
//!
//! A connection is borrowed for one statement. One whose call was dropped does not go back: the next user would wait until the server has done
//! what was given up.
#![cfg(any(feature = "deadpool", feature = "sqlx"))]

use std::fmt;

use dlock_core::ErrorKind;

use super::job::Job;
use super::row::Row;
use crate::error::Trouble;

/// Asked behind each statement: whether its transaction has ended. Where somebody has begun one by hand and left it open, what we were told
/// could be undone later, when somebody holds by it. Such a connection is closed, which undoes it at once.
const STILL_OPEN: &str = "SELECT txid_current_if_assigned() IS NOT NULL";

fn open_transaction() -> Trouble {
    let mut trouble = Trouble::new(
        ErrorKind::Store,
        "a connection of the pool has an open transaction, which somebody has begun by hand and left: it was closed",
    );
    trouble.broken = true;
    trouble
}

/// A pool of the user.
#[derive(Clone)]
pub(crate) enum Guest {
    #[cfg(feature = "deadpool")]
    Deadpool(deadpool_postgres::Pool),
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::PgPool),
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            #[cfg(feature = "deadpool")]
            Self::Deadpool(_) => "deadpool",
            #[cfg(feature = "sqlx")]
            Self::Sqlx(_) => "sqlx",
        })
    }
}

impl Guest {
    /// Whether a statement takes two trips: sqlx sends nothing behind a statement before that was answered, so the question whether its transaction
    /// has ended is a trip of its own.
    pub(crate) fn takes_two_trips(&self) -> bool {
        match self {
            #[cfg(feature = "deadpool")]
            Self::Deadpool(_) => false,
            #[cfg(feature = "sqlx")]
            Self::Sqlx(_) => true,
        }
    }

    pub(crate) async fn run(&self, job: Job<'_>) -> Result<Vec<Row>, Trouble> {
        match self {
            #[cfg(feature = "deadpool")]
            Self::Deadpool(pool) => by_deadpool::run(pool, job).await,
            #[cfg(feature = "sqlx")]
            Self::Sqlx(pool) => by_sqlx::run(pool, job).await,
        }
    }
}

#[cfg(feature = "deadpool")]
mod by_deadpool {
    use deadpool_postgres::{Object, Pool, PoolError};
    use dlock_core::ErrorKind;

    use super::{Job, Row, STILL_OPEN, Trouble, open_transaction};

    /// Goes back to the pool when its call was answered.
    struct Lent(Option<Object>);

    impl Drop for Lent {
        fn drop(&mut self) {
            if let Some(object) = self.0.take() {
                drop(Object::take(object));
            }
        }
    }

    pub(super) async fn run(pool: &Pool, job: Job<'_>) -> Result<Vec<Row>, Trouble> {
        let object = pool.get().await.map_err(with_context)?;
        let mut lent = Lent(Some(object));
        let Some(client) = &lent.0 else {
            return Ok(Vec::new());
        };
        let outcome = match job {
            Job::Ask(sql, args) => {
                // Both are sent at once.
                let (rows, open) = tokio::join!(
                    client.query_typed(sql, args),
                    client.query_typed(STILL_OPEN, &[])
                );
                let is_open = |rows: &[tokio_postgres::Row]| {
                    rows.first().and_then(|row| row.try_get(0).ok()) != Some(false)
                };
                match (rows, open) {
                    (Ok(rows), Ok(open)) if !is_open(&open) => Ok(rows),
                    (Ok(_), Ok(_)) => Err(open_transaction()),
                    (Err(error), _) => Err(Trouble::from(error)),
                    // The first was done.
                    (Ok(_), Err(error)) => Err(Trouble::from(error).in_doubt()),
                }
            }
            Job::Text(sql) => client
                .batch_execute(sql)
                .await
                .map(|()| Vec::new())
                .map_err(Trouble::from),
        };
        if !matches!(&outcome, Err(trouble) if trouble.broken) {
            drop(lent.0.take());
        }
        Ok(outcome?.into_iter().map(Row::Own).collect())
    }

    fn with_context(error: PoolError) -> Trouble {
        match error {
            PoolError::Backend(error) => Trouble::from(error).unsent(),
            PoolError::Closed => Trouble::new(ErrorKind::Closed, "the pool was closed").unsent(),
            other => Trouble::new(
                ErrorKind::Unreachable,
                format!("the pool gives no connection: {other}"),
            )
            .unsent(),
        }
    }
}

#[cfg(feature = "sqlx")]
mod by_sqlx {
    use bytes::BytesMut;
    use sqlx::encode::IsNull;
    use sqlx::pool::PoolConnection;
    use sqlx::postgres::types::Oid;
    use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo};
    use sqlx::{Arguments, AssertSqlSafe, Postgres, Row as _, ValueRef};
    use tokio_postgres::types::{IsNull as Nothing, Type};

    use super::{Job, Row, STILL_OPEN, Trouble, open_transaction};
    use crate::connect::Arg;

    /// Goes back to the pool when its call was answered.
    struct Lent(Option<PoolConnection<Postgres>>);

    impl Drop for Lent {
        fn drop(&mut self) {
            if let Some(connection) = self.0.take() {
                drop(connection.detach());
            }
        }
    }

    /// An argument as the server reads it.
    struct Bound {
        kind: u32,
        bytes: Option<BytesMut>,
    }

    impl sqlx::Type<Postgres> for Bound {
        fn type_info() -> PgTypeInfo {
            PgTypeInfo::with_oid(Oid(Type::TEXT.oid()))
        }
    }

    impl sqlx::Encode<'_, Postgres> for Bound {
        fn encode_by_ref(
            &self,
            buffer: &mut PgArgumentBuffer,
        ) -> Result<IsNull, sqlx::error::BoxDynError> {
            match &self.bytes {
                Some(bytes) => {
                    buffer.extend_from_slice(bytes);
                    Ok(IsNull::No)
                }
                None => Ok(IsNull::Yes),
            }
        }

        fn produces(&self) -> Option<PgTypeInfo> {
            Some(PgTypeInfo::with_oid(Oid(self.kind)))
        }
    }

    pub(super) async fn run(pool: &sqlx::PgPool, job: Job<'_>) -> Result<Vec<Row>, Trouble> {
        let connection = pool
            .acquire()
            .await
            .map_err(|error| Trouble::from(error).unsent())?;
        let mut lent = Lent(Some(connection));
        let Some(connection) = lent.0.as_mut() else {
            return Ok(Vec::new());
        };
        let outcome = match job {
            Job::Ask(sql, args) => {
                // The text is ours. Without a name at the server: with one, a pool that caches no statements would leave one there for each call, and
                // behind a pooler another program's statement could have it.
                let query = sqlx::query_with(AssertSqlSafe(sql), bind(args)?).persistent(false);
                let rows = query.fetch_all(&mut **connection).await;
                let open = match &rows {
                    Ok(_) => {
                        let asked = sqlx::query_scalar(STILL_OPEN).persistent(false);
                        asked.fetch_one(&mut **connection).await
                    }
                    Err(_) => Ok(false),
                };
                match (rows, open) {
                    (Ok(rows), Ok(false)) => Ok(rows),
                    (Ok(_), Ok(true)) => Err(open_transaction()),
                    (Err(error), _) => Err(Trouble::from(error)),
                    // The first was done.
                    (Ok(_), Err(error)) => Err(Trouble::from(error).in_doubt()),
                }
            }
            Job::Text(sql) => {
                let text = sqlx::raw_sql(AssertSqlSafe(sql));
                let done = text.execute(&mut **connection).await;
                done.map(|_| Vec::new()).map_err(Trouble::from)
            }
        };
        if !matches!(&outcome, Err(trouble) if trouble.broken) {
            drop(lent.0.take());
        }
        outcome?.iter().map(cells).collect()
    }

    fn bind(args: &[Arg<'_>]) -> Result<PgArguments, Trouble> {
        let mut bound = PgArguments::default();
        for (value, kind) in args {
            let mut bytes = BytesMut::new();
            let unfit =
                |_| Trouble::unexpected_reply("that it does not know its own types").unsent();
            let nothing = value.to_sql_checked(kind, &mut bytes).map_err(unfit)?;
            let bytes = matches!(nothing, Nothing::No).then_some(bytes);
            let value = Bound {
                kind: kind.oid(),
                bytes,
            };
            bound.add(value).map_err(unfit)?;
        }
        Ok(bound)
    }

    fn cells(row: &PgRow) -> Result<Row, Trouble> {
        let unexpected_reply = |_| Trouble::unexpected_reply("a column that we cannot read");
        let one = |column: usize| {
            let value = row.try_get_raw(column).map_err(unexpected_reply)?;
            let kind = value.type_info().oid();
            let kind = kind.and_then(|oid| Type::from_oid(oid.0));
            let kind =
                kind.ok_or_else(|| Trouble::unexpected_reply("a column of an unknown type"))?;
            let bytes = match value.is_null() {
                true => None,
                false => Some(
                    value
                        .as_bytes()
                        .map_err(|_| Trouble::unexpected_reply("a column that we cannot read"))?
                        .to_vec(),
                ),
            };
            Ok((kind, bytes))
        };
        let all: Result<Vec<_>, Trouble> = (0..row.len()).map(one).collect();
        Ok(Row::Cells(all?))
    }
}
