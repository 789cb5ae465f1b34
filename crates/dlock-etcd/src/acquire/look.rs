//! How a try looks whether it may.

use dlock_core::Mode;

use crate::key::LockKeys;
use crate::position::questions;
use crate::queue;
use crate::txn::{About, Query, Row, Step, Txn, TxnAnswer, When};

/// How a try makes sure that nobody stands in its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It takes the lock if nobody is there, or nobody whom a reader minds.
    Nobody,
    /// Those who were there at this revision let a reader in, and nobody whom it minds came since. Other readers may come.
    Since(i64),
    /// There were permits. It takes a place, and gives it up if others were quicker: by then all permits are taken. Only if they are
    /// free is the queue entered, so a try that was in vain from the start leaves no trace in it.
    Permits,
}

impl Look {
    pub(super) fn add_to(self, txn: &mut Txn, mode: Mode, lock: &LockKeys) {
        let minds = match mode {
            Mode::Shared => lock.writers_and_permits(),
            _ => lock.all(),
        };
        match self {
            Self::Nobody => txn.when.push(When::NoneIn(minds)),
            Self::Since(revision) => txn.when.push(When::NoneSince(minds, revision)),
            Self::Permits => {
                txn.when.push(When::NoneIn(lock.readers_and_writers()));
                if let Mode::Permit { limit } = mode {
                    txn.when.extend(lock.other_permits(limit).map(When::NoneIn));
                }
                txn.then.extend(questions(mode, lock, None));
            }
        }
        match mode {
            Mode::Shared => {
                let nearest = Query::newest(lock.writers_and_permits(), 1);
                txn.or_else.push(Step::Get(About::Before, nearest));
            }
            Mode::Permit { .. } => {
                let stranger = Query::newest(lock.readers_and_writers(), 1).keys_only();
                txn.or_else.push(Step::Get(About::Stranger, stranger));
                // One tells the limit that is in use, and comes with how many there are.
                let permit = Query::newest(lock.permits(), 1);
                txn.or_else.push(Step::Get(About::Entries, permit));
            }
            _ => {}
        }
    }

    /// What to do after a look at those who were there; `None` when they stand in the way.
    pub(super) fn after(mode: Mode, answer: &TxnAnswer) -> Option<Self> {
        match mode {
            Mode::Shared => {
                // A writer that has become a reader holds, so no other writer is before it.
                let nearest = answer.rows(About::Before).first();
                let minds = |row: &Row| queue::mode_of(&row.value) != Some(Mode::Shared);
                (!nearest.is_some_and(minds)).then_some(Self::Since(answer.revision))
            }
            Mode::Permit { limit } => {
                let free = answer.rows(About::Stranger).is_empty()
                    && answer.total(About::Entries) < i64::from(limit);
                free.then_some(Self::Permits)
            }
            _ => None,
        }
    }
}
