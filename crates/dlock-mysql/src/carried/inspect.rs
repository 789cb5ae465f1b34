//! Who holds what.

use dlock_core::{LockInfo, Name};

use super::ConnectionLocks;
use crate::connect::Job;
use crate::error::Trouble;
use crate::inspect::{lock, locks};

impl ConnectionLocks {
    pub(super) async fn inspect(&self, name: &Name) -> Result<LockInfo, Trouble> {
        let args = [name.as_str().into()];
        let job = Job::Exec(&self.kind.marks.inspect, &args);
        let told = self.shared.call(job, self.config.answer_timeout).await?;
        Ok(lock(name, &told.answer.rows))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let args = [prefix.into(), (prefix.len() as u64).into(), prefix.into()];
        let job = Job::Exec(&self.kind.marks.list, &args);
        let told = self.shared.call(job, self.config.answer_timeout).await?;
        Ok(locks(&told.answer.rows))
    }
}
