//! What hangs on our lease and belongs to nobody: old marks, and entries that an old copy of the store has brought back.
//!
//! A store that was restored from a snapshot has entries that were released since the snapshot was taken, under leases that lived then. If
//! the client of such a lease still lives, it keeps the lease alive, and nobody ever frees the entry. So with each sign of life a
//! client compares what hangs on its lease with what it knows of. One with many entries does it only after trouble, or when
//! the store's revision has fallen: its watches end when a server is restarted.

use std::sync::atomic::Ordering;

use dlock_core::backend::AttemptId;
use uuid::Uuid;

use crate::error::Trouble;
use crate::queue::QueueEntry;
use crate::renew::STEPS;
use crate::session::Session;
use crate::store::Store;
use crate::txn::{About, Query, Row, Step, Txn, When};

impl Store {
    /// Keeps the lease alive if it is time, and then looks after what hangs on it.
    pub(crate) async fn keep_if_due(&self, session: &Session) -> Result<(), Trouble> {
        if self.sessions.keep_if_due(session).await? {
            Box::pin(self.tidy(session, None)).await;
        }
        Ok(())
    }

    /// Whether something happened, since what hangs on our lease was looked at last, after which the store may be another.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.cluster.suspicions() != self.swept.load(Ordering::Acquire)
    }

    /// Removes what is there and should not be. If it does not succeed, or its future is dropped, the next sign of life tries again. `keys`:
    /// what hangs on the lease, if that is known.
    pub(crate) async fn tidy(&self, session: &Session, keys: Option<Vec<Vec<u8>>>) {
        let (suspicions, suspicious) = (self.cluster.suspicions(), self.is_suspicious());
        let few = self.attempts.count(session.id) <= STEPS;
        if suspicious || few || keys.is_some() {
            match Box::pin(self.sweep(session, keys)).await {
                Ok(()) => self.swept.store(suspicions, Ordering::Release),
                Err(trouble) => {
                    let why = trouble.message();
                    tracing::debug!(why, "what hangs on the lease was not looked at");
                }
            }
        }
        let marks = self.attempts.old_marks(session.id, STEPS);
        if marks.is_empty() {
            return;
        }
        let deletes = marks.iter().cloned().map(Step::Delete).collect();
        match Box::pin(self.cluster.txn(&Txn::of(deletes))).await {
            Ok(_) => self.attempts.unmarked(&marks),
            Err(trouble) => {
                let why = trouble.message();
                tracing::debug!(why, "old marks were not removed");
            }
        }
    }

    /// Removes the entries under our lease that no attempt of ours has.
    async fn sweep(&self, session: &Session, keys: Option<Vec<Vec<u8>>>) -> Result<(), Trouble> {
        let keys = match keys {
            Some(keys) => keys,
            None => {
                let all = self
                    .cluster
                    .keys_of(session.id, self.sessions.ttl())
                    .await?;
                all.unwrap_or_default()
            }
        };
        let unknown = self.attempts.unknown(session.id, keys);
        let entries: Vec<_> = unknown
            .into_iter()
            .filter(|key| self.keys.parse(key).is_some())
            .collect();
        for some in entries.chunks(STEPS) {
            let one = |key: &Vec<u8>| Step::Get(About::Entries, Query::one(key));
            let txn = Txn::of(some.iter().map(one).collect());
            let answer = self.cluster.txn(&txn).await?.value;
            for row in answer.into_rows() {
                if self.is_ghost(&row) {
                    self.bury(&row).await?;
                }
            }
        }
        Ok(())
    }

    /// Asked after the row was read: an attempt that is over by now has nothing in the store, so its row was a ghost or has gone.
    fn is_ghost(&self, row: &Row) -> bool {
        let owner = QueueEntry::read(&self.keys, row)
            .and_then(|ticket| Uuid::parse_str(&ticket.attempt).ok())
            .map(AttemptId::from);
        owner.is_none_or(|owner| self.attempts.key(owner).is_none())
    }

    /// Removes this very entry, whoever may have its key by now.
    pub(crate) async fn bury(&self, row: &Row) -> Result<(), Trouble> {
        tracing::warn!(
            key = %String::from_utf8_lossy(&row.key),
            "an entry came back that was released: was a snapshot restored?"
        );
        let txn = Txn {
            when: vec![When::CreatedAt(row.key.clone(), row.created)],
            then: vec![Step::Delete(row.key.clone())],
            ..Txn::default()
        };
        self.cluster.txn(&txn).await.map(drop)
    }
}
