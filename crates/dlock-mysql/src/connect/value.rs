//! What goes into a statement, and what comes out.

use mysql_async::{Row, Value};

/// An argument of a statement.
#[derive(Debug, Clone)]
pub(crate) enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&Arg<'_>> for Value {
    fn from(arg: &Arg<'_>) -> Self {
        match arg {
            Arg::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Arg::Number(number) => Self::UInt(*number),
        }
    }
}

/// What a statement brought.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) affected: u64,
    /// Of `LAST_INSERT_ID(…)` or an automatic number; 0 when there was none.
    pub(crate) id: u64,
    pub(crate) rows: Vec<AnswerRow>,
}

impl Answer {
    /// The first column of the first row.
    pub(crate) fn first_number(&self) -> Option<u64> {
        self.rows.first().and_then(|row| row.number(0))
    }
}

/// One row.
#[derive(Debug)]
pub(crate) struct AnswerRow(Vec<Value>);

impl AnswerRow {
    /// A number; `None` for NULL. A negative one is 0.
    pub(crate) fn number(&self, column: usize) -> Option<u64> {
        match self.0.get(column)? {
            Value::UInt(number) => Some(*number),
            Value::Int(number) => Some(u64::try_from(*number).unwrap_or(0)),
            Value::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// Bytes; `None` for NULL.
    pub(crate) fn bytes(&self, column: usize) -> Option<&[u8]> {
        match self.0.get(column)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Text; `None` for NULL.
    pub(crate) fn text(&self, column: usize) -> Option<String> {
        self.bytes(column)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

pub(super) fn rows_of(rows: Vec<Row>) -> Vec<AnswerRow> {
    rows.into_iter()
        .map(|row| AnswerRow(row.unwrap()))
        .collect()
}
