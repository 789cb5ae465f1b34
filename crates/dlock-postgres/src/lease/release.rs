//! Frees what is still ours, what is not, and what nobody uses any more.

use std::time::Duration;

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, Name, Released, Result};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::LeaseLocks;
use super::acquire::{Stray, TOMBSTONE_TTL};
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::key::micros;

/// One part of a sweep, of at most so many rows.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);
const SWEEP_PART: u64 = 500;

impl LeaseLocks {
    pub(crate) async fn release(&self, lease: &Lease) -> Result<Released, Trouble> {
        let memory = match lease.native::<Stray>() {
            Some(Stray) => TOMBSTONE_TTL,
            None => Duration::ZERO,
        };
        let attempt = *lease.attempt().as_uuid();
        let limit = self.shared.limit();
        let (held, again) = self
            .end_attempt(lease.name().as_str(), attempt, memory, limit)
            .await?;
        match (held, again) {
            (true, _) => Ok(Released::Freed),
            (false, false) => Ok(Released::AlreadyLost),
            // A first try, whose answer was lost, may have freed it.
            (false, true) => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke before the answer came",
            )),
        }
    }

    /// Ends what an attempt has: whether it held the lock, and whether it was asked for twice.
    pub(crate) async fn end_attempt(
        &self,
        name: &str,
        attempt: Uuid,
        memory: Duration,
        limit: Duration,
    ) -> Result<(bool, bool), Trouble> {
        let memory = micros(memory);
        let args: [Arg<'_>; 3] = [
            (&name, Type::TEXT),
            (&attempt, Type::UUID),
            (&memory, Type::INT8),
        ];
        let job = Job::Ask(&self.sql.release, &args);
        let told = self.shared.call(job, limit).await?;
        let held: i32 = told.first()?;
        Ok((held == 1, told.again))
    }

    /// Turns an exclusive hold into a shared one.
    pub(crate) async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let name = lease.name().as_str();
        let attempt = *lease.attempt().as_uuid();
        let args: [Arg<'_>; 2] = [(&name, Type::TEXT), (&attempt, Type::UUID)];
        let job = Job::Ask(&self.sql.downgrade, &args);
        let told = self.shared.call(job, self.shared.limit()).await?;
        if told.first()? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Lost,
            "the hold is gone, so there is nothing to downgrade",
        ))
    }

    /// Ends every hold of a name; `false` when there was none.
    pub(crate) async fn break_lock(&self, name: &Name) -> Result<bool, Trouble> {
        let name = name.as_str();
        let args: [Arg<'_>; 1] = [(&name, Type::TEXT)];
        let job = Job::Ask(&self.sql.break_lock, &args);
        let told = self.shared.call(job, self.shared.limit()).await?;
        let found: bool = told.first()?;
        // A first try, whose answer was lost, may have found it.
        Ok(found || told.again)
    }

    pub(crate) async fn sweep_all(&self, unused: Duration) -> Result<u64, Trouble> {
        let age = micros(unused);
        let args: [Arg<'_>; 1] = [(&age, Type::INT8)];
        let mut all = 0;
        loop {
            let job = Job::Ask(&self.sql.sweep, &args);
            let told = self.shared.call_within(job, SWEEP_LIMIT).await?;
            let swept: i64 = told.first()?;
            let swept = u64::try_from(swept).unwrap_or(0);
            all += swept;
            if swept < SWEEP_PART {
                return Ok(all);
            }
        }
    }
}
