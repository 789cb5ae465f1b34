//! Rows -> what people and tools get to know.

use std::time::{Duration, SystemTime};

use dlock_core::{FencingToken, HolderInfo, LockInfo, Mode, Name, WaiterInfo};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::LeaseLocks;
use crate::connect::{Arg, Job, Row};
use crate::error::Trouble;
use crate::fence;

impl LeaseLocks {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockInfo, Trouble> {
        lock(name, &self.ask_about(name.as_str()).await?)
    }

    pub(crate) async fn ask_about(&self, name: &str) -> Result<Vec<Row>, Trouble> {
        let args: [Arg<'_>; 1] = [(&name, Type::TEXT)];
        let job = Job::Ask(&self.sql.inspect, &args);
        Ok(self.shared.call(job, self.shared.limit()).await?.rows)
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let args: [Arg<'_>; 1] = [(&prefix, Type::TEXT)];
        let job = Job::Ask(&self.sql.list, &args);
        locks(&self.shared.call(job, self.shared.limit()).await?.rows)
    }
}

/// The rows of one lock.
pub(crate) fn lock(name: &Name, rows: &[Row]) -> Result<LockInfo, Trouble> {
    let mut info = LockInfo::new(name.clone());
    for row in rows {
        add(&mut info, row)?;
    }
    Ok(info)
}

/// The rows of many, sorted by name.
pub(crate) fn locks(rows: &[Row]) -> Result<Vec<LockInfo>, Trouble> {
    let mut found: Vec<LockInfo> = Vec::new();
    for row in rows {
        let Ok(name) = Name::new(get::<String>(row, 0)?) else {
            continue;
        };
        if found.last().is_none_or(|info| info.name != name) {
            found.push(LockInfo::new(name));
        }
        if let Some(info) = found.last_mut() {
            add(info, row)?;
        }
    }
    found.retain(LockInfo::is_locked);
    Ok(found)
}

/// A row of `look.sql`.
fn add(info: &mut LockInfo, row: &Row) -> Result<(), Trouble> {
    let owner = get::<Uuid>(row, 2)?.simple().to_string();
    let mode = match get::<i32>(row, 3)? {
        kind if kind < 0 => Mode::Exclusive,
        0 => Mode::Shared,
        limit => Mode::Permit {
            limit: limit.unsigned_abs(),
        },
    };
    let label: String = get(row, 7)?;
    if get(row, 1)? {
        let mut waiter = WaiterInfo::new(owner, mode);
        waiter.label = label;
        info.waiters.push(waiter);
        return Ok(());
    }
    let number =
        |column| get::<Option<i64>>(row, column).map(|n| n.and_then(|n| n.try_into().ok()));
    let mut holder = HolderInfo::new(owner, mode);
    holder.label = label;
    let taken: Option<i64> = get(row, 4)?;
    holder.token = taken.map(fence::token).transpose()?.map(FencingToken::new);
    holder.expires_in = number(5)?.map(Duration::from_micros);
    holder.since = number(6)?
        .and_then(|since| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(since)));
    info.holders.push(holder);
    Ok(())
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, Trouble> {
    row.try_get(column)
        .map_err(|_| Trouble::unexpected_reply("something unknown about a lock"))
}
