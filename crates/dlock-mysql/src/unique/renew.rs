//! Extends what is still ours.

use std::sync::Arc;

use dlock_core::backend::{Lease, Renewal};

use super::UniqueLocks;
use crate::bell;
use crate::renew::renewal;

impl UniqueLocks {
    pub(super) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let all: Vec<&Lease> = leases.iter().map(Arc::as_ref).collect();
        let found = self.sql.renew.run(&self.shared, &all, self.limit).await;
        let renewals: Vec<_> = leases.iter().map(|lease| renewal(&found, lease)).collect();
        bell::ring_lost(leases, &renewals);
        renewals
    }
}
