//! Places that came back. A server that was put back to an older copy has places again that were left since, under a session that goes on to be
//! kept alive: nobody holds them, and nobody would remove them.
//!
//! A place is wanted as long as somebody has its [`Claim`]: the attempt that takes it, and then the hold. After each reconnect, the server is asked
//! what the session has, and what nobody claims is removed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::backend::AttemptId;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::jute::{Reader, Writer};
use super::serve::{Call, Core, TaskMessage};
use super::talk::{Awaited, Talk};
use super::{Session, op};
use crate::queue::QueuePlace;

/// Whose places are wanted, and how many say so.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<HashMap<Uuid, usize>>);

impl Claims {
    fn all(&self) -> MutexGuard<'_, HashMap<Uuid, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(self: &Arc<Self>, attempt: Uuid) -> Claim {
        *self.all().entry(attempt).or_default() += 1;
        Claim {
            attempt,
            claims: self.clone(),
        }
    }

    /// The paths of places that nobody claims.
    fn unclaimed(&self, paths: Vec<String>) -> Vec<String> {
        let claimed = self.all();
        let is_ghost = |path: &String| {
            let node = path.rsplit('/').next().unwrap_or_default();
            QueuePlace::parse(node)
                .and_then(|place| place.attempt)
                .is_some_and(|attempt| !claimed.contains_key(&attempt))
        };
        paths.into_iter().filter(is_ghost).collect()
    }
}

/// The place of an attempt is wanted as long as this lives.
#[derive(Debug)]
pub(crate) struct Claim {
    attempt: Uuid,
    claims: Arc<Claims>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.claims.all();
        match claims.get_mut(&self.attempt) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(claims.remove(&self.attempt)),
        }
    }
}

impl Session {
    /// Whether an attempt of this client has or wants a place.
    pub(crate) fn has_claim(&self, attempt: Uuid) -> bool {
        self.shared.claims.all().contains_key(&attempt)
    }

    /// To be made before the place is asked for.
    pub(crate) fn claim(&self, attempt: AttemptId) -> Arc<Claim> {
        Arc::new(self.shared.claims.claim(*attempt.as_uuid()))
    }
}

impl Core {
    /// Asks what the session has, and removes what nobody claims. A server before 3.6 does not know the question: then nothing is removed.
    pub(super) fn remove_ghosts(&mut self, talk: &mut Talk) {
        let (reply, answer) = oneshot::channel();
        let awaited = Awaited {
            reply: Some(reply),
            watch: None,
        };
        let all = Writer::default().text("/");
        self.send(talk, op::GET_EPHEMERALS, &all.0, awaited);
        let (asks, claims) = (self.asks.clone(), self.shared.claims.clone());
        tokio::spawn(async move {
            let Ok(Ok(answer)) = answer.await else {
                return;
            };
            let paths = Reader(&answer.body).texts().unwrap_or_default();
            for path in claims.unclaimed(paths) {
                tracing::warn!(%path, "a place that was left is there again: was the server put back to an older copy?");
                let (reply, _) = oneshot::channel();
                let call = Call {
                    op: op::DELETE,
                    body: Writer::default().text(&path).int(-1).0,
                    watch: None,
                    reply,
                };
                // If the session is over, so is the place.
                if let Some(asks) = asks.upgrade() {
                    let _ = asks.send(TaskMessage::Request(call));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::node_prefix;
    use dlock_core::Mode;

    #[test]
    fn what_nobody_claims_is_a_ghost() {
        let claims = Arc::new(Claims::default());
        let (mine, gone) = (AttemptId::new(), AttemptId::new());
        let path = |attempt| {
            let prefix = node_prefix(crate::Style::Mutex, attempt, Mode::Exclusive, false);
            format!("/shop/dlock/a/{prefix}0000000007")
        };
        let all = || vec![path(mine), path(gone), "/somebody/elses".to_owned()];
        let (first, second) = (claims.claim(*mine.as_uuid()), claims.claim(*mine.as_uuid()));
        assert_eq!(claims.unclaimed(all()), [path(gone)]);
        drop(first);
        assert_eq!(claims.unclaimed(all()), [path(gone)], "one claims it still");
        drop(second);
        assert_eq!(claims.unclaimed(all()), [path(mine), path(gone)]);
        assert!(claims.all().is_empty(), "nothing is left");
    }
}
