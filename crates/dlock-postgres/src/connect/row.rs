//! A row of an answer, whoever has brought it.

use tokio_postgres::types::FromSql;
#[cfg(feature = "sqlx")]
use tokio_postgres::types::Type;

/// One row.
#[derive(Debug)]
pub(crate) enum Row {
    Own(tokio_postgres::Row),
    /// The bytes of each column as the server sent them, and their type.
    #[cfg(feature = "sqlx")]
    Cells(Vec<(Type, Option<Vec<u8>>)>),
}

/// A column that is not there, or of another type.
#[derive(Debug)]
pub(crate) struct Unreadable;

impl Row {
    pub(crate) fn try_get<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T, Unreadable> {
        match self {
            Self::Own(row) => row.try_get(column).map_err(|_| Unreadable),
            #[cfg(feature = "sqlx")]
            Self::Cells(cells) => {
                let (kind, bytes) = cells.get(column).ok_or(Unreadable)?;
                if !T::accepts(kind) {
                    return Err(Unreadable);
                }
                T::from_sql_nullable(kind, bytes.as_deref()).map_err(|_| Unreadable)
            }
        }
    }
}
