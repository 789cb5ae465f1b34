//! Reading the queue of a lock: however many want to know it at a time, one of them asks.
//!
//! Each of n waiters who come, or leave, together needs to see the queue as it is after its own request, and the queue has n places. If each
//! read it, that would be n² of them. So they read in rounds: who comes while a round is under way takes part in the next one, which
//! is sent when the present one has been answered, and so after the requests of all who take part.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dlock_core::backend::AttemptId;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use uuid::Uuid;

use super::{Cause, Session};
use crate::error::Fault;
use crate::queue::{QueuePlace, Verdict, places, verdict_behind};

/// Rounds that nobody has waited for to the end are cleared away when there are so many, or twice as many as are waited for.
const MOST: usize = 1024;

/// The queue of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    /// In the order of creation.
    pub(crate) places: Vec<QueuePlace>,
    /// The lock's node never had a child.
    pub(crate) is_untouched: bool,
    /// Who stands where, in the order of the ids: each of thousands who share a round looks for its own place.
    attempts: Vec<(Uuid, usize)>,
}

impl Listing {
    fn new(places: Vec<QueuePlace>, is_untouched: bool) -> Self {
        let known = places.iter().enumerate();
        let mut attempts: Vec<_> = known
            .filter_map(|(index, place)| Some((place.attempt?, index)))
            .collect();
        attempts.sort_unstable();
        Self {
            places,
            is_untouched,
            attempts,
        }
    }

    fn of_id(&self, id: Uuid) -> impl Iterator<Item = (usize, &QueuePlace)> {
        let first = self.attempts.partition_point(|(other, _)| *other < id);
        let own = self.attempts.iter().skip(first);
        own.take_while(move |(other, _)| *other == id)
            .filter_map(|(_, index)| Some((*index, self.places.get(*index)?)))
    }

    /// The places of an attempt, in the order of creation.
    pub(crate) fn of(&self, attempt: AttemptId) -> impl Iterator<Item = &QueuePlace> {
        self.of_id(*attempt.as_uuid()).map(|(_, place)| place)
    }

    /// What a place of ours may do; `None` when it is not there any more.
    pub(crate) fn verdict(&self, mine: &QueuePlace) -> Option<Verdict> {
        let mut own = self.of_id(mine.attempt?);
        let (index, _) = own.find(|(_, place)| place.node == mine.node)?;
        Some(verdict_behind(mine.mode, self.places.get(..index)?))
    }
}

/// Whose state of the queue is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Leader,
    Ours,
}

type Round = Shared<BoxFuture<'static, Result<Arc<Listing>, Fault>>>;

/// The rounds of one lock.
struct Turns {
    now: Round,
    /// Not sent yet.
    next: Option<Round>,
}

impl Turns {
    /// Whether anybody waits for one of them. The one in `now` is also known to ourselves, and to the one in `next`; each of those that are
    /// finished counts nobody.
    fn are_wanted(&self) -> bool {
        let known = |round: &Round| round.strong_count().unwrap_or_default();
        let ours = 1 + usize::from(self.next.is_some());
        known(&self.now) > ours || self.next.as_ref().is_some_and(|next| known(next) > 1)
    }
}

#[derive(Default)]
struct All {
    turns: HashMap<String, Turns>,
    clear_at: usize,
}

impl All {
    /// Clears away what nobody waits for, not too often.
    fn tidy(&mut self) {
        if self.turns.len() >= self.clear_at.max(MOST) {
            self.turns.retain(|_, turns| turns.are_wanted());
            self.clear_at = 2 * self.turns.len();
        }
    }
}

#[derive(Default)]
pub(super) struct Rounds(Mutex<All>);

impl Rounds {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round has been answered.
    fn finished(&self, parent: &str) {
        let turns = &mut self.all().turns;
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
        self.queue_as(parent, Whose::Leader)
    }

    /// The queue of a lock as our server has it, at least up to what it has answered or told on this connection, and what was sent before.
    ///
    /// It tells whoever has a place, and has it from a change that was committed, all who came before it, because these were committed earlier. Some of them
    /// may have left, which our server learns, and a watch tells. So a place with nobody before it holds, however far behind our server is.
    pub(crate) fn queue_here(
        self: &Arc<Self>,
        parent: &str,
    ) -> impl Future<Output = Result<Arc<Listing>, Fault>> + Send + use<> {
        self.queue_as(parent, Whose::Ours)
    }

