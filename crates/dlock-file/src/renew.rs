//! Core never asks: holds last as long as their process. They are looked up all the same.

use std::sync::Arc;

use dlock_core::LossReason;
use dlock_core::backend::{Lease, Renewal};

use crate::connect::{Store, blocking};

pub(crate) async fn renew(store: &Arc<Store>, leases: &[Arc<Lease>]) -> Vec<Renewal> {
    let mut answers = Vec::with_capacity(leases.len());
    for lease in leases {
        let (name, owner) = (lease.name().clone(), lease.attempt().to_string());
        let found = blocking(store, move |store| store.inspect(&name)).await;
        answers.push(match found {
            Ok(info) if info.holders.iter().any(|holder| holder.owner == owner) => {
                Renewal::Extended
            }
            Ok(_) => Renewal::Lost(LossReason::Gone),
            Err(error) => Renewal::Failed(error),
        });
    }
    answers
}
