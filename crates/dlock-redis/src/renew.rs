//! Extend if still the owner: one script call for many leases; in a cluster, and after an error, one for each, all at once.

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
            match self.extend_together(leases).await {
                Ok(renewals) => return renewals,
                // The server's word may be about one of them alone, which must not cost the others.
                Err(trouble) if leases.len() > 1 && trouble.is_of_the_server() => {}
                Err(trouble) => return failed(leases, &trouble),
            }
        }
        let each = leases.iter().map(|lease| async move {
            let alone = std::slice::from_ref(lease);
            let renewal = self.extend_together(alone).await;
            renewal.unwrap_or_else(|trouble| failed(alone, &trouble))
        });
        join_all(each).await.into_iter().flatten().collect()
    }

    async fn extend_together(&self, leases: &[Arc<Lease>]) -> Result<Vec<Renewal>, Trouble> {
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
        let answers = match self.link.call(&call, self.config.answer_timeout).await?.0 {
            Answer::List(answers) if answers.len() == leases.len() => answers,
            _ => return Err(strange("to a renewal in an unknown form")),
        };
        let renewals = answers.into_iter().map(|answer| match answer {
            Answer::Number(1) => Renewal::Extended,
            Answer::Number(2) => Renewal::Lost(LossReason::Expired),
            _ => Renewal::Lost(LossReason::Gone),
        });
        Ok(renewals.collect())
    }
}

fn failed(leases: &[Arc<Lease>], trouble: &Trouble) -> Vec<Renewal> {
    leases
        .iter()
        .map(|_| Renewal::Failed(trouble.clone().into()))
        .collect()
}
