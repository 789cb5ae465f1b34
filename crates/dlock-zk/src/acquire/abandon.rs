//! The undo of an attempt.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::backend::{AttemptId, Request};
use dlock_core::{Error, ErrorKind, HeldNow, Result};

use super::gone;
use crate::ZkBackend;
use crate::error::Fault;

impl ZkBackend {
    /// Undoes whatever an attempt may have left: its place in the queue, whether it holds or waits.
    ///
    /// It is final. The requests of one session are carried out in the order in which they were sent; when the session moves to another
    /// connection, the server refuses what is left of the old one. So after this session's `sync` and read, a create that was
    /// under way in the same session is either seen or will never be. An earlier session is known to have ended before this one began,
    /// see [`Link::session`](crate::link::Link::session), and a create of it with it. And no new request of this
    /// attempt is made, because the attempt is known only in this process, which remembers.
    pub(crate) async fn abandon(&self, request: &Request) -> Result<()> {
        remember_abandoned(request.attempt());
        let session = self.link.session().await?;
        session.up().await?;
        let parent = self.lock_path(request.name());
        let all = match session.queue(&parent).await {
            Ok(all) => all,
            Err(Fault::NoNode) => return Ok(()),
            Err(fault) => return Err(fault.into()),
        };
        let left: Vec<_> = all
            .places
            .iter()
            .filter(|place| place.is_of(request.attempt()))
            .map(|place| session.delete(&format!("{parent}/{}", place.node)))
            .collect();
        for deleted in left {
            gone(deleted.await)?;
        }
        if all.is_untouched {
            // The server leaves a container alone that never had a child. If it is in use by now, it refuses.
            let _ = session.delete(&parent).await;
        }
        Ok(())
    }
}

/// The attempts of this process that were abandoned lately.
///
/// A backend does not make requests for an attempt after its undo; this keeps a caller from doing so.
static ABANDONED: Mutex<Option<Abandoned>> = Mutex::new(None);
const REMEMBER: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Abandoned {
    ids: HashSet<AttemptId>,
    to_forget: VecDeque<(Instant, AttemptId)>,
}

fn remember_abandoned(attempt: AttemptId) {
    let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    let abandoned = abandoned.get_or_insert_default();
    let now = Instant::now();
    while let Some((since, old)) = abandoned.to_forget.front().copied()
        && now.duration_since(since) > REMEMBER
    {
        abandoned.ids.remove(&old);
        abandoned.to_forget.pop_front();
    }
    if abandoned.ids.insert(attempt) {
        abandoned.to_forget.push_back((now, attempt));
    }
}

pub(super) fn refuse_abandoned(attempt: AttemptId) -> Result<()> {
    let abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    if abandoned
        .as_ref()
        .is_some_and(|known| known.ids.contains(&attempt))
    {
        let error = Error::new(
            ErrorKind::Store,
            "this attempt was abandoned: make a new one",
        );
        return Err(error.with_held(HeldNow::No));
    }
    Ok(())
}
