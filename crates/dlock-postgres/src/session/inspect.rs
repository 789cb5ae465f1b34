//! Rows -> what people and tools get to know.

use dlock_core::{LockInfo, Name};
use tokio_postgres::types::Type;

use super::{SessionLocks, State};
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::lease::{lock, locks};

impl SessionLocks {
    pub(super) async fn look(&self, name: &Name) -> Result<LockInfo, Trouble> {
        let text = name.as_str();
        let args: [Arg<'_>; 1] = [(&text, Type::TEXT)];
        let job = Job::Ask(&self.sql.inspect, &args);
        lock(name, &self.link.call(job, self.link.limit()).await?.rows)
    }

    /// Whether a connection of another client waits for the key.
    pub(super) async fn is_waited_for(&self, name: &Name) -> Result<bool, Trouble> {
        let asking = |state: &State| match state {
            State::Asking(sign) => Some(*sign),
            State::Holding(_) => None,
        };
        let ours: Vec<i64> = self.attempts().values().filter_map(asking).collect();
        let name = name.as_str();
        let args: [Arg<'_>; 2] = [(&name, Type::TEXT), (&ours, Type::INT8_ARRAY)];
        let job = Job::Ask(&self.sql.others, &args);
        self.link.call(job, self.link.limit()).await?.first()
    }

    pub(super) async fn look_at_all(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let args: [Arg<'_>; 1] = [(&prefix, Type::TEXT)];
        let job = Job::Ask(&self.sql.list, &args);
        locks(&self.link.call(job, self.link.limit()).await?.rows)
    }
}
