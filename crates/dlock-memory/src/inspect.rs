//! Who holds and who waits, for those who ask.

use std::ops::Bound;

use dlock_core::{FencingToken, HolderInfo, LockInfo, Moment, Name, Result, WaiterInfo};

use crate::client::Client;
use crate::store::{LockTable, Store};

impl Client {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockInfo> {
        self.call(|store| store.inspect(name)).await
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.call(|store| store.list(prefix)).await
    }
}

impl Store {
    pub(crate) fn inspect(&self, name: &Name) -> LockInfo {
        let now = self.clock.now();
        let mut table = self.table();
        table.sweep(name, now);
        table.info(name, now)
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<LockInfo> {
        let now = self.clock.now();
        let mut table = self.table();
        let names: Vec<Name> = table
            .locks
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .map(|(name, _)| name)
            .take_while(|name| name.starts_with(prefix))
            .cloned()
            .collect();
        for name in &names {
            table.sweep(name, now);
        }
        names
            .iter()
            .map(|name| table.info(name, now))
            .filter(LockInfo::is_locked)
            .collect()
    }
}

impl LockTable {
    pub(crate) fn info(&self, name: &Name, now: Moment) -> LockInfo {
        let mut info = LockInfo::new(name.clone());
        let Some(lock) = self.locks.get(name) else {
            return info;
        };
        info.holders = lock
            .holders
            .iter()
            .map(|holder| {
                let mut known = HolderInfo::new(holder.attempt.to_string(), holder.mode);
                known.label = holder.label.to_string();
                known.token = Some(FencingToken::new(holder.token));
                known.since = Some(holder.since);
                known.expires_in = Some(holder.expires.since(now));
                known
            })
            .collect();
        info.waiters = lock
            .waiters
            .iter()
            .map(|waiter| {
                let mut known = WaiterInfo::new(waiter.attempt.to_string(), waiter.mode);
                known.label = waiter.label.to_string();
                known
            })
            .collect();
        info
    }
}
