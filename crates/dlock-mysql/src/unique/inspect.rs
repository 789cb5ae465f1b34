//! Who holds what.

use dlock_core::{LockInfo, Name};

use super::UniqueLocks;
use crate::error::Trouble;
use crate::inspect::{lock, locks};

impl UniqueLocks {
    pub(super) async fn inspect(&self, name: &Name) -> Result<LockInfo, Trouble> {
        let told = self
            .exec(&self.sql.inspect, &[name.as_str().into()])
            .await?;
        Ok(lock(name, &told.answer.rows))
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let args = [prefix.into(), (prefix.len() as u64).into(), prefix.into()];
        let told = self.exec(&self.sql.list, &args).await?;
        Ok(locks(&told.answer.rows))
    }
}
