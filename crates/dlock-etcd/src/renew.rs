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
        let ours = |lease: &Lease| {
            let held = lease.native::<Held>();
            held.is_some_and(|held| held.lease == session.id)
        };
        if let Err(trouble) = alive {
            let answer = |lease: &Arc<Lease>| {
                if trouble.lease_gone || !ours(lease) {
                    Renewal::Lost(LossReason::SessionEnded)
                } else {
                    Renewal::Failed(trouble.tell())
                }
            };
            return leases.iter().map(answer).collect();
        }
        let known: HashSet<Vec<u8>> = match keys {
            Ok(Some(keys)) => keys.into_iter().collect(),
            _ => HashSet::new(),
        };
        // A server tells the keys of a lease from memory, and may lag behind: what it misses is asked for.
        let missing = leases
            .iter()
            .filter(|lease| ours(lease))
            .map(|lease| self.key_of(lease));
        let missing: Vec<Vec<u8>> = missing.filter(|key| !known.contains(key)).collect();
        let found = self.existing(&missing).await;
        let answer = |lease: &Arc<Lease>| {
            let key = self.key_of(lease);
            if !ours(lease) {
                return Renewal::Lost(LossReason::SessionEnded);
            }
            match &found {
                _ if known.contains(&key) => Renewal::Extended,
                Ok(found) if found.contains(&key) => Renewal::Extended,
                Ok(_) => Renewal::Lost(LossReason::Gone),
                Err(trouble) => Renewal::Failed(trouble.tell()),
            }
        };
        leases.iter().map(answer).collect()
    }

    /// Those of these keys that are there.
    async fn existing(&self, keys: &[Vec<u8>]) -> Result<HashSet<Vec<u8>>, Trouble> {
        let mut found = HashSet::new();
        for some in keys.chunks(STEPS) {
            let steps = some
                .iter()
                .map(|key| Step::Get(Query::one(key).keys_only()));
            let answer = self.link.txn(&Txn::of(steps.collect())).await?.value;
            found.extend(answer.found.into_iter().flatten().map(|row| row.key));
        }
        Ok(found)
    }
}
