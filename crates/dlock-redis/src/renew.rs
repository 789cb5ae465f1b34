//! Extend if still the owner: one script call for many leases; in a cluster one for each, all at once.

use std::sync::Arc;

use dlock_core::{Lease, LossReason, Renewal};
use futures::future::join_all;

use crate::acquire::strange;
use crate::backend::Store;
use crate::connect::{Answer, Call, millis};
use crate::error::Trouble;
use crate::how::Attempt32;

impl Store {
    pub(crate) async fn extend(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if !self.config.is_cluster() {
            return self.extend_together(leases).await;
        }
        let each = leases
            .iter()
            .map(|lease| self.extend_together(std::slice::from_ref(lease)));
        join_all(each).await.into_iter().flatten().collect()
    }

    async fn extend_together(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let keys: Vec<String> = leases
            .iter()
            .map(|lease| self.keys.lock(lease.name()))
            .collect();
        let mut call =
            Call::new(&self.scripts.renew, keys.iter().map(String::as_str)).arg(self.how.fence());
        for lease in leases {
            call = call
                .arg(Attempt32::new(lease.attempt()))
                .arg(millis(lease.duration()).to_string());
        }
        let answers = match self.link.call(&call, self.config.answer_timeout).await {
            Ok((Answer::List(answers), _)) if answers.len() == leases.len() => answers,
            Ok(_) => return failed(leases, &strange("to a renewal in an unknown form")),
            Err(trouble) => return failed(leases, &trouble),
        };
        answers
            .into_iter()
            .map(|answer| match answer {
                Answer::Number(1) => Renewal::Extended,
                Answer::Number(2) => Renewal::Lost(LossReason::Expired),
                _ => Renewal::Lost(LossReason::Gone),
            })
            .collect()
    }
}

fn failed(leases: &[Arc<Lease>], trouble: &Trouble) -> Vec<Renewal> {
    leases
        .iter()
        .map(|_| Renewal::Failed(trouble.clone().into()))
        .collect()
}
