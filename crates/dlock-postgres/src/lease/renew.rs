//! Extends what is still ours, many holds in one statement.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{Error, ErrorKind, LossReason};
use futures::future::{Either, select};
use futures::{StreamExt, stream};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::LeaseLocks;
use crate::connect::{Arg, Job, Told, Turns};
use crate::error::Trouble;

/// The most holds of one statement: their rows are locked together.
const BATCH: usize = 1000;

/// How many of those that were left out are asked for at once.
const ALONE: usize = 8;

/// What became of the holds of one statement.
#[derive(Debug, Default)]
struct Extended {
    attempts: HashSet<Uuid>,
    /// Names whose rows somebody has locked: nothing is known about them.
    left_out: HashSet<String>,
}

impl LeaseLocks {
    pub(crate) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let mut answers = Vec::with_capacity(leases.len());
        for batch in leases.chunks(BATCH) {
            let extended = match self.renew_batch(batch, false).await {
                Ok(extended) => extended,
                Err(trouble) => {
                    let error = Error::from(trouble);
                    answers.extend(batch.iter().map(|_| Renewal::Failed(error.clone())));
                    continue;
                }
            };
            let mut each = Vec::with_capacity(batch.len());
            for lease in batch {
                each.push(self.settle_renewal(&extended, lease));
            }
            let each: Vec<Renewal> = stream::iter(each).buffered(ALONE).collect().await;
            answers.extend(each);
        }
        answers
    }

    /// What became of one hold of a batch. One that was left out is asked for alone: whoever has its row keeps nobody else from being renewed.
    async fn settle_renewal(&self, extended: &Extended, lease: &Arc<Lease>) -> Renewal {
        if !extended.left_out.contains(lease.name().as_str()) {
            return told(extended, lease);
        }
        match self.renew_batch(std::slice::from_ref(lease), true).await {
            Ok(extended) => told(&extended, lease),
            Err(trouble) => Renewal::Failed(trouble.into()),
        }
    }

    /// Which of them the server has extended. It writes a row for each, so a server that takes no writes extends nothing.
    async fn renew_batch(&self, batch: &[Arc<Lease>], wait: bool) -> Result<Extended, Trouble> {
        let names: Vec<&str> = batch.iter().map(|lease| lease.name().as_str()).collect();
        let attempts: Vec<Uuid> = batch
            .iter()
            .map(|lease| *lease.attempt().as_uuid())
            .collect();
        let args: [Arg<'_>; 3] = [
            (&names, Type::TEXT_ARRAY),
            (&attempts, Type::UUID_ARRAY),
            (&wait, Type::BOOL),
        ];
        let job = Job::Ask(&self.sql.renew, &args);
        let shortest = batch.iter().map(|lease| lease.renewal_limit()).min();
        let limit = shortest.unwrap_or(Duration::MAX);
        let told = match (wait, self.shared.takes_two_trips()) {
            // Neither in the place of renewals that need not wait for a row, nor behind calls that wait too. One try: another connection does not help
            // with a row that somebody keeps, and what the holds beside it were told must come to core in time.
            (true, _) => {
                self.shared
                    .call_by(job, limit / 2, Turns::StuckRenewals)
                    .await?
            }
            (false, true) => self.hedged(job, limit).await?,
            // A half each, so that a second connection gets its chance when the first is silent.
            (false, false) => match self.shared.call_by(job, limit / 2, Turns::Renewals).await {
                Err(trouble) if trouble.kind() == ErrorKind::TimedOut => {
                    self.shared.call_by(job, limit / 2, Turns::Renewals).await?
                }
                told => told?,
            },
        };
        let mut extended = Extended::default();
        for row in &told.rows {
            match (row.try_get(0), row.try_get(1)) {
                (Ok(attempt), Ok(name)) => {
                    extended.attempts.extend::<Option<Uuid>>(attempt);
                    extended.left_out.extend::<Option<String>>(name);
                }
                _ => return Err(Trouble::unexpected_reply("no attempts to a renewal")),
            }
        }
        Ok(extended)
    }

    /// Two trips may not fit into a half of the time on a slow network, so the first try has all of it; but a connection that is silent must
    /// not cost it, so a second one begins beside it in the middle. Both may be carried out: a renewal can come twice.
    async fn hedged(&self, job: Job<'_>, limit: Duration) -> Result<Told, Trouble> {
        let first = pin!(self.shared.call_by(job, limit, Turns::Renewals));
        let second = pin!(async {
            tokio::time::sleep(limit / 2).await;
            self.shared
                .call_by(job, limit / 2, Turns::StuckRenewals)
                .await
        });
        match select(first, second).await {
            Either::Left((told, _)) => told,
            Either::Right((Ok(told), _)) => Ok(told),
            Either::Right((Err(_), first)) => first.await,
        }
    }
}

fn told(extended: &Extended, lease: &Lease) -> Renewal {
    if extended.attempts.contains(lease.attempt().as_uuid()) {
        Renewal::Extended
    } else {
        Renewal::Lost(LossReason::Gone)
    }
}
