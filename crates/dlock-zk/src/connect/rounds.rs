//! Reading the queue of a lock: however many want to know it at a time, one of them asks.
//!
//! Each of n waiters who come, or leave, together needs to see the queue as it is after its own request, and the queue has n places. If each
//! read it, that would be n² of them. So they read in rounds: who comes while a round is under way takes part in the next one, which
//! is sent when the present one has been answered, and so after the requests of all who take part.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::{Cause, Session};
use crate::error::Fault;
use crate::queue::{Place, places};

/// Rounds that nobody has waited for to the end are cleared away when there are so many.
const MOST: usize = 1024;

/// The queue of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    /// In the order of creation.
    pub(crate) places: Vec<Place>,
    /// The lock's node never had a child.
    pub(crate) is_untouched: bool,
}

type Round = Shared<BoxFuture<'static, Result<Arc<Listing>, Fault>>>;

/// The rounds of one lock.
struct Turns {
    now: Round,
    /// Not sent yet.
    next: Option<Round>,
}

#[derive(Default)]
pub(super) struct Rounds(Mutex<HashMap<String, Turns>>);

impl Rounds {
    fn turns(&self) -> MutexGuard<'_, HashMap<String, Turns>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round has been answered.
    fn finished(&self, parent: &str) {
        let mut turns = self.turns();
        if turns.get(parent).is_some_and(|turns| turns.next.is_none()) {
            turns.remove(parent);
        }
    }
}

impl Session {
    /// The queue of a lock as the leader has it after this call, and after what was sent before it. If no round is under way, it is
    /// sent at once. `NoNode`: there is no such lock.
    pub(crate) fn queue(
        self: &Arc<Self>,
        parent: &str,
    ) -> impl Future<Output = Result<Arc<Listing>, Fault>> + Send + use<> {
        let mut all = self.rounds.turns();
        if all.len() >= MOST {
            all.retain(|_, turns| turns.now.peek().is_none());
        }
        let idle = |turns: &Turns| turns.next.is_none() && turns.now.peek().is_some();
        match all.get_mut(parent) {
            Some(turns) if !idle(turns) => {
                let now = turns.now.clone();
                let next = || self.next_round(now, parent);
                turns.next.get_or_insert_with(next).clone()
            }
            _ => {
                let now = self.round(parent);
                let turns = Turns {
                    now: now.clone(),
                    next: None,
                };
                all.insert(parent.to_owned(), turns);
                now
            }
        }
    }

    /// A round that is sent now.
    fn round(self: &Arc<Self>, parent: &str) -> Round {
        let read = self.read(parent);
        // The session keeps its rounds, so they must not keep the session.
        let (session, parent) = (Arc::downgrade(self), parent.to_owned());
        async move { finish(&session, &parent, read.await) }
            .boxed()
            .shared()
    }

    fn next_round(self: &Arc<Self>, now: Round, parent: &str) -> Round {
        let (session, parent) = (Arc::downgrade(self), parent.to_owned());
        let next = async move {
            let _ = now.await;
            let read = {
                let session = session.upgrade().ok_or(Cause::Closed)?;
                let mut all = session.rounds.turns();
                if let Some(turns) = all.get_mut(&parent)
                    && let Some(next) = turns.next.take()
                {
                    // Whoever comes from here on was not there when it was sent.
                    turns.now = next;
                }
                session.read(&parent)
            };
            finish(&session, &parent, read.await)
        };
        next.boxed().shared()
    }

    fn read(
        self: &Arc<Self>,
        parent: &str,
    ) -> impl Future<Output = Result<Arc<Listing>, Fault>> + Send + use<> {
        let synced = self.sync();
        let listed = self.children(parent);
        let (session, parent) = (Arc::downgrade(self), parent.to_owned());
        async move {
            synced.await?;
            let (children, stat) = listed.await?;
            let session = session.upgrade().ok_or(Cause::Closed)?;
            Ok(Arc::new(Listing {
                places: in_order(&session, &parent, &children).await?,
                is_untouched: children.is_empty() && stat.child_changes == 0,
            }))
        }
    }
}

fn finish(
    session: &Weak<Session>,
    parent: &str,
    read: Result<Arc<Listing>, Fault>,
) -> Result<Arc<Listing>, Fault> {
    if let Some(session) = session.upgrade() {
        session.rounds.finished(parent);
    }
    read
}

/// The places in the order of creation. If the numbers do not tell it, the transactions that created them do, for one trip more; what is gone
/// by then is left out.
pub(crate) async fn in_order(
    session: &Session,
    parent: &str,
    children: &[String],
) -> Result<Vec<Place>, Fault> {
    let mut known = places(children);
    if known.iter().any(Place::is_worn_out) {
        let asked: Vec<_> = known
            .iter()
            .map(|place| session.stat(&format!("{parent}/{}", place.node)))
            .collect();
        let mut found = Vec::with_capacity(known.len());
        for (place, stat) in known.into_iter().zip(asked) {
            if let Some(stat) = stat.await? {
                let czxid = Some(stat.czxid);
                found.push(Place { czxid, ..place });
            }
        }
        known = found;
    }
    known.sort_by_key(Place::order);
    Ok(known)
}