    fn queue_as(self: &Arc<Self>, parent: &str, whose: Whose) -> Round {
        let mut all = self.rounds.all();
        all.tidy();
        let idle = |turns: &Turns| turns.next.is_none() && turns.now.peek().is_some();
        match all.turns.get_mut(parent) {
            Some(turns) if !idle(turns) => {
                let now = turns.now.clone();
                let next = || self.next_round(now, parent);
                turns.next.get_or_insert_with(next).clone()
            }
            _ => {
                let now = self.round(parent, whose);
                let turns = Turns {
                    now: now.clone(),
                    next: None,
                };
                all.turns.insert(parent.to_owned(), turns);
                now
            }
        }
    }

    /// A round that is sent now.
    fn round(self: &Arc<Self>, parent: &str, whose: Whose) -> Round {
        let read = self.read(parent, whose);
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
                let mut all = session.rounds.all();
                if let Some(turns) = all.turns.get_mut(&parent)
                    && let Some(next) = turns.next.take()
                {
                    // Whoever comes from here on was not there when it was sent.
                    turns.now = next;
                }
                // Some who take part may need to know what the leader has.
                session.read(&parent, Whose::Leader)
            };
            finish(&session, &parent, read.await)
        };
        next.boxed().shared()
    }

    fn read(
        self: &Arc<Self>,
        parent: &str,
        whose: Whose,
    ) -> impl Future<Output = Result<Arc<Listing>, Fault>> + Send + use<> {
        let synced = (whose == Whose::Leader).then(|| self.sync());
        let listed = self.children(parent);
        let (session, parent) = (Arc::downgrade(self), parent.to_owned());
        async move {
            if let Some(synced) = synced {
                synced.await?;
            }
            let (children, stat) = listed.await?;
            let session = session.upgrade().ok_or(Cause::Closed)?;
            Ok(Arc::new(Listing::new(
                in_order(&session, &parent, &children).await?,
                children.is_empty() && stat.child_changes == 0,
            )))
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
) -> Result<Vec<QueuePlace>, Fault> {
    let mut known = places(children);
    if known.iter().any(QueuePlace::is_worn_out) {
        let asked: Vec<_> = known
            .iter()
            .map(|place| session.stat(&format!("{parent}/{}", place.node)))
            .collect();
        let mut found = Vec::with_capacity(known.len());
        for (place, stat) in known.into_iter().zip(asked) {
            if let Some(stat) = stat.await? {
                let czxid = Some(stat.czxid);
                found.push(QueuePlace { czxid, ..place });
            }
        }
        known = found;
    }
    known.sort_by_key(QueuePlace::order);
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::serve::{SessionTicket, Shared as Known, TaskMessage};
    use crate::connect::{SessionState, op};
    use crate::queue::{node_prefix, verdict};
    use dlock_core::Mode;
    use tokio::sync::{mpsc, watch};

    /// A session whose requests nobody answers, and those requests.
    fn session() -> (
        Arc<Session>,
        mpsc::UnboundedReceiver<TaskMessage>,
        watch::Sender<SessionState>,
    ) {
        let (asks, asked) = mpsc::unbounded_channel();
        let (tell, state) = watch::channel(SessionState::Up);
        let session = Session {
            ticket: SessionTicket {
                id: 1,
                password: b"hunter2".to_vec(),
                ttl: std::time::Duration::from_secs(30),
            },
            asks,
            state,
            shared: Arc::new(Known::default()),
            pulse: super::super::pulse::Pulse::default(),
            rounds: Rounds::default(),
            chroot: String::new(),
            acls: Vec::new(),
        };
        (Arc::new(session), asked, tell)
    }

    fn reads(asked: &mut mpsc::UnboundedReceiver<TaskMessage>) -> usize {
        let asked = std::iter::from_fn(|| asked.try_recv().ok());
        asked
            .filter(|ask| matches!(ask, TaskMessage::Request(call) if call.op == op::GET_CHILDREN))
            .count()
    }

    #[tokio::test]
    async fn rounds_that_nobody_waits_for_are_cleared_away_and_others_are_not() {
        let (session, mut asked, _state) = session();
        let mut waits = Box::pin(session.queue("/waited"));
        let mut second = Box::pin(session.queue("/waited"));
        for wait in [&mut waits, &mut second] {
            assert_eq!(wait.now_or_never(), None);
        }
        for number in 0..3 * MOST {
            let mut read = Box::pin(session.queue(&format!("/{number}")));
            assert_eq!((&mut read).now_or_never(), None);
            let mut next = Box::pin(session.queue(&format!("/{number}")));
            assert_eq!((&mut next).now_or_never(), None);
        }
        assert!(session.rounds.all().turns.len() <= MOST);
        assert!(session.rounds.all().turns.contains_key("/waited"));
        assert_eq!(
            reads(&mut asked),
            3 * MOST + 1,
            "one each, and no second before its answer"
        );
    }

    fn ops(asked: &mut mpsc::UnboundedReceiver<TaskMessage>) -> Vec<i32> {
        let asked = std::iter::from_fn(|| asked.try_recv().ok());
        asked
            .filter_map(|ask| match ask {
                TaskMessage::Request(call) => Some(call.op),
                TaskMessage::Unwatch(..) => None,
            })
            .collect()
    }

    /// The first round is our server's own, and somebody in the second one needs what the leader has: an election that our server has not heard of may
    /// have ended in between.
    #[tokio::test]
    async fn a_round_behind_one_of_our_own_server_is_the_leaders() {
        let (session, mut asked, _state) = session();
        let mut here = Box::pin(session.queue_here("/lock"));
        assert_eq!((&mut here).now_or_never(), None);
        let first = asked.try_recv().expect("a request");
        let TaskMessage::Request(first) = first else {
            panic!("{first:?}");
        };
        assert_eq!(
            first.op,
            op::GET_CHILDREN,
            "no sync: it is asked for what our server has"
        );
        assert_eq!(ops(&mut asked), []);
        let mut synced = Box::pin(session.queue("/lock"));
        assert_eq!((&mut synced).now_or_never(), None);
        assert_eq!(ops(&mut asked), [], "not before the first was answered");
        first.reply.send(Err(Cause::Garbled)).expect("it waits");
        assert!(here.await.is_err());
        assert_eq!(synced.now_or_never(), None);
        assert_eq!(ops(&mut asked), [op::SYNC, op::GET_CHILDREN]);
    }

    #[test]
    fn attempt_finds_its_places_and_what_it_may_do() {
        let attempts = [AttemptId::new(), AttemptId::new(), AttemptId::new()];
        let name = |attempt: AttemptId, number: i32| {
            format!(
                "{}{number:010}",
                node_prefix(crate::Style::Mutex, attempt, Mode::Exclusive, false)
            )
        };
        let mut children: Vec<_> = attempts.iter().zip(1..).map(|(a, n)| name(*a, n)).collect();
        children.push("stranger-0000000000".to_owned());
        children.push(name(attempts[0], 4));
        let mut all = places(&children);
        all.sort_by_key(QueuePlace::order);
        let all = Listing::new(all, false);
        let found = |attempt| all.of(attempt).map(|p| p.sequence).collect::<Vec<_>>();
        assert_eq!(found(attempts[0]), [1, 4]);
        assert_eq!(found(attempts[2]), [3]);
        assert!(found(AttemptId::new()).is_empty());
        for place in all.places.iter().filter(|place| place.attempt.is_some()) {
            assert_eq!(all.verdict(place), verdict(place, &all.places), "{place:?}");
        }
        let gone = QueuePlace::parse(&name(attempts[2], 7)).expect("our own form");
        assert_eq!(all.verdict(&gone), None);
    }

    #[test]
    fn the_sessions_password_is_never_shown() {
        let (session, ..) = session();
        let shown = format!("{session:?} {:?}", session.ticket);
        assert!(
            !shown.contains("hunter2") && !shown.contains("104, 117"),
            "{shown}"
        );
    }
}
