//! One hold of a guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::client::Client;
use crate::engine::entry::Entry;
use crate::{FencingToken, Moment, Released, Result};

/// One hold of a guard.
pub(super) struct Grip {
    pub(super) client: Arc<Client>,
    pub(super) entry: Arc<Entry>,
    /// Which stay in the hold this is.
    pub(super) stay: u32,
    /// Cleared when the hold was left.
    pub(super) on: bool,
    /// Set when it is of a reader that joined a hold of its client.
    pub(super) joined_at: Option<Moment>,
    /// Of a hold that readers may join: set when this one has left it while it was good, for those who watch the loss of this one.
    pub(super) left: Option<Arc<AtomicBool>>,
}

impl Drop for Grip {
    fn drop(&mut self) {
        if self.on {
            self.has_left();
            self.client.drop_hold(&self.entry);
        }
    }
}

impl Grip {
    pub(super) fn token(&self) -> Option<FencingToken> {
        self.entry.token(self.stay)
    }

    /// Resolves when somebody else wants the lock.
    pub(super) async fn wanted(&self) {
        let Self { client, entry, .. } = self;
        let name = entry.name();
        let mut others_wait = std::pin::pin!(client.others_wait(entry));
        loop {
            let mut change = std::pin::pin!(entry.change());
            change.as_mut().enable();
            let mut past = std::pin::pin!(client.queue.one_comes_past_the_line());
            past.as_mut().enable();
            if entry.is_wanted() || client.queue.is_waited_for(&name, entry.mode()) {
                return;
            }
            tokio::select! {
                biased;
                () = change => {}
                () = past => {}
                () = &mut others_wait => return,
            }
        }
    }

    /// What the ledger does not know of a reader that leaves a hold in which others may be: the time of one that joined, and
    /// that a loss after this is not its own ([C9](crate::contract#c9)).
    fn has_left(&self) {
        if let Some(left) = &self.left
            && self.entry.is_held(self.client.clock.now())
        {
            left.store(true, Ordering::Release);
            self.entry.others_came();
        }
        if let Some(since) = self.joined_at {
            let time = self.client.clock.now().since(since);
            self.client.ledger.stats.held(Some(time));
        }
    }

    pub(super) async fn release(mut self) -> Result<Released> {
        self.on = false;
        self.has_left();
        self.client.release(&self.entry).await
    }
}
