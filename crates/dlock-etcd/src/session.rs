//! The one lease of a client: every hold and every place in a queue hangs on it.
//!
//! Nobody keeps it alive in the background. Core renews while something is held, a waiter while it waits, and an acquire
//! together with its own request when the last proof of life is a third of the lease old. An idle client sends nothing; its lease
//! lapses, and the next acquire starts with a new one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::{Clock, Moment, SystemClock, kit};

use crate::connect::Cluster;
use crate::error::Trouble;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: i64,
    ttl: Duration,
    /// When the last request that the store has answered with "alive" was sent.
    proven: AtomicU64,
    /// The store has said that it ended, or we have ended it.
    ended: AtomicBool,
    /// It must have ended by the clock. Once set, for ever: whoever was told so may have acted on it.
    lapsed: AtomicBool,
}

impl Session {
    pub(crate) fn new(id: i64, ttl: Duration, sent: Moment) -> Self {
        Self {
            id,
            ttl,
            proven: AtomicU64::new(sent.as_nanos()),
            ended: AtomicBool::new(false),
            lapsed: AtomicBool::new(false),
        }
    }

    /// The time since the last proof of life was asked for. The store keeps the lease for its full time from then on, at least ([C7](dlock_core::contract#c7)).
    pub(crate) fn age(&self) -> Duration {
        SystemClock
            .now()
            .since(Moment::from_nanos(self.proven.load(Ordering::Acquire)))
    }

    /// Notes a proof of life. `false` when it came too late: a session that is over stays so, whatever the store says.
    fn alive_at(&self, sent: Moment) -> bool {
        if self.has_ended() {
            return false;
        }
        self.proven.fetch_max(sent.as_nanos(), Ordering::AcqRel);
        !self.has_ended()
    }

    /// Whether the store has said that it ended, or it must have by the clock.
    pub(crate) fn has_ended(&self) -> bool {
        if self.ended.load(Ordering::Acquire) || self.lapsed.load(Ordering::Acquire) {
            return true;
        }
        let lapsed = self.age() >= self.ttl;
        if lapsed {
            self.lapsed.store(true, Ordering::Release);
        }
        lapsed
    }

    /// Why nobody may count on it any more.
    fn is_over(&self) -> Option<Trouble> {
        if !self.has_ended() {
            return None;
        }
        Some(if self.ended.load(Ordering::Acquire) {
            Trouble::session_ended()
        } else {
            Trouble::session_lapsed()
        })
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn is_due(&self) -> bool {
        self.age() >= self.ttl / 3
    }

    /// How long one member may take to prove it: two of them can be asked within a third of the session's time.
    fn proof_limit(&self) -> Duration {
        one_of_two(self.ttl / 3)
    }
}

#[derive(Debug)]
pub(crate) struct Sessions {
    cluster: Arc<Cluster>,
    ttl: Duration,
    current: Mutex<Arc<Session>>,
    /// One at a time grants or renews; the others find it done.
    turn: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

impl Sessions {
    /// Grants the first lease. The store may make it longer than asked.
    pub(crate) async fn start(
        cluster: Arc<Cluster>,
        asked: Duration,
        limit: Duration,
    ) -> Result<Self, Trouble> {
        let session = grant(&cluster, asked, Some(limit)).await?;
        Ok(Self {
            cluster,
            ttl: session.ttl,
            current: Mutex::new(Arc::new(session)),
            turn: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// How long the store keeps the lease without a sign of life.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(crate) fn current(&self) -> Arc<Session> {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A lease that is alive, as far as anybody can tell without asking.
    pub(crate) async fn usable(&self) -> Result<Arc<Session>, Trouble> {
        let session = self.current();
        if !session.has_ended() {
            return Ok(session);
        }
        Box::pin(self.renewed()).await
    }

    async fn renewed(&self) -> Result<Arc<Session>, Trouble> {
        let _turn = self.turn.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(kit::closed().into());
        }
        let session = self.current();
        if !session.has_ended() {
            return Ok(session);
        }
        // No request of an attempt goes out before this one is answered.
        let next = grant(&self.cluster, self.ttl, None)
            .await
            .map_err(Trouble::unsent)?;
        let next = Arc::new(next);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = next.clone();
        tracing::debug!(lease = next.id, "a new lease: the one before has ended");
        Ok(next)
    }

    /// Proves that the lease lives, with a request that is sent after this call began. Each member gets at most `limit` to answer.
    pub(crate) async fn keep_alive(
        &self,
        session: &Session,
        limit: Duration,
    ) -> Result<(), Trouble> {
        if let Some(over) = session.is_over() {
            return Err(over);
        }
        let sent = SystemClock.now();
        match self.cluster.keep_alive(session.id, limit).await {
            Ok(()) if session.alive_at(sent) => Ok(()),
            Ok(()) => Err(Trouble::session_lapsed()),
            Err(trouble) => {
                if trouble.is_lease_gone() {
                    session.end();
                }
                Err(trouble)
            }
        }
    }

    /// Keeps the lease alive if it is time, and tells whether it was. Many may call it; one asks the store.
    pub(crate) async fn keep_if_due(&self, session: &Session) -> Result<bool, Trouble> {
        if let Some(over) = session.is_over() {
            return Err(over);
        }
        if !session.is_due() {
            return Ok(false);
        }
        let _turn = self.turn.lock().await;
        if !session.is_due() {
            return Ok(false);
        }
        self.keep_alive(session, session.proof_limit()).await?;
        Ok(true)
    }

    /// Revokes the lease: everything that hangs on it goes.
    pub(crate) async fn close(&self) -> Result<(), Trouble> {
        self.closed.store(true, Ordering::Release);
        let session = self.current();
        session.end();
        match self.cluster.revoke(session.id).await {
            Err(trouble) if !trouble.is_lease_gone() => Err(trouble),
            _ => Ok(()),
        }
    }
}

/// The share of one member when two are to be asked within `limit`, with some time left to note that the second was silent too.
pub(crate) fn one_of_two(limit: Duration) -> Duration {
    limit * 9 / 20
}

/// The id is ours, so that a grant whose answer was lost is found when it is sent again.
async fn grant(
    cluster: &Cluster,
    ttl: Duration,
    limit: Option<Duration>,
) -> Result<Session, Trouble> {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    let id = i64::try_from(random >> 1).unwrap_or(i64::MAX).max(1);
    let sent = SystemClock.now();
    let granted = cluster.grant(id, ttl, limit).await?;
    Ok(Session::new(id, granted, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_that_comes_when_the_session_has_lapsed_changes_nothing() {
        let ttl = Duration::from_millis(20);
        for somebody_looked in [false, true] {
            let session = Session::new(1, ttl, SystemClock.now());
            assert!(session.alive_at(SystemClock.now()));
            std::thread::sleep(ttl * 2);
            assert!(!somebody_looked || session.has_ended());
            assert!(!session.alive_at(SystemClock.now()));
            assert!(session.has_ended(), "for ever");
        }
    }

    #[test]
    fn two_members_fit_into_a_third_of_the_session() {
        for seconds in [1, 2, 3, 10, 3600] {
            let ttl = Duration::from_secs(seconds);
            let session = Session::new(1, ttl, SystemClock.now());
            assert!(session.proof_limit() * 2 < ttl / 3);
        }
    }
}
