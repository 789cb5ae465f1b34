//! How a holder hears that others wait: a watch on the lock's keys, and a look at whose they are.

use dlock_core::backend::Lease;
use dlock_core::{Mode, Name};

use crate::acquire::Held;
use crate::connect::Watching;
use crate::error::Trouble;
use crate::queue;
use crate::store::Store;
use crate::txn::{About, Query, Row, Step, Txn};

/// As many of the newest entries as one look reads. Another client's is hardly ever behind more of our own.
const NEWEST: i64 = 1000;

impl Store {
    /// Resolves when somebody of another client waits for what is held.
    pub(crate) async fn wanted(&self, lease: &Lease) -> Result<(), Trouble> {
        let Some(held) = lease.native::<Held>() else {
            // Not ours: nobody can tell.
            return std::future::pending().await;
        };
        let range = self.keys.lock(lease.name()).all();
        let watching = Watching {
            range: &range,
            puts: true,
            own: None,
            // What happens is told, if perhaps 100 ms late.
            waits: None,
        };
        let mut watch = self.cluster.watch(watching).await?;
        watch.knows(watch.since);
        // After the watch, so that nobody comes between the two.
        while !self
            .is_waited_for(lease.name(), lease.mode(), held.lease)
            .await?
        {
            watch.event().await?;
        }
        Ok(())
    }

    /// Whether somebody waits whose entry does not hang on this session.
    async fn is_waited_for(&self, name: &Name, mode: Mode, session: i64) -> Result<bool, Trouble> {
        if mode != Mode::Exclusive {
            // Others may hold beside us, and only the whole queue tells who of them waits.
            return self.others_wait_beside(name, session).await;
        }
        let newest = Query::newest(self.keys.lock(name).all(), NEWEST).keys_only();
        let txn = Txn::of(vec![Step::Get(About::Entries, newest)]);
        let told = self.cluster.txn(&txn).await?;
        let others = |row: &Row| row.lease != session;
        Ok(told.value.rows(About::Entries).iter().any(others))
    }

    /// Whether somebody waits whose entry does not hang on our session.
    pub(crate) async fn others_wait(&self, name: &Name) -> Result<bool, Trouble> {
        let session = self.sessions.current().id;
        self.others_wait_beside(name, session).await
    }

    async fn others_wait_beside(&self, name: &Name, session: i64) -> Result<bool, Trouble> {
        let queue = self.queue_of(name).await?;
        let (_, waiters) = queue::split(&queue);
        Ok(waiters.iter().any(|ticket| ticket.lease != session))
    }
}
