//! One sign of life for all holds, and a look whether each is still there, at the same time.

use std::collections::HashSet;
use std::sync::Arc;

use dlock_core::{Lease, LossReason, Renewal};

use crate::EtcdBackend;
use crate::acquire::Held;
use crate::error::Trouble;
use crate::txn::{Query, Step, Txn};

/// A server takes at most 128 steps in a transaction.
const STEPS: usize = 100;

fn held_under(session: i64, lease: &Arc<Lease>) -> Option<&Held> {
    lease.native::<Held>().filter(|held| held.lease == session)
}

impl EtcdBackend {
    pub(crate) async fn extend(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if leases.is_empty() {
            return Vec::new();
        }
        let session = self.sessions.current();
        let (alive, keys) = tokio::join!(
            self.sessions.keep_alive(&session),
            self.link.keys_of(session.id)
        );
        let ours = |lease| held_under(session.id, lease);
        let known: HashSet<Vec<u8>> = match keys {
            Ok(Some(keys)) => keys.into_iter().collect(),
            _ => HashSet::new(),
        };
        // A server tells the keys of a lease from memory, and may lag behind: what it misses is asked for. A key that another attempt may
        // have by now, or that a second request may have put, tells nothing.
        let is_known = |lease: &Lease, held: &Held| {
            let attempt = lease.attempt();
            known.contains(&held.key)
                && self.attempts.doubt(attempt).is_none()
                && self.attempts.key(attempt).as_ref() == Some(&held.key)
        };
        let found = match &alive {
            Ok(()) => {
                let held = leases
                    .iter()
                    .filter_map(|lease| Some((lease, ours(lease)?)));
                let missing = held.filter(|(lease, held)| !is_known(lease, held));
                let missing: Vec<&Held> = missing.map(|(_, held)| held).collect();
                self.existing(&missing).await
            }
            Err(_) => Ok(HashSet::new()),
        };
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            let answer = match (ours(lease), &alive, &found) {
                (None, ..) => Renewal::Lost(LossReason::SessionEnded),
                (_, Err(trouble), _) if trouble.lease_gone => {
                    Renewal::Lost(LossReason::SessionEnded)
                }
                (_, Err(trouble), _) => Renewal::Failed(trouble.tell()),
                (Some(held), ..) if is_known(lease, held) => Renewal::Extended,
                (_, _, Err(trouble)) => Renewal::Failed(trouble.tell()),
                (Some(held), _, Ok(found)) if found.contains(&(held.key.clone(), held.created)) => {
                    Renewal::Extended
                }
                (Some(held), ..) => self.gone(lease, held).await,
            };
            if let Renewal::Lost(LossReason::SessionEnded) = answer {
                self.attempts.over(lease.attempt());
            }
            answers.push(answer);
        }
        answers
    }

    /// Nobody releases a hold that is gone, so what it may have left is seen to here.
    async fn gone(&self, lease: &Lease, held: &Held) -> Renewal {
        let attempt = lease.attempt();
        if self.attempts.doubt(attempt).is_none() {
            self.attempts.over(attempt);
        } else if let Err(trouble) = self.remove(attempt, &held.key, None).await {
            return Renewal::Failed(trouble.into());
        }
        Renewal::Lost(LossReason::Gone)
    }

    /// Those of these entries that are there: their keys, and when they were created.
    async fn existing(&self, entries: &[&Held]) -> Result<HashSet<(Vec<u8>, i64)>, Trouble> {
        let mut found = HashSet::new();
        for some in entries.chunks(STEPS) {
            let steps = some
                .iter()
                .map(|held| Step::Get(Query::one(&held.key).keys_only()));
            let answer = self.link.txn(&Txn::of(steps.collect())).await?.value;
            let rows = answer.found.into_iter().flatten();
            found.extend(rows.map(|row| (row.key, row.created)));
        }
        Ok(found)
    }
}
