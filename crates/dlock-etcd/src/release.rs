//! Frees what is ours, and nothing else: a key may be another attempt's by now, so a removal compares whose it is, unless the key is
//! known to be ours and no request is in doubt ([C6](dlock_core::contract#c6)).

use dlock_core::backend::{AttemptId, Lease, Request};
use dlock_core::{Error, ErrorKind, Mode, Released, Result, kit};

use crate::acquire::Held;
use crate::error::Trouble;
use crate::queue;
use crate::store::Store;
use crate::txn::{About, Query, Row, Step, Txn, When};

/// What a removal found.
pub(crate) struct Removed {
    found: bool,
    /// Whether an earlier try of the same removal may have found it.
    doubt: bool,
}

impl Store {
    /// Removes the entry of an attempt, the one `created` at this revision if that is known. Of an attempt that may still have a request
    /// under way a mark stays, which makes that request fail.
    pub(crate) async fn remove(
        &self,
        attempt: AttemptId,
        key: &[u8],
        created: Option<i64>,
    ) -> Result<Removed, Trouble> {
        let delete = Step::Delete(key.to_vec());
        let Some(lease) = self.attempts.doubt(attempt) else {
            let ours = match created {
                Some(created) => When::CreatedAt(key.to_vec(), created),
                None => When::FirstLine(key.to_vec(), attempt.to_string()),
            };
            let txn = Txn {
                when: vec![ours],
                then: vec![delete],
                ..Txn::default()
            };
            let told = self.cluster.txn(&txn).await?;
            self.attempts.over(attempt);
            return Ok(Removed {
                found: told.value.succeeded,
                doubt: told.doubt,
            });
        };
        let mark = self.keys.abandoned(&attempt.to_string());
        let mut marking = vec![Step::Put {
            key: mark.clone(),
            value: Vec::new(),
            lease,
        }];
        // Two old marks are deleted for each new one, so that they become fewer however many there were.
        let old = self.attempts.old_marks(lease, 2);
        marking.extend(old.iter().cloned().map(Step::Delete));
        // Whichever of its requests has put the entry, it goes.
        let mut txn = Txn {
            when: vec![When::FirstLine(key.to_vec(), attempt.to_string())],
            then: vec![Step::Get(About::Own, Query::one(key).keys_only()), delete],
            ..Txn::default()
        };
        let without_mark = txn.clone();
        txn.then.extend(marking.iter().cloned());
        txn.or_else = marking;
        let told = match self.cluster.txn(&txn).await {
            Ok(told) => {
                self.attempts.marked(lease, mark);
                self.attempts.unmarked(&old);
                told
            }
            // No lease, no late entry under it, and no need for a mark.
            Err(trouble) if trouble.is_lease_gone() => self.cluster.txn(&without_mark).await?,
            Err(trouble) => return Err(trouble),
        };
        self.attempts.over(attempt);
        let found = told.value.rows(About::Own).first();
        let as_known = |row: &Row| created.is_none_or(|created| row.created == created);
        Ok(Removed {
            found: found.is_some_and(as_known),
            doubt: told.doubt,
        })
    }

    /// Removes the entry without comparing: only while nobody else can have the key, neither now nor when a late request arrives.
    async fn delete(&self, attempt: AttemptId, key: &[u8]) -> Result<Removed, Trouble> {
        let told = self.cluster.delete(key).await?;
        if !told.doubt {
            self.attempts.deleted(attempt);
        }
        self.attempts.over(attempt);
        Ok(Removed {
            found: told.value,
            doubt: told.doubt,
        })
    }

    pub(crate) async fn release(&self, lease: &Lease) -> Result<Released> {
        let Some(held) = lease.native::<Held>() else {
            return Ok(Released::AlreadyLost);
        };
        let attempt = lease.attempt();
        let removed = if self.attempts.delete(attempt) {
            self.delete(attempt, &held.key).await?
        } else {
            self.remove(attempt, &held.key, Some(held.created)).await?
        };
        match removed {
            Removed { found: true, .. } => Ok(Released::Freed),
            Removed { doubt: false, .. } => Ok(Released::AlreadyLost),
            // Nobody can tell whether our first try freed it or it was lost before.
            Removed { .. } => Err(Error::new(
                ErrorKind::Unreachable,
                "the answer to the release was lost; now the hold is gone",
            )),
        }
    }

    pub(crate) async fn abandon(&self, request: &Request) -> Result<()> {
        let attempt = request.attempt();
        kit::remember_abandoned(attempt);
        // Without a key nothing was sent, or it is known that nothing is left.
        if let Some(key) = self.attempts.key(attempt) {
            self.remove(attempt, &key, None).await?;
        }
        Ok(())
    }

    /// The writer's entry stays where it is and says that it shares now: in one step, with its place and its token.
    pub(crate) async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let lost = || {
            Error::new(
                ErrorKind::Lost,
                "the hold is gone, so there is nothing to downgrade",
            )
        };
        let held = lease.native::<Held>().ok_or_else(lost)?;
        let txn = Txn {
            when: vec![When::CreatedAt(held.key.clone(), held.created)],
            then: vec![Step::Put {
                key: held.key.clone(),
                value: queue::value(lease.attempt(), Mode::Shared, &held.label),
                lease: held.lease,
            }],
            ..Txn::default()
        };
        match self.cluster.txn(&txn).await {
            Ok(told) if told.value.succeeded => Ok(()),
            Err(trouble) if !trouble.is_lease_gone() => Err(trouble.into()),
            _ => Err(lost()),
        }
    }
}
