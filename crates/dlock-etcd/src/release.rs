//! Frees what is ours, and nothing else: an entry's key holds its attempt.

use dlock_core::{AttemptId, Error, ErrorKind, Lease, Mode, Released, Request, Result};

use crate::EtcdBackend;
use crate::acquire::Held;
use crate::error::Trouble;
use crate::queue;
use crate::txn::{Step, Txn, When};

/// What a removal found.
pub(crate) struct Removed {
    found: bool,
    /// Whether an earlier try of the same removal may have found it.
    doubt: bool,
}

impl EtcdBackend {
    /// Removes an entry. Of an attempt that may still have a request under way a mark stays, which makes that request fail.
    pub(crate) async fn remove(&self, attempt: AttemptId, key: &[u8]) -> Result<Removed, Trouble> {
        let delete = Step::Delete(key.to_vec());
        let Some(lease) = self.attempts.doubt(attempt) else {
            let removed = self.removed(vec![delete]).await?;
            self.attempts.over(attempt);
            return Ok(removed);
        };
        let mark = self.keys.abandoned(&attempt.to_string());
        let mut steps = vec![
            delete.clone(),
            Step::Put {
                key: mark.clone(),
                value: Vec::new(),
                lease,
            },
        ];
        steps.extend(self.attempts.old_mark(lease).map(Step::Delete));
        let removed = match self.removed(steps).await {
            Ok(removed) => {
                self.attempts.marked(lease, mark);
                removed
            }
            // No lease, no late entry under it, and no need for a mark.
            Err(trouble) if trouble.lease_gone => self.removed(vec![delete]).await?,
            Err(trouble) => return Err(trouble),
        };
        self.attempts.over(attempt);
        Ok(removed)
    }

    async fn removed(&self, steps: Vec<Step>) -> Result<Removed, Trouble> {
        let told = self.link.txn(&Txn::of(steps)).await?;
        Ok(Removed {
            found: told.value.deleted > 0,
            doubt: told.doubt,
        })
    }

    pub(crate) async fn free(&self, lease: &Lease) -> Result<Released> {
        let removed = self.remove(lease.attempt(), &self.key_of(lease)).await?;
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

    pub(crate) async fn give_up(&self, request: &Request) -> Result<()> {
        let attempt = request.attempt();
        self.attempts.refuse(attempt);
        let lock = self.keys.lock(request.name());
        let key = lock.entry(request.mode(), &attempt.to_string());
        self.remove(attempt, &key).await?;
        Ok(())
    }

    /// The writer's entry stays where it is and says that it shares now: in one step, with its place and its token.
    pub(crate) async fn share(&self, lease: &Lease) -> Result<()> {
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
                value: queue::value(Mode::Shared, &held.label),
                lease: held.lease,
            }],
            ..Txn::default()
        };
        self.attempts.downgraded(lease.attempt());
        match self.link.txn(&txn).await {
            Ok(told) if told.value.succeeded => Ok(()),
            Err(trouble) if !trouble.lease_gone => Err(trouble.into()),
            _ => Err(lost()),
        }
    }

    pub(crate) fn key_of(&self, lease: &Lease) -> Vec<u8> {
        match lease.native::<Held>() {
            Some(held) => held.key.clone(),
            None => self
                .keys
                .lock(lease.name())
                .entry(lease.mode(), &lease.attempt().to_string()),
        }
    }
}
