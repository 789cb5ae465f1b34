//! Who holds and who waits. Reads only: what the dead left is not shown, and swept by the next acquire.

use std::time::{Duration, UNIX_EPOCH};

use dlock_core::{FencingToken, HolderInfo, LockInfo, Name, Result, WaiterInfo};

use crate::connect::Store;
use crate::key::Key;
use crate::record::LockRecord;

impl Store {
    pub(crate) fn inspect(&self, name: &Name) -> Result<LockInfo> {
        match self.glance(&Key::of(name).file)? {
            Some(record) if record.name == *name => self.info(record),
            _ => Ok(LockInfo::new(name.clone())),
        }
    }

    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut found = Vec::new();
        for file in self.files("locks")? {
            let Some(record) = self.glance(&file)? else {
                continue;
            };
            if record.name.starts_with(prefix) {
                let info = self.info(record)?;
                if info.is_locked() {
                    found.push(info);
                }
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn info(&self, mut record: LockRecord) -> Result<LockInfo> {
        record.sweep_all(|id, origin| self.is_alive(id, origin))?;
        let mut info = LockInfo::new(record.name);
        for holder in record.holders {
            let mut known = HolderInfo::new(holder.attempt.to_string(), holder.mode);
            known.label = holder.label;
            known.token = Some(FencingToken::new(holder.token));
            known.since = UNIX_EPOCH.checked_add(Duration::from_micros(holder.since));
            info.holders.push(known);
        }
        for waiter in record.waiters {
            let mut known = WaiterInfo::new(waiter.attempt.to_string(), waiter.mode);
            known.label = waiter.label;
            info.waiters.push(known);
        }
        Ok(info)
    }
}
