//! One attempt, and its undo.

mod abandon;
mod queued;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, Busy, Outcome, Request};
use dlock_core::{Error, Mode, Moment, Result, kit};

pub(crate) use self::queued::{HeldNode, Queued, Telling, removed};
use crate::ZkBackend;
use crate::connect::{Claim, Listing, Session, Stat};
use crate::error::Fault;
use crate::queue::{
    NodeState, Obstacle, QueuePlace, Verdict, node_data, node_prefix, read_data, verdict,
    verdict_behind,
};

/// How often the lock's node may vanish under a new place: a container goes only when it is empty, so twice is rare.
const TRIES: usize = 10;

/// How long a try waits for others that tried in vain to leave, which takes them two trips. Whoever died, stopped or was cut off in between stays until its
/// session ends: then the lock is as good as busy.
const TRIES_LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// What a try has left of that time, with pauses between its looks.
struct Patience {
    end: Moment,
    backoff: Backoff,
}

impl Patience {
    fn of(request: &Request) -> Self {
        // The rest of its time is for its own trips.
        let longest = TRIES_LEAVE_WITHIN.min(request.trip_timeout() / 4);
        Self {
            end: request.now() + longest,
            backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(50)),
        }
    }

    /// Pauses; `false` when it is time to give up.
    async fn lasts(&mut self, request: &Request) -> bool {
        let next = request.now() + self.backoff.pause();
        if next > self.end {
            return false;
        }
        request.clock().sleep_until(next).await;
        true
    }
}

impl ZkBackend {
    pub(crate) async fn try_acquire(&self, request: &Request) -> Result<Outcome> {
        let mut patience = Patience::of(request);
        if self.is_in_vain(request, &mut patience).await? {
            return Ok(Outcome::Busy(Busy::default()));
        }
        let mut queued = self.enter(request, true).await?;
        loop {
            match queued.verdict.clone() {
                Verdict::Held => return queued.held(request),
                Verdict::Conflict(used) => return queued.conflict(request, used).await,
                Verdict::Wait(obstacle) if obstacle.passing => {
                    if !patience.lasts(request).await {
                        break;
                    }
                    queued.look().await?;
                }
                Verdict::Wait(obstacle) if may_share(request.mode(), &obstacle) => {
                    match state_of(&queued.session, &queued.parent, &obstacle).await {
                        Ok(NodeState::Downgraded) => return queued.held(request),
                        Ok(_) => break,
                        Err(Fault::NoNode) => drop(queued.look().await?),
                        Err(fault) => return Err(fault.into()),
                    }
                }
                Verdict::Wait(_) | Verdict::AnyChange => break,
            }
        }
        queued.leave().await?;
        Ok(Outcome::Busy(Busy::default()))
    }

    /// Whether others hold the lock, as the leader has it. Then a try takes no place: others who come just then would find it in their
    /// way, a reader for example who may share the lock with those who hold it.
    async fn is_in_vain(&self, request: &Request, patience: &mut Patience) -> Result<bool> {
        let session = self.sessions.session().await?;
        if self.quiet.is_likely_free(request.name(), session.line()) {
            return Ok(false);
        }
        let parent = self.lock_path(request.name());
        loop {
            session.up().await?;
            let all = match session.queue(&parent).await {
                Ok(all) => all,
                Err(Fault::NoNode) => return Ok(false),
                // Nothing was asked for that could be held.
                Err(fault) => return Err(Error::from(fault).after_sending(false)),
            };
            if all.of(request.attempt()).next().is_some() {
                // The same attempt has a node already, from a request that was sent before: it must not make a second one.
                return Ok(false);
            }
            match verdict_behind(request.mode(), &all.places) {
                Verdict::Held => return Ok(false),
                Verdict::Conflict(used) => return Err(kit::other_limit(used, request.mode())),
                Verdict::Wait(obstacle) if obstacle.passing => {
                    if !patience.lasts(request).await {
                        return Ok(true);
                    }
                }
                Verdict::Wait(obstacle) if may_share(request.mode(), &obstacle) => {
                    match state_of(&session, &parent, &obstacle).await {
                        Ok(state) => return Ok(state != NodeState::Downgraded),
                        Err(Fault::NoNode) => {}
                        Err(fault) => return Err(Error::from(fault).after_sending(false)),
                    }
                }
                Verdict::Wait(_) | Verdict::AnyChange => return Ok(true),
            }
        }
    }

