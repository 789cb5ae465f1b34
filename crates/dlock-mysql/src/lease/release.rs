//! Frees what is still ours, what is not, and what nobody uses any more.

use std::time::Duration;

use dlock_core::{ErrorKind, Lease, Mode, Name, Released};

use super::LeaseLocks;
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::key::micros;

/// A sweep looks at every row.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

impl LeaseLocks {
    pub(super) async fn free(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let args: [Arg<'_>; 2] = [
            lease.name().as_str().into(),
            attempt.as_uuid().as_bytes().as_slice().into(),
        ];
        let release = match lease.mode() {
            Mode::Exclusive => &self.sql.release,
            _ => &self.sql.part_release,
        };
        let told = self
            .link
            .call(Job::Exec(release, &args), self.limit)
            .await?;
        match (told.answer.affected, told.again) {
            (0, false) => Ok(Released::AlreadyLost),
            // A first try, whose answer was lost, may have freed it.
            (0, true) => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke before the answer came",
            )),
            _ => Ok(Released::Freed),
        }
    }

    /// Turns an exclusive hold into a shared one; `false` when it is gone.
    pub(super) async fn share(&self, lease: &Lease) -> Result<bool, Trouble> {
        let attempt = lease.attempt();
        let args: [Arg<'_>; 2] = [
            lease.name().as_str().into(),
            attempt.as_uuid().as_bytes().as_slice().into(),
        ];
        let bind = "SET @dlock_name = ?, @dlock_attempt = ?";
        let job = Job::Batch(bind, &args, &self.sql.downgrade);
        let told = self.link.call(job, self.limit).await?;
        Ok(told.answer.first_number() == Some(1))
    }

    /// Ends every hold of a name; `false` when there was none.
    pub(super) async fn free_by_force(&self, name: &Name) -> Result<bool, Trouble> {
        let args = [name.as_str().into()];
        let mut ended = 0;
        for sql in [&self.sql.end, &self.sql.part_end] {
            let told = self.link.call(Job::Exec(sql, &args), self.limit).await?;
            ended += told.answer.affected + u64::from(told.again);
        }
        Ok(ended > 0)
    }

    pub(crate) async fn sweep(&self, unused: Duration) -> Result<u64, Trouble> {
        let args = [micros(unused).into()];
        let job = Job::Batch("SET @dlock_age = ?", &args, &self.sql.sweep);
        let told = self.link.call_within(job, SWEEP_LIMIT).await?;
        Ok(told.answer.first_number().unwrap_or(0))
    }
}
