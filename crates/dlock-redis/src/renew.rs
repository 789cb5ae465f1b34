//! Extend if still the owner: one script call for many leases; in a cluster, and after an error, one for each, all at once.

use std::sync::Arc;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{ErrorKind, LossReason, Mode};
use futures::future::join_all;

use crate::acquire::unexpected_reply;
use crate::config::Style;
use crate::connect::{RedisReply, ScriptCall, millis};
use crate::error::Trouble;
use crate::key::HOLDERS;
use crate::script_args::Attempt32;
use crate::store::Store;

impl Store {
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        if !self.config.is_cluster() {
            match self.renew_together(leases).await {
                Ok(renewals) => return renewals,
                // The server's word may be about one of them alone, which must not cost the others.
                Err(trouble) if leases.len() > 1 && trouble.is_of_the_server() => {}
                Err(trouble) => return failed(leases, &trouble),
            }
        }
        let each = leases.iter().map(|lease| async move {
            let alone = std::slice::from_ref(lease);
            let renewal = self.renew_together(alone).await;
            renewal.unwrap_or_else(|trouble| failed(alone, &trouble))
        });
        join_all(each).await.into_iter().flatten().collect()
    }

    async fn renew_together(&self, leases: &[Arc<Lease>]) -> Result<Vec<Renewal>, Trouble> {
        let plain = self.config.style == Style::Plain;
        let mut keys = Vec::with_capacity(leases.len());
        for lease in leases {
            let key = self.keys.lock(lease.name());
            let shared = !plain && lease.mode() != Mode::Exclusive;
            let sides = HOLDERS
                .map(|end| [key.as_str(), end].concat())
                .into_iter()
                .filter(|_| shared)
                .collect::<Vec<_>>();
            keys.push(key);
            keys.extend(sides);
        }
        let mut call = ScriptCall::new(&self.scripts.renew, keys.iter().map(String::as_str))
            .arg(self.script_args.fence());
        for lease in leases {
            let attempt = Attempt32::new(lease.attempt());
            let sort: &[u8] = match lease.mode() {
                _ if plain => b"",
                Mode::Exclusive => b"X",
                _ => b"S",
            };
            call = call
                .arg([sort, attempt.as_ref()].concat())
                .arg(millis(lease.duration()).to_string());
        }
        // Half of the time that a renewal has, so that there is time for a second connection when the first one is open at our side only.
        let shortest = leases.iter().map(|lease| lease.renewal_limit()).min();
        let half = shortest.unwrap_or(self.config.answer_timeout) / 2;
        let limit = self.config.answer_timeout.min(half);
        let answers = match self.link.call_urgently(&call, limit).await? {
            RedisReply::List(answers) if answers.len() == leases.len() => answers,
            _ => return Err(unexpected_reply("to a renewal in an unknown form")),
        };
        let renewals = answers.into_iter().map(|answer| match answer {
            RedisReply::Number(1) => Renewal::Extended,
            RedisReply::Number(2) => Renewal::Lost(LossReason::Expired),
            // The lease of this hold was asked for as an exclusive one, and the store has it as shared: a downgrade came in between.
            RedisReply::Number(3) => Renewal::Failed(
                Trouble::new(ErrorKind::Store, "the hold was downgraded meanwhile").into(),
            ),
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
