//! Extends what is still ours, many holds in one statement.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{Error, LossReason};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::PostgresBackend;
use crate::connect::{Arg, Job};
use crate::error::Trouble;

/// The most holds of one statement: their rows are locked together.
const BATCH: usize = 1000;

impl PostgresBackend {
    pub(crate) async fn extend(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        let mut answers = Vec::with_capacity(leases.len());
        for batch in leases.chunks(BATCH) {
            match self.extend_batch(batch).await {
                Ok(extended) => answers.extend(batch.iter().map(|lease| {
                    if extended.contains(lease.attempt().as_uuid()) {
                        Renewal::Extended
                    } else {
                        Renewal::Lost(LossReason::Gone)
                    }
                })),
                Err(trouble) => {
                    let error = Error::from(trouble);
                    answers.extend(batch.iter().map(|_| Renewal::Failed(error.clone())));
                }
            }
        }
        answers
    }

    /// Which of them the server has extended. It writes a row for each, so a server that takes no writes extends nothing.
    async fn extend_batch(&self, batch: &[Arc<Lease>]) -> Result<HashSet<Uuid>, Trouble> {
        let names: Vec<&str> = batch.iter().map(|lease| lease.name().as_str()).collect();
        let attempts: Vec<Uuid> = batch
            .iter()
            .map(|lease| *lease.attempt().as_uuid())
            .collect();
        let args: [Arg<'_>; 2] = [(&names, Type::TEXT_ARRAY), (&attempts, Type::UUID_ARRAY)];
        let job = Job::Ask(&self.sql.renew, &args);
        // A half, so that a second connection gets its chance when the first is silent.
        let shortest = batch.iter().map(|lease| lease.renewal_limit()).min();
        let limit = shortest.unwrap_or(Duration::MAX) / 2;
        let told = match self.link.call(job, limit).await {
            Err(trouble) if trouble.timed_out => self.link.call(job, limit).await?,
            told => told?,
        };
        let extended = told.rows.iter().map(|row| row.try_get(0));
        extended
            .collect::<Result<_, _>>()
            .map_err(|_| Trouble::strange("no attempts to a renewal"))
    }
}
