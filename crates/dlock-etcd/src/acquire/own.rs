//! What an attempt finds at its own key, when it may have put an entry there before.

use std::sync::Arc;

use dlock_core::backend::Request;
use dlock_core::kit;

use super::Entry;
use crate::attempts::Seated;
use crate::error::Trouble;
use crate::queue;
use crate::session::Session;
use crate::txn::{About, Row, TxnAnswer};

/// What is at the key of an attempt.
pub(super) enum Own {
    None,
    /// The attempt's own entry: an earlier request of it was carried out.
    Entry(Entry),
    /// An entry that no attempt of this client has. Nobody else uses the keys of its lease, so an old copy of the store brought it back, or
    /// somebody put it there by hand.
    Ghost(Row),
}

/// Reads the answers about the own entry and the mark from [`entry_txn`](Store::entry_txn)'s other branch.
pub(super) fn own_entry(
    request: &Request,
    seated: &Seated,
    answer: &TxnAnswer,
    session: &Arc<Session>,
) -> Result<Own, Trouble> {
    if !seated.again {
        return Ok(Own::None);
    }
    if !answer.rows(About::Mark).is_empty() {
        return Err(kit::abandoned().into());
    }
    let Some(own) = answer.rows(About::Own).first() else {
        return Ok(Own::None);
    };
    Ok(if queue::is_of(&own.value, request.attempt()) {
        Own::Entry(Entry::new(own.key.clone(), own.created, session))
    } else {
        Own::Ghost(own.clone())
    })
}
