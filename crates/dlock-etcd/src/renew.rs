//! One sign of life for all holds, and a look whether each is still there, at the same time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::LossReason;
use dlock_core::backend::{Lease, Renewal};

use crate::acquire::Held;
use crate::error::Trouble;
use crate::session::one_of_two;
use crate::store::Store;
use crate::txn::{About, Query, Step, Txn};

/// A server takes at most 128 steps in a transaction.
pub(crate) const STEPS: usize = 100;

fn held_under(session: i64, lease: &Arc<Lease>) -> Option<&Held> {
    lease.native::<Held>().filter(|held| held.lease == session)
}

impl Store {
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let limit = leases.iter().map(|lease| lease.renewal_limit()).min();
        let Some(limit) = limit.map(one_of_two) else {
            return Vec::new();
        };
        let session = self.sessions.current();
        // What hangs on the lease is told at once, unless that is much more than what is asked for: who waits has entries too.
        let many_wait = self.attempts.count(session.id) > leases.len() * 4 + STEPS;
        let (alive, keys) = tokio::join!(self.sessions.keep_alive(&session, limit), async {
            match many_wait {
                true => Ok(None),
                false => self.cluster.keys_of(session.id, limit).await,
            }
        });
        let ours = |lease| held_under(session.id, lease);
        let keys = keys.ok().flatten();
        // In a store that may be another, an entry with the same key may be an earlier one.
        let trusted = keys.iter().flatten().filter(|_| !self.is_suspicious());
        let known: HashSet<Vec<u8>> = trusted.cloned().collect();
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
                self.existing(&missing, limit).await
            }
            Err(_) => Ok(HashSet::new()),
        };
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            if alive.is_ok() && self.attempts.owes_ring(lease.attempt()) {
                self.ring(lease).await;
            }
            let answer = match (ours(lease), &alive, &found) {
                (None, ..) => Renewal::Lost(LossReason::SessionEnded),
                (_, Err(trouble), _) if trouble.is_lease_gone() => {
                    Renewal::Lost(LossReason::SessionEnded)
                }
                (_, Err(trouble), _) => Renewal::Failed(trouble.clone().into()),
                (Some(held), ..) if is_known(lease, held) => Renewal::Extended,
                (_, _, Err(trouble)) => Renewal::Failed(trouble.clone().into()),
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
        if alive.is_ok() {
            // Core waits for these answers, and gives a renewal up after its limit: the clean-up takes no longer than that.
            let tidied = tokio::time::timeout(limit, Box::pin(self.tidy(&session, keys)));
            let _ = tidied.await;
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
    async fn existing(
        &self,
        entries: &[&Held],
        limit: Duration,
    ) -> Result<HashSet<(Vec<u8>, i64)>, Trouble> {
        let mut found = HashSet::new();
        for some in entries.chunks(STEPS) {
            let steps = some
                .iter()
                .map(|held| Step::Get(About::Own, Query::one(&held.key).keys_only()));
            let txn = Txn::of(steps.collect());
            let answer = self.cluster.txn_within(limit, &txn).await?.value;
            let rows = answer.into_rows();
            found.extend(rows.map(|row| (row.key, row.created)));
        }
        Ok(found)
    }
}
