//! What is asked of a node, and what it answers.

use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{ErrorKind, Mode, Name, Result};

use crate::acquire::unexpected_reply;
use crate::connect::RedisReply;
use crate::error::Trouble;

/// What is to be taken, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The lock.
    pub name: &'a Name,
    /// How it shall be held.
    pub mode: Mode,
    /// The owner to write into the store.
    pub attempt: AttemptId,
    /// How long the server shall keep it without a renewal.
    pub lease: Duration,
    /// The holder's label.
    pub label: &'a str,
}

/// What a server answered to [`Node::take`](super::Node::take).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The attempt holds the lock at this server.
    Held {
        /// The server's counter for the lock, which this attempt has raised.
        counter: u64,
    },
    /// Others hold it there, or stand before it. Nothing of this attempt is left, but its place in the queue if it [stands](super::Node::stand) there.
    Others {
        /// When asking again is worth it, if that is known: somebody's lease ends then without a renewal.
        free_in: Option<Duration>,
        /// The server's counter for the lock: whoever holds it at several servers has the same at most of them.
        counter: u64,
    },
}

/// What there may be to free at a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// A hold, and nothing else.
    Hold,
    /// The same, and others may share it: it is never freed together with other locks.
    SharedHold,
    /// A hold or a place in the queue; every request was answered.
    Place,
    /// The same, and a request that is still under way: it is refused when it comes within a minute.
    Stray,
}

/// What a server answered to [`Node::raise`](super::Node::raise).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raised {
    /// The counter is the token now, and this attempt is the only one that has written it.
    Yes,
    /// The counter had got as far, or further, without this attempt.
    TooLow {
        /// The counter.
        counter: u64,
    },
    /// The attempt no longer holds the lock there.
    Gone,
}

pub(super) fn read_taken(answer: RedisReply) -> Result<Taken, Trouble> {
    match answer {
        RedisReply::Text(counter) => match counter.parse() {
            Ok(counter) => Ok(Taken::Held { counter }),
            Err(_) => Err(unexpected_reply("a counter that is no number")),
        },
        RedisReply::List(parts) => match parts.as_slice() {
            [RedisReply::Number(left), RedisReply::Text(counter)] => Ok(Taken::Others {
                free_in: u64::try_from(*left)
                    .ok()
                    .filter(|left| *left > 0)
                    .map(Duration::from_millis),
                counter: counter
                    .parse()
                    .map_err(|_| unexpected_reply("a counter that is no number"))?,
            }),
            [RedisReply::Text(what)] if what == "abandoned" => Err(Trouble::new(
                ErrorKind::Store,
                "this attempt was undone there a moment ago, and is refused",
            )
            .unsent()),
            _ => Err(unexpected_reply("an unknown list")),
        },
        _ => Err(unexpected_reply("in an unknown form")),
    }
}
