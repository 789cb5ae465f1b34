//! How a holder hears that others wait: a watch on the lock's places, and a look at whose they are.

use dlock_core::backend::Lease;
use dlock_core::{Mode, Name, Result};

use crate::ZkBackend;
use crate::connect::{Seen, Session};
use crate::queue::places;

impl ZkBackend {
    /// Resolves when somebody of another client waits for what is held.
    pub(crate) async fn wanted(&self, lease: &Lease) -> Result<()> {
        let parent = self.lock_path(lease.name());
        loop {
            let session = self.sessions.session().await?;
            session.up().await?;
            let (children, watch) = session.watch_children(&parent).await?;
            let waits = match lease.mode() {
                // Nobody else holds, so whoever is there waits.
                Mode::Exclusive => is_anybody_elses(&session, &children),
                _ => self.others_wait(lease.name()).await?,
            };
            if waits {
                return Ok(());
            }
            if watch.seen().await == Seen::SessionEnded {
                // The hold has ended with the session, so nobody waits for it any more.
                return std::future::pending().await;
            }
        }
    }

    /// Whether somebody of another client waits for a lock.
    pub(crate) async fn others_wait(&self, name: &Name) -> Result<bool> {
        let session = self.sessions.session().await?;
        session.up().await?;
        let waiters = self.waiters(&session, name).await?;
        Ok(waiters
            .iter()
            .any(|attempt| attempt.is_none_or(|attempt| !session.has_claim(attempt))))
    }
}

/// Whether one of these places is of no attempt of ours.
fn is_anybody_elses(session: &Session, children: &[String]) -> bool {
    let mut places = places(children).into_iter();
    places.any(|place| {
        place
            .attempt
            .is_none_or(|attempt| !session.has_claim(attempt))
    })
}