    /// Takes a place in the queue, and reads the queue, in one trip.
    pub(crate) async fn enter(&self, request: &Request, tries: bool) -> Result<Queued> {
        kit::refuse_abandoned(request.attempt())?;
        let session = self.sessions.session().await?;
        let parent = self.lock_path(request.name());
        let stem = node_prefix(self.style, request.attempt(), request.mode(), tries);
        let prefix = format!("{parent}/{stem}");
        let data = node_data(NodeState::Plain, request.label());
        // Before anything is sent, so that no place of a living attempt is ever unknown.
        let claim = session.claim(request.attempt());
        if self.quiet.is_likely_free(request.name(), session.line())
            && let Some(queued) = self
                .enter_alone(&session, &claim, &stem, &data, request)
                .await?
        {
            return Ok(queued);
        }
        let mut missing: Vec<String> = Vec::new();
        for _ in 0..TRIES {
            session.up().await?;
            let sent = request.now();
            // All of it is sent before the first answer is awaited, and is carried out in this order.
            let made: Vec<_> = missing
                .iter()
                .map(|path| session.create_container(path))
                .collect();
            let created = session.create_place(&prefix, &data);
            // Behind the create on the same connection, and it is the create that proves the life of the session: no need to ask the leader.
            let listed = session.queue_here(&parent);
            let mut refused = None;
            for made in made {
                match made.await {
                    Ok(()) | Err(Fault::NodeExists) => {}
                    Err(fault) => refused = Some(fault),
                }
            }
            let created = created.await;
            let listed = listed.await;
            let known = match (created, listed) {
                (Ok((sequence, stat)), Ok(all)) => {
                    Some((Some((format!("{stem}{sequence}"), stat)), all, sent))
                }
                (Err(Fault::NoNode), _) => match refused {
                    Some(fault) => return Err(fault.into()),
                    None => {
                        missing = self.ancestors(&parent);
                        None
                    }
                },
                // In doubt: the server may have done it. Look for our id, in the same session.
                (Err(Fault::Broken(_)), _) | (Ok(_), Err(Fault::Broken(_) | Fault::NoNode)) => {
                    look_up(&session, &parent, request).await?
                }
                (Err(fault), _) | (_, Err(fault)) => return Err(fault.into()),
            };
            if let Some((known, all, sent)) = known
                && let Some((mine, stat, verdict)) =
                    settle(&session, &parent, request, known, &all).await?
            {
                // Only to note who came in between.
                self.quiet
                    .is_only(request.name(), session.line(), mine.sequence);
                return Ok(Queued {
                    session,
                    claim,
                    parent,
                    mine,
                    czxid: stat.czxid,
                    verdict,
                    sent,
                    own: None,
                });
            }
        }
        Err(Error::from(Fault::NoNode))
    }

