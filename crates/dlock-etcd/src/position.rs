//! Where an entry stands in its queue, and what it must wait for.

use dlock_core::Mode;
use dlock_core::backend::Request;

use crate::acquire::Entry;
use crate::error::Trouble;
use crate::key::LockKeys;
use crate::queue;
use crate::store::Store;
use crate::txn::{About, Query, Row, Step, Txn, TxnAnswer, When};
use crate::watched::Watched;

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Position {
    /// It holds. Those who wait for permits behind it want to know.
    Holds { followed: bool },
    /// It waits until this changes.
    Behind(Watched),
    /// Somebody removed it.
    Gone,
}

/// A server, and a revision that it has told of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    pub(crate) member: usize,
    pub(crate) revision: i64,
}

impl Near {
    /// A server sends an event a moment before it shows its effect to readers, so an answer may be older than the event, and tells
    /// nothing then.
    pub(crate) fn read(self, told: OneMembersAnswer) -> Option<TxnAnswer> {
        Some(told.0).filter(|answer| answer.revision >= self.revision)
    }
}

/// What one server alone has answered, which may be old: [`Near::read`] tells whether it is worth anything.
#[derive(Debug)]
pub(crate) struct OneMembersAnswer(TxnAnswer);

impl From<TxnAnswer> for OneMembersAnswer {
    fn from(answer: TxnAnswer) -> Self {
        Self(answer)
    }
}

impl Store {
    /// Asks one server, if it knows what it has told of already, or else the whole cluster.
    pub(crate) async fn ask_near(
        &self,
        mut txn: Txn,
        near: Option<Near>,
    ) -> Result<TxnAnswer, Trouble> {
        if let Some(near) = near {
            txn.local = true;
            let told = self.cluster.txn_at(near.member, &txn).await?;
            if let Some(answer) = near.read(told) {
                return Ok(answer);
            }
        }
        txn.local = false;
        Ok(self.cluster.txn(&txn).await?.value)
    }

    /// Looks where an entry stands: at one server, which has told of a revision, or at the whole cluster. The server goes through the
    /// whole queue for it, so this is for when something has changed.
    pub(crate) async fn place(
        &self,
        request: &Request,
        entry: &Entry,
        near: Option<Near>,
    ) -> Result<(Position, i64), Trouble> {
        let lock = self.keys.lock(request.name());
        let mode = request.mode();
        let txn = Txn {
            when: vec![When::CreatedAt(entry.key.clone(), entry.created)],
            then: questions(mode, &lock, Some(entry.created)),
            ..Txn::default()
        };
        let answer = self.ask_near(txn, near).await?;
        let place = if answer.succeeded {
            judge(mode, &lock, entry, &answer)
        } else {
            Position::Gone
        };
        Ok((place, answer.revision))
    }
}

/// Who stands in the way: of one that was just put, and is the newest, or of one that was put at a revision. [`judge`] reads the answers.
pub(crate) fn questions(mode: Mode, lock: &LockKeys, created: Option<i64>) -> Vec<Step> {
    let before = created.unwrap_or_default();
    // The newest may be the asking entry itself.
    let itself = i64::from(created.is_none());
    match mode {
        Mode::Shared => {
            let nearest = Query::newest(lock.writers_and_permits(), 1);
            vec![Step::Get(About::Before, nearest.created_before(before))]
        }
        Mode::Permit { limit } => {
            let stranger = Query::newest(lock.readers_and_writers(), 1).keys_only();
            let nearest = Query::newest(lock.permits(), 1 + itself).keys_only();
            let permits = match created {
                // It is the newest, so all others are before it.
                None => Query::count(lock.permits()),
                // The holders, and the first who waits.
                Some(created) => Query::oldest(lock.permits(), i64::from(limit) + 1)
                    .keys_only()
                    .created_before(created.saturating_add(1)),
            };
            vec![
                Step::Get(About::Stranger, stranger.created_before(before)),
                Step::Get(About::Permits, permits),
                Step::Get(About::Before, nearest.created_before(before)),
            ]
        }
        // Also a mode of a later core, which asks only for those that the capabilities name: alone is always safe.
        _ => {
            // The one before, and whether another is before that.
            let nearest = Query::newest(lock.all(), 2 + itself).keys_only();
            vec![Step::Get(About::Before, nearest.created_before(before))]
        }
    }
}

/// Reads the answers to [`questions`].
pub(crate) fn judge(mode: Mode, lock: &LockKeys, entry: &Entry, answer: &TxnAnswer) -> Position {
    let mut others = answer.rows(About::Before).iter();
    let mut others = others.by_ref().filter(|row| row.key != entry.key);
    let before = others.next();
    match mode {
        Mode::Shared => match before {
            // A writer that has become a reader holds, so no other writer is before it.
            Some(row) if queue::mode_of(&row.value) != Some(Mode::Shared) => {
                Position::Behind(Watched::change_of(row))
            }
            _ => Position::Holds { followed: false },
        },
        Mode::Permit { limit } => judge_permit(limit, lock, entry, before, answer),
        _ => match (before, others.next()) {
            // Keys that hang on one lease can end in one step, ours among them: the order of such events tells nothing.
            (Some(row), None) if row.lease != entry.session.id => {
                Position::Behind(Watched::end_of_last(row))
            }
            (Some(row), _) => Position::Behind(Watched::end_of(row)),
            (None, _) => Position::Holds { followed: false },
        },
    }
}

fn judge_permit(
    limit: u32,
    lock: &LockKeys,
    entry: &Entry,
    before: Option<&Row>,
    answer: &TxnAnswer,
) -> Position {
    if let Some(stranger) = answer.rows(About::Stranger).first() {
        return Position::Behind(Watched::end_of(stranger));
    }
    let (limit, permits) = (limit as usize, answer.rows(About::Permits));
    let all = usize::try_from(answer.total(About::Permits)).unwrap_or(usize::MAX);
    // How many are before it, as far as that matters: more than the limit is all the same.
    let rank = if permits.is_empty() {
        all.saturating_sub(1)
    } else {
        let own = permits.iter().position(|row| row.key == entry.key);
        own.unwrap_or(usize::MAX)
    };
    match before {
        // The first who waits watches the holders; the others watch for the one before them to move up.
        _ if rank == limit => Position::Behind(Watched::end_in(lock.permits())),
        Some(row) if rank > limit => Position::Behind(Watched::change_of(row)),
        _ => Position::Holds {
            followed: all > rank.saturating_add(1),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_older_than_what_was_told_tells_nothing() {
        let near = Near {
            member: 0,
            revision: 7,
        };
        let at = |revision| {
            let answer = TxnAnswer {
                revision,
                ..TxnAnswer::default()
            };
            near.read(answer.into()).map(|answer| answer.revision)
        };
        assert_eq!([6, 7, 8].map(at), [None, Some(7), Some(8)]);
    }
}
