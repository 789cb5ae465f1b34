//! Extends what is still ours: one statement for all exclusive holds, one for all shared holds and permits.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::Mode;
use dlock_core::backend::{AttemptId, Lease, Renewal};

use super::LeaseLocks;
use crate::bell;
use crate::renew::{RenewStatements, renewal};

impl LeaseLocks {
    /// The mode of a lease says where its hold should be. It may be in the other table: a downgrade whose answer was lost has moved it, and one
    /// that was never sent has not. So what is not found is looked for there before it counts as lost; last among the shared ones, to which
    /// a downgrade that is under way right now moves it.
    pub(super) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let (whole, parts): (Vec<_>, Vec<_>) = leases
            .iter()
            .cloned()
            .partition(|lease| lease.mode() == Mode::Exclusive);
        let mut told = HashMap::with_capacity(leases.len());
        let (whole_told, parts_told) = futures::join!(
            self.look_in(&self.sql.renew, &whole),
            self.look_in(&self.sql.part_renew, &parts)
        );
        told.extend(whole_told);
        told.extend(parts_told);
        let missing = |told: &HashMap<AttemptId, Renewal>, modes: &[Mode]| -> Vec<Arc<Lease>> {
            let lost = |lease: &&Arc<Lease>| {
                let renewal = told.get(&lease.attempt());
                matches!(renewal, Some(Renewal::Lost(_))) && modes.contains(&lease.mode())
            };
            leases.iter().filter(lost).cloned().collect()
        };
        let shared = missing(&told, &[Mode::Shared]);
        told.extend(self.look_in(&self.sql.renew, &shared).await);
        let both = missing(&told, &[Mode::Exclusive, Mode::Shared]);
        told.extend(self.look_in(&self.sql.part_renew, &both).await);
        let renewals: Vec<_> = leases
            .iter()
            .map(|lease| {
                told.remove(&lease.attempt())
                    .unwrap_or(Renewal::Lost(dlock_core::LossReason::Gone))
            })
            .collect();
        bell::ring_lost(leases, &renewals);
        renewals
    }

    async fn look_in(
        &self,
        table: &RenewStatements,
        leases: &[Arc<Lease>],
    ) -> Vec<(AttemptId, Renewal)> {
        let all: Vec<&Lease> = leases.iter().map(Arc::as_ref).collect();
        let found = table.run(&self.shared, &all, self.limit).await;
        leases
            .iter()
            .map(|lease| (lease.attempt(), renewal(&found, lease)))
            .collect()
    }
}
