//! Who holds and who waits, and breaking a lock by force.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use dlock_core::{HolderInfo, LockInfo, Mode, Name, WaiterInfo};
use futures::future::join_all;

use crate::connect::Watching;
use crate::error::Trouble;
use crate::fence;
use crate::queue::{self, QueueEntry};
use crate::store::Store;
use crate::txn::{About, Query, Step, Txn, When};

impl Store {
    pub(crate) async fn queue_of(&self, name: &Name) -> Result<Vec<QueueEntry>, Trouble> {
        let range = self.keys.lock(name).all();
        let rows = self.cluster.everything_in(&range).await?;
        Ok(queue::read_all(&self.keys, &rows))
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockInfo, Trouble> {
        let queue = self.queue_of(name).await?;
        let mut info = describe(name, &queue);
        // How long each holder's lease would last: one more trip, for people only.
        let (holders, _) = queue::split(&queue);
        let leases: HashMap<i64, ()> = holders.iter().map(|ticket| (ticket.lease, ())).collect();
        let asked = leases.into_keys().map(|lease| async move {
            let remaining = self.cluster.remaining(lease).await.ok().flatten();
            (lease, remaining)
        });
        let remaining: HashMap<i64, Option<Duration>> = join_all(asked).await.into_iter().collect();
        for (holder, ticket) in info.holders.iter_mut().zip(holders) {
            holder.expires_in = remaining.get(&ticket.lease).copied().flatten();
        }
        Ok(info)
    }

    /// How many hold a lock or wait for it: etcd counts, and tells the number alone.
    pub(crate) async fn queue_length(&self, name: &Name) -> Result<u64, Trouble> {
        let all = Query::count(self.keys.lock(name).all());
        let told = self
            .cluster
            .txn(&Txn::of(vec![Step::Get(About::Entries, all)]))
            .await?;
        Ok(u64::try_from(told.value.total(About::Entries)).unwrap_or_default())
    }

    /// How many are before the first of this client who waits for a lock; `None` when nobody of it waits.
    pub(crate) async fn queue_position(&self, name: &Name) -> Result<Option<u64>, Trouble> {
        let Some(created) = self.lines.first(name) else {
            return Ok(None);
        };
        let range = self.keys.lock(name).all();
        self.cluster.count_before(&range, created).await.map(Some)
    }

    /// Resolves when the exclusive holder is another than `seen`, or may be.
    pub(crate) async fn changed(&self, name: &Name, seen: Option<&str>) -> Result<(), Trouble> {
        let range = self.keys.lock(name).all();
        // Who comes behind a holder changes nothing: then only ends count.
        let watching = Watching {
            range: &range,
            puts: seen.is_none(),
            own: None,
            // What happens is told, if perhaps 100 ms late.
            waits: None,
        };
        let mut watch = self.cluster.watch(watching).await?;
        watch.knows(watch.since);
        // After the watch, so that no change falls between the two.
        let queue = self.queue_of(name).await?;
        let holder = queue.first().filter(|first| first.mode == Mode::Exclusive);
        if holder.map(|holder| holder.attempt.as_str()) == seen {
            watch.event().await?;
        }
        Ok(())
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Trouble> {
        let range = self.keys.starting_with(prefix);
        let rows = self.cluster.everything_in(&range).await?;
        let mut locks: BTreeMap<Name, Vec<QueueEntry>> = BTreeMap::new();
        for ticket in queue::read_all(&self.keys, &rows) {
            locks.entry(ticket.name.clone()).or_default().push(ticket);
        }
        let infos = locks.iter().map(|(name, queue)| describe(name, queue));
        Ok(infos.filter(LockInfo::is_locked).collect())
    }

    /// Removes the holders. A holder that leaves meanwhile makes room for others, who are then the holders.
    pub(crate) async fn break_lock(&self, name: &Name) -> Result<bool, Trouble> {
        loop {
            let queue = self.queue_of(name).await?;
            let (holders, _) = queue::split(&queue);
            if holders.is_empty() {
                return Ok(false);
            }
            let broken = join_all(holders.iter().map(|ticket| self.take_away(ticket))).await;
            let mut deleted = false;
            for broken in broken {
                deleted |= broken?;
            }
            if deleted {
                return Ok(true);
            }
        }
    }

    /// Removes this very entry: its key may be another's by now.
    async fn take_away(&self, ticket: &QueueEntry) -> Result<bool, Trouble> {
        let txn = Txn {
            when: vec![When::CreatedAt(ticket.key.clone(), ticket.created)],
            then: vec![Step::Delete(ticket.key.clone())],
            ..Txn::default()
        };
        let told = self.cluster.txn(&txn).await?;
        // The answer to a first try was lost, so it may be that try that has deleted it.
        Ok(told.value.succeeded || told.doubt)
    }
}

fn describe(name: &Name, queue: &[QueueEntry]) -> LockInfo {
    let (holders, waiters) = queue::split(queue);
    let mut info = LockInfo::new(name.clone());
    let holder = |ticket: &&QueueEntry| {
        let mut known = HolderInfo::new(ticket.attempt.clone(), ticket.mode);
        known.label.clone_from(&ticket.label);
        known.token = fence::token(ticket.created);
        known
    };
    let waiter = |ticket: &&QueueEntry| {
        let mut known = WaiterInfo::new(ticket.attempt.clone(), ticket.mode);
        known.label.clone_from(&ticket.label);
        known
    };
    info.holders = holders.iter().map(holder).collect();
    info.waiters = waiters.iter().map(waiter).collect();
    info
}
