//! What every backend says in the same words.

use std::fmt;
use std::time::Duration;

use crate::{Error, ErrorKind, HeldNow};

/// What to tell a person about a connection that was refused.
pub const NOBODY_LISTENS: &str = "nobody listens there: is the server running?";

/// The advice, and in brackets what the client or the server said; that alone when there is no advice.
///
/// ```
/// use dlock_core::kit::{NOBODY_LISTENS, with_advice};
///
/// let text = with_advice(NOBODY_LISTENS, "Connection refused (os error 111)");
/// assert_eq!(text, "nobody listens there: is the server running? (Connection refused (os error 111))");
/// ```
pub fn with_advice(advice: &str, said: impl fmt::Display) -> String {
    if advice.is_empty() {
        return said.to_string();
    }
    format!("{advice} ({said})")
}

/// A request was sent, and no answer came within `limit`.
pub fn no_answer(limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("no answer within {limit:?}: is the store alive and reachable?"),
    )
}

/// No connection was made within `limit`; so nothing was sent.
pub fn no_connection(limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("no connection within {limit:?}: is the address right, and the server alive?"),
    )
    .with_held(HeldNow::No)
}

/// A call on a client that was closed.
pub fn closed() -> Error {
    Error::new(
        ErrorKind::Closed,
        "this client was closed: make a new one with connect",
    )
}

/// The store gave the lock, and said so when the lease was over already ([C7](crate::contract#c7)). What it gave may still be there: a backend returns the error as it is,
/// and core undoes the attempt.
pub fn too_late(lease: Duration) -> Error {
    Error::new(
        ErrorKind::TooLate,
        format!(
            "the store took longer to answer than the lease of {lease:?} lasts: use a longer lease, or look why it is slow"
        ),
    )
    .with_held(HeldNow::Unknown)
}

/// A request of an attempt that was abandoned before: it must not take effect any more ([C13](crate::contract#c13)).
pub fn abandoned() -> Error {
    Error::new(
        ErrorKind::Store,
        "this attempt was abandoned: make a new one",
    )
    .with_held(HeldNow::No)
}
