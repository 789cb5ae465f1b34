//! Frees what is still ours, what is not, and what nobody uses any more.

use std::time::Duration;

use dlock_core::backend::Lease;
use dlock_core::{ErrorKind, Name, Released};

use super::UniqueLocks;
use crate::bell;
use crate::connect::Job;
use crate::error::Trouble;
use crate::key::micros;

impl UniqueLocks {
    pub(super) async fn release(&self, lease: &Lease) -> Result<Released, Trouble> {
        let released = self.release_row(lease).await;
        // Behind the commit, or the one that is woken would find the lock held. Whatever became of it: the next one asks the row.
        bell::ring(lease);
        released
    }

    async fn release_row(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let id = lease.token().map_or(0, u64::from);
        let [front, bell] = self.bells.signs_of_waiters(lease);
        let who_waits = match self.bells.are_on() {
            true => format!("; SELECT COALESCE(IS_USED_LOCK('{front}'), IS_USED_LOCK('{bell}'))"),
            false => String::new(),
        };
        // Numbers and digits alone, so that the release and the question are one request.
        let release = self.sql.release.replace("{id}", &id.to_string());
        let release = release.replace("{attempt}", &hex(attempt.as_uuid().as_bytes()));
        let release = release.replace("{name}", &hex(lease.name().as_str().as_bytes()));
        let text = format!("{release}{who_waits}");
        let told = self.shared.call(Job::Text(&text), self.limit).await?;
        if told.answer.first_number().is_some() {
            self.bells.note_others(lease.name());
        }
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

    /// Ends the hold of a name; `false` when there was none.
    pub(super) async fn break_lock(&self, name: &Name) -> Result<bool, Trouble> {
        let told = self
            .exec(&self.sql.break_lock, &[name.as_str().into()])
            .await?;
        let ended = told.answer.affected > 0 || told.again;
        if ended {
            self.bells
                .break_bell(&self.shared, name, self.limit / 4)
                .await;
        }
        Ok(ended)
    }

    pub(crate) async fn sweep(&self, unused: Duration) -> Result<u64, Trouble> {
        let told = self.exec(&self.sql.sweep, &[micros(unused).into()]).await?;
        Ok(told.answer.affected)
    }
}

/// Bytes as they stand in a statement.
fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("x'{digits}'")
}