    /// Takes a place in the queue of a lock that nobody else has wanted lately: one request, and no read if that is still so. `None`: look
    /// closer. The place may have been taken, and is found by its id.
    async fn enter_alone(
        &self,
        session: &Arc<Session>,
        claim: &Arc<Claim>,
        stem: &str,
        data: &[u8],
        request: &Request,
    ) -> Result<Option<Queued>> {
        session.up().await?;
        let parent = self.lock_path(request.name());
        let sent = request.now();
        let created = session.create_place(&format!("{parent}/{stem}"), data);
        let (sequence, stat) = match created.await {
            Ok(created) => created,
            Err(Fault::NoNode | Fault::Broken(_)) => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        let Some(mine) = QueuePlace::parse(&format!("{stem}{sequence}")) else {
            return Ok(None);
        };
        let mut queued = Queued {
            session: session.clone(),
            claim: claim.clone(),
            parent,
            verdict: Verdict::Held,
            czxid: stat.czxid,
            sent,
            own: None,
            mine,
        };
        let sequence = queued.mine.sequence;
        if !self.quiet.is_only(request.name(), session.line(), sequence) {
            let all = queued.look().await?;
            if all.of(request.attempt()).count() != 1 {
                return Ok(None);
            }
        }
        Ok(Some(queued))
    }

    /// The folder and the lock's node, outermost first.
    fn ancestors(&self, parent: &str) -> Vec<String> {
        let ends = parent.match_indices('/').skip(1).map(|(at, _)| at);
        ends.chain([parent.len()])
            .filter_map(|end| parent.get(..end))
            .map(str::to_owned)
            .collect()
    }
}

type Known = (Option<(String, Stat)>, Arc<Listing>, Moment);

/// Reads the queue after the connection broke, and proves that the session lives; `None` when there is no queue.
async fn look_up(session: &Arc<Session>, parent: &str, request: &Request) -> Result<Option<Known>> {
    loop {
        session.up().await?;
        let sent = request.now();
        let proven = session.prove();
        let listed = session.queue(parent);
        match proven.await.and(listed.await) {
            Ok(all) => return Ok(Some((None, all, sent))),
            Err(Fault::NoNode) => return Ok(None),
            Err(Fault::Broken(_)) => {}
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// Finds our one place in the queue, and what it may do. The same attempt may have created several, if a reply was lost or it was asked
/// twice: the first one counts, and the others go. One of another session is not ours to keep: it ends with its session.
async fn settle(
    session: &Session,
    parent: &str,
    request: &Request,
    known: Option<(String, Stat)>,
    all: &Listing,
) -> Result<Option<(QueuePlace, Stat, Verdict)>> {
    let own: Vec<&QueuePlace> = all.of(request.attempt()).collect();
    if let ([mine], Some((node, stat))) = (own.as_slice(), known)
        && mine.node == node
    {
        let verdict = all.verdict(mine);
        return Ok(verdict.map(|verdict| ((*mine).clone(), stat, verdict)));
    }
    let path = |place: &QueuePlace| format!("{parent}/{}", place.node);
    let asked: Vec<_> = own.iter().map(|place| session.stat(&path(place))).collect();
    let mut found: Vec<(&QueuePlace, Stat)> = Vec::new();
    for (place, stat) in own.into_iter().zip(asked) {
        if let Some(stat) = stat.await? {
            found.push((place, stat));
        }
    }
    let first = found
        .iter()
        .filter(|(_, stat)| stat.owner == session.id())
        .min_by_key(|(_, stat)| stat.czxid)
        .copied();
    for (place, _) in found {
        if first.is_none_or(|(mine, _)| mine != place) {
            gone(session.delete(&path(place)).await)?;
        }
    }
    let Some((mine, stat)) = first else {
        return Ok(None);
    };
    let left: Vec<QueuePlace> = all
        .places
        .iter()
        .filter(|place| *place == mine || !place.is_of(request.attempt()))
        .cloned()
        .collect();
    Ok(verdict(mine, &left).map(|verdict| (mine.clone(), stat, verdict)))
}

/// A reader behind a writer, which may have become a reader.
pub(crate) fn may_share(mode: Mode, obstacle: &Obstacle) -> bool {
    mode == Mode::Shared && obstacle.mode == Mode::Exclusive
}

async fn state_of(
    session: &Session,
    parent: &str,
    obstacle: &Obstacle,
) -> Result<NodeState, Fault> {
    let (data, _) = session.data(&format!("{parent}/{}", obstacle.node)).await?;
    Ok(read_data(&data).0)
}

/// A node that is not there is as good as deleted.
pub(crate) fn gone(deleted: Result<(), Fault>) -> Result<()> {
    match deleted {
        Ok(()) | Err(Fault::NoNode) => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}
