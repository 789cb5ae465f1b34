//! One call: what is asked, how it is sent, and what came back.

use tokio_postgres::types::FromSql;

use super::row::Row;
use super::wire::{Arg, Wire};
use crate::error::Trouble;

/// Whose turn a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turns {
    Calls,
    Renewals,
    /// A renewal that waits for a row that somebody has locked: neither behind calls, nor in front of renewals that need not wait.
    StuckRenewals,
}

/// One call, told to [`SharedConnections::call`].
#[derive(Clone, Copy)]
pub(crate) enum Job<'a> {
    /// A statement with its arguments.
    Ask(&'a str, &'a [Arg<'a>]),
    /// Text without arguments, perhaps several statements.
    Text(&'a str),
}

impl Job<'_> {
    pub(super) async fn run(self, wire: &mut Wire, how: Sending) -> Result<Vec<Row>, Trouble> {
        let rows = match (self, how) {
            (Self::Ask(sql, args), Sending::Isolated) => wire.ask_isolated(sql, args).await?,
            (Self::Ask(sql, args), Sending::Prepared) => wire.ask_often(sql, args).await?,
            (Self::Ask(sql, args), Sending::Plain) => wire.ask(sql, args).await?,
            (Self::Text(sql), _) => {
                wire.text(sql).await?;
                Vec::new()
            }
        };
        Ok(rows.into_iter().map(Row::Own).collect())
    }
}

/// How a statement is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// Whole in itself: any connection to the server will do.
    Plain,
    /// The server knows it by a name that belongs to the connection.
    Prepared,
    /// With a word before and behind: transactions of this user are of another kind than ours must be.
    Isolated,
}

/// What a call brought.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) rows: Vec<Row>,
    /// A first try may have been carried out before this one, or may still be.
    pub(crate) again: bool,
}

impl Told {
    /// The first column of the first row.
    pub(crate) fn first<T: for<'a> FromSql<'a>>(&self) -> Result<T, Trouble> {
        let first = self.rows.first().and_then(|row| row.try_get(0).ok());
        first.ok_or_else(|| Trouble::unexpected_reply("nothing that we understand"))
    }
}
