//! The client: connections, their time-outs, and which of them may be used again.
//!
//! `tokio_postgres` sends requests one behind the other and gives each its own channel for the answers; the answers to a request whose future
//! was dropped are read and thrown away, so the next request on that connection gets its own. A connection whose call was given up could
//! therefore be used again. It is not: the next call would wait until the server has done what was given up.
//!
//! Every request is whole in itself: parse, bind and execute with one sync, without a name at the server. So a pooler may give each to
//! another server connection. And nothing of ours is a session's: no setting, no open transaction. Where it was seen at connect that
//! no pooler is there, the server is told our statements by name, once for each connection, which halves what a call costs it.

#[cfg(any(feature = "deadpool", feature = "sqlx"))]
mod guest;
mod job;
mod listen;
mod pool;
mod row;
mod shared;
mod tls;
mod wire;

#[cfg(any(feature = "deadpool", feature = "sqlx"))]
pub(crate) use self::guest::Guest;
pub(crate) use self::job::{Job, Told, Turns};
pub(crate) use self::listen::Ear;
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
pub(crate) use self::pool::TAKES_WRITES;
pub(crate) use self::row::Row;
pub(crate) use self::shared::SharedConnections;
pub(crate) use self::wire::{Arg, Often, Wire};
