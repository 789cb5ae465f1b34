//! Frees what is still ours, what is not, and what nobody uses any more.

use std::time::Duration;

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, Mode, Name, Released, Result};

use super::LeaseLocks;
use crate::bell;
use crate::connect::{Answer, Arg, Job};
use crate::error::Trouble;
use crate::key::micros;

/// One part of a sweep.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

impl LeaseLocks {
    pub(super) async fn release(&self, lease: &Lease) -> Result<Released, Trouble> {
        let released = self.release_row(lease).await;
        // Behind the commit, or the one that is woken would find the lock held. Whatever became of it: the next one asks the row.
        bell::ring(lease);
        released
    }

    async fn release_row(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let [front, bell] = self.bells.signs_of_waiters(lease);
        let args: [Arg<'_>; 4] = [
            front.as_str().into(),
            bell.as_str().into(),
            lease.name().as_str().into(),
            attempt.as_uuid().as_bytes().as_slice().into(),
        ];
        let [_, _, hold @ ..] = &args;
        let (whole, part) = (&self.sql.release, &self.sql.part_release);
        // The caller may not know whether a downgrade took effect, so the attempt is looked for wherever it can be. A downgrade under way moves
        // it from the first table to the second, hence the order, which ends with the second.
        let (whole, part) = ((whole, &args[..]), (part, &hold[..]));
        let places = match lease.mode() {
            Mode::Exclusive => vec![whole, part],
            Mode::Shared => vec![part, whole, part],
            _ => vec![part],
        };
        let mut in_doubt = false;
        for (release, args) in places {
            let job = Job::Exec(release, args);
            let told = self.shared.call(job, self.limit).await.map_err(|trouble| {
                if in_doubt {
                    trouble.in_doubt()
                } else {
                    trouble
                }
            })?;
            if told.answer.affected > 0 {
                if told.answer.id > 0 {
                    self.bells.note_others(lease.name());
                }
                return Ok(Released::Freed);
            }
            in_doubt |= told.again;
        }
        if in_doubt {
            // A first try, whose answer was lost, may have freed it.
            return Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke before the answer came",
            ));
        }
        Ok(Released::AlreadyLost)
    }

    /// Turns an exclusive hold into a shared one.
    pub(super) async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let attempt = lease.attempt();
        let args: [Arg<'_>; 2] = [
            lease.name().as_str().into(),
            attempt.as_uuid().as_bytes().as_slice().into(),
        ];
        let bind = "SET @dlock_name = ?, @dlock_attempt = ?";
        let job = Job::Batch(bind, &args, &self.sql.downgrade);
        let told = self.shared.call(job, self.limit).await?;
        if told.answer.first_number() == Some(1) {
            // Those who wait may share the lock now.
            bell::ring(lease);
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Lost,
            "the hold is gone, so there is nothing to downgrade",
        ))
    }

    /// Ends every hold of a name; `false` when there was none.
    pub(super) async fn break_lock(&self, name: &Name) -> Result<bool, Trouble> {
        let args = [name.as_str().into()];
        let mut ended = 0;
        for sql in [&self.sql.break_lock, &self.sql.part_break_lock] {
            let told = self.shared.call(Job::Exec(sql, &args), self.limit).await?;
            ended += told.answer.affected + u64::from(told.again);
        }
        if ended > 0 {
            self.bells
                .break_bell(&self.shared, name, self.limit / 4)
                .await;
        }
        Ok(ended > 0)
    }

    pub(crate) async fn sweep(&self, unused: Duration) -> Result<u64, Trouble> {
        let age = Arg::from(micros(unused));
        for sql in [&self.sql.sweep_dead, &self.sql.forget] {
            let args = [age.clone()];
            let args = if sql == &self.sql.forget {
                &[]
            } else {
                &args[..]
            };
            while self.sweep_part(Job::Exec(sql, args)).await?.affected > 0 {}
        }
        let (mut swept, mut after) = (0, Vec::new());
        loop {
            let args = [age.clone(), after.as_slice().into()];
            let bind = "SET @dlock_age = ?, @dlock_after = ?";
            let answer = self
                .sweep_part(Job::Batch(bind, &args, &self.sql.sweep))
                .await?;
            swept += answer.first_number().unwrap_or(0);
            match answer.rows.first().and_then(|row| row.bytes(1)) {
                Some(last) => after = last.to_vec(),
                None => return Ok(swept),
            }
        }
    }

    async fn sweep_part(&self, job: Job<'_>) -> Result<Answer, Trouble> {
        Ok(self.shared.call_within(job, SWEEP_LIMIT).await?.answer)
    }
}
