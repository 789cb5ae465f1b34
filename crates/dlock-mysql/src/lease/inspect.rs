//! Who holds what.

use dlock_core::{LockInfo, Name};

use super::LeaseLocks;
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::inspect::{lock, locks};

impl LeaseLocks {
    pub(super) async fn inspect(&self, name: &Name) -> Result<LockInfo, Trouble> {
        let args: [Arg<'_>; 2] = [name.as_str().into(), name.as_str().into()];
        let told = self
            .shared
            .call(Job::Exec(&self.sql.inspect, &args), self.limit)
            .await?;
        Ok(lock(name, &told.answer.rows))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let length = prefix.len() as u64;
        let args: [Arg<'_>; 6] = [
            prefix.into(),
            length.into(),
            prefix.into(),
            prefix.into(),
            length.into(),
            prefix.into(),
        ];
        let told = self
            .shared
            .call(Job::Exec(&self.sql.list, &args), self.limit)
            .await?;
        Ok(locks(&told.answer.rows))
    }
}
