//! Extends what is still ours: one statement for all exclusive holds, one for all shared holds and permits.

use std::sync::Arc;

use dlock_core::{Lease, Mode, Renewal};

use super::LeaseLocks;
use crate::renew::renewal;

impl LeaseLocks {
    pub(super) async fn extend(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let (whole, parts): (Vec<&Lease>, Vec<&Lease>) = leases
            .iter()
            .map(Arc::as_ref)
            .partition(|lease| lease.mode() == Mode::Exclusive);
        let (whole, parts) = futures::join!(
            self.sql.extend.run(&self.link, &whole, self.limit),
            self.sql.part_extend.run(&self.link, &parts, self.limit)
        );
        leases
            .iter()
            .map(|lease| match lease.mode() {
                Mode::Exclusive => renewal(&whole, lease),
                _ => renewal(&parts, lease),
            })
            .collect()
    }
}
