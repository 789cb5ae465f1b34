//! Where an entry stands in its queue, and what it must wait for.

use dlock_core::{Mode, Request};

use crate::EtcdBackend;
use crate::acquire::Entry;
use crate::error::Trouble;
use crate::key::LockKeys;
use crate::queue;
use crate::txn::{Query, Row, Step, Txn, When};
use crate::wait::Watched;

/// Where an entry stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
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
    pub(crate) node: usize,
    pub(crate) revision: i64,
}

impl EtcdBackend {
    /// Looks where an entry stands: at one server, which has told of a revision, or at the whole cluster.
    pub(crate) async fn place(
        &self,
        request: &Request,
        entry: &Entry,
        at: Option<Near>,
    ) -> Result<(Place, i64), Trouble> {
        let lock = self.keys.lock(request.name());
        let mode = request.mode();
        let mut txn = Txn {
            when: vec![When::CreatedAt(entry.key.clone(), entry.created)],
            then: vec![Step::Get(question(mode, &lock, Some(entry.created)))],
            or_else: Vec::new(),
            local: at.is_some(),
        };
        let mut near = None;
        if let Some(at) = at {
            // A server sends an event a moment before it shows its effect to readers, so the answer may be older than the event.
            let answer = self.link.txn_at(at.node, &txn).await?;
            near = Some(answer).filter(|answer| answer.revision >= at.revision);
        }
        let answer = match near {
            Some(answer) => answer,
            None => {
                txn.local = false;
                self.link.txn(&txn).await?.value
            }
        };
        let place = if answer.succeeded {
            self.judge(mode, &lock, entry, answer.rows(0))
        } else {
            Place::Gone
        };
        Ok((place, answer.revision))
    }

    /// Reads the answer to [`question`].
    pub(crate) fn judge(&self, mode: Mode, lock: &LockKeys, entry: &Entry, rows: &[Row]) -> Place {
        let mut others = rows.iter().filter(|row| row.key != entry.key);
        let before = others.next();
        match mode {
            Mode::Exclusive => match (before, others.next()) {
                // Keys that hang on one lease can end in one step, ours among them: the order of such events tells nothing.
                (Some(row), None) if row.lease != entry.session.id => {
                    Place::Behind(Watched::end_of_last(&row.key))
                }
                (Some(row), _) => Place::Behind(Watched::end_of(&row.key)),
                (None, _) => Place::Holds { followed: false },
            },
            Mode::Shared => match before {
                // A writer that has become a reader holds, so no other writer is before it.
                Some(row) if queue::mode_of(&row.value) != Some(Mode::Shared) => {
                    Place::Behind(Watched::change_of(&row.key))
                }
                _ => Place::Holds { followed: false },
            },
            Mode::Permit { limit } => self.judge_permit(limit as usize, lock, entry, rows),
        }
    }

    fn judge_permit(&self, limit: usize, lock: &LockKeys, entry: &Entry, rows: &[Row]) -> Place {
        let queue = queue::read_all(&self.keys, rows);
        let rank = queue
            .iter()
            .take_while(|ticket| ticket.created < entry.created);
        let before: Vec<_> = rank.collect();
        let stranger = before
            .iter()
            .rfind(|ticket| !matches!(ticket.mode, Mode::Permit { .. }));
        if let Some(stranger) = stranger {
            return Place::Behind(Watched::end_of(&stranger.key));
        }
        match before.last() {
            // The first who waits watches the holders; the others watch for the one before them to move up.
            Some(_) if before.len() == limit => Place::Behind(Watched::end_in(lock.permits())),
            Some(last) if before.len() > limit => Place::Behind(Watched::change_of(&last.key)),
            _ => Place::Holds {
                followed: queue.len() > before.len() + 1,
            },
        }
    }
}

/// Who stands in the way: of one that was just put, and is the newest, or of one that was put at a revision.
pub(crate) fn question(mode: Mode, lock: &LockKeys, created: Option<i64>) -> Query {
    let query = match mode {
        Mode::Exclusive => {
            // The one before, and whether another is before that. The newest may be the asking entry itself.
            let enough = if created.is_some() { 2 } else { 3 };
            Query::newest(lock.all(), enough).keys_only()
        }
        Mode::Shared => Query::newest(lock.writers_and_permits(), 1),
        Mode::Permit { .. } => return Query::queue(lock.all()),
    };
    query.created_before(created.unwrap_or_default())
}
