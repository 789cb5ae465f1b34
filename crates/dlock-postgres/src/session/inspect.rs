//! Rows -> what people and tools get to know.

use dlock_core::{LockInfo, Name};
use tokio_postgres::types::Type;

use super::{AttemptState, SessionLocks};
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::lease::{lock, locks};

impl SessionLocks {
    pub(super) async fn inspect(&self, name: &Name) -> Result<LockInfo, Trouble> {
        let text = name.as_str();
        let args: [Arg<'_>; 1] = [(&text, Type::TEXT)];
        let job = Job::Ask(&self.sql.inspect, &args);
        lock(
            name,
            &self.shared.call(job, self.shared.limit()).await?.rows,
        )
    }

    /// Whether a connection of another client waits for the key.
    pub(super) async fn others_wait(&self, name: &Name) -> Result<bool, Trouble> {
        let asking = |state: &AttemptState| match state {
            AttemptState::Asking(sign) => Some(*sign),
            AttemptState::Holding(_) => None,
        };
        let ours: Vec<i64> = self.attempts().values().filter_map(asking).collect();
        let name = name.as_str();
        let args: [Arg<'_>; 2] = [(&name, Type::TEXT), (&ours, Type::INT8_ARRAY)];
        let job = Job::Ask(&self.sql.others, &args);
        self.shared.call(job, self.shared.limit()).await?.first()
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let args: [Arg<'_>; 1] = [(&prefix, Type::TEXT)];
        let job = Job::Ask(&self.sql.list, &args);
        locks(&self.shared.call(job, self.shared.limit()).await?.rows)
    }
}
