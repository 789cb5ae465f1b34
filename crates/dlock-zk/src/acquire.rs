//! One attempt, and its undo.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock_core::{
    Attempt, AttemptId, Busy, Error, ErrorKind, HeldNow, Lease, Mode, Moment, Request, Result,
};

use crate::ZkBackend;
use crate::connect::{Seen, Session, Stat};
use crate::error::Fault;
use crate::queue::{Obstacle, Place, State, Verdict, node_data, node_prefix, places, read_data};

/// How often the lock's node may vanish under a new place: a container goes only when it is empty, so twice is rare.
const TRIES: usize = 10;

/// What the backend needs to find a hold again.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) sequence: i64,
    pub(crate) session: i64,
    pub(crate) label: Arc<str>,
}

/// An attempt with its place in the queue.
pub(crate) struct Queued {
    pub(crate) session: Arc<Session>,
    pub(crate) parent: String,
    pub(crate) mine: Place,
    czxid: i64,
    /// The queue as it was last read.
    pub(crate) places: Vec<Place>,
    /// When the last request that was answered was sent: the session lived then.
    pub(crate) sent: Moment,
    /// Resolves when our node is changed or gone; set while we wait.
    pub(crate) own: Option<Telling>,
}

/// A watch that is being waited for.
pub(crate) type Telling = Pin<Box<dyn Future<Output = Seen> + Send + Sync>>;

impl ZkBackend {
    pub(crate) async fn try_now(&self, request: &Request) -> Result<Attempt> {
        let mut queued = self.enter(request).await?;
        loop {
            match queued.verdict()? {
                Verdict::Held => return Ok(queued.held(request)),
                Verdict::Conflict(used) => return queued.conflict(request, used).await,
                Verdict::Wait(obstacle) if queued.may_share_with(&obstacle) => {
                    match queued.state_of(&obstacle).await {
                        Ok(State::Downgraded) => return Ok(queued.held(request)),
                        Ok(_) => break,
                        Err(Fault::NoNode) => queued.look(request).await?,
                        Err(fault) => return Err(fault.into()),
                    }
                }
                Verdict::Wait(_) | Verdict::AnyChange => break,
            }
        }
        queued.leave().await?;
        Ok(Attempt::Busy(Busy::default()))
    }

    /// Takes a place in the queue, and reads the queue, in one trip.
    pub(crate) async fn enter(&self, request: &Request) -> Result<Queued> {
        refuse_abandoned(request.attempt())?;
        let session = self.link.session().await?;
        let parent = self.lock_path(request.name());
        let prefix = format!(
            "{parent}/{}",
            node_prefix(request.attempt(), request.mode())
        );
        let data = node_data(State::Plain, request.label());
        if self.quiet.is_likely_free(request.name(), session.id())
            && let Some(queued) = self
                .enter_alone(&session, &parent, &prefix, &data, request)
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
            let listed = session.children(&parent);
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
                (Ok((sequence, stat)), Ok((children, _))) => {
                    let node = format!(
                        "{}{sequence}",
                        node_prefix(request.attempt(), request.mode())
                    );
                    Some((Some((node, stat)), children, sent))
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
            if let Some((known, children, sent)) = known {
                let found = settle(&session, &parent, request, known, &children).await?;
                if let Some((mine, stat, places)) = found {
                    // Only to note who came in between.
                    self.quiet
                        .is_only(request.name(), session.id(), mine.sequence);
                    return Ok(Queued {
                        session,
                        parent,
                        mine,
                        czxid: stat.czxid,
                        places,
                        sent,
                        own: None,
                    });
                }
            }
        }
        Err(Error::from(Fault::NoNode))
    }

    /// Takes a place in the queue of a lock that nobody else has wanted lately: one request, and no read if that is still so. `None`: look
    /// closer. The place may have been taken, and is found by its id.
    async fn enter_alone(
        &self,
        session: &Arc<Session>,
        parent: &str,
        prefix: &str,
        data: &[u8],
        request: &Request,
    ) -> Result<Option<Queued>> {
        session.up().await?;
        let sent = request.now();
        let (sequence, stat) = match session.create_place(prefix, data).await {
            Ok(created) => created,
            Err(Fault::NoNode | Fault::Broken(_)) => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        let node = format!(
            "{}{sequence}",
            node_prefix(request.attempt(), request.mode())
        );
        let Some(mine) = Place::parse(&node) else {
            return Ok(None);
        };
        let mut queued = Queued {
            session: session.clone(),
            parent: parent.to_owned(),
            places: vec![mine.clone()],
            czxid: stat.czxid,
            sent,
            own: None,
            mine,
        };
        if !self
            .quiet
            .is_only(request.name(), session.id(), queued.mine.sequence)
        {
            queued.look(request).await?;
            let own = queued
                .places
                .iter()
                .filter(|place| place.is_of(request.attempt()));
            if own.count() != 1 {
                return Ok(None);
            }
        }
        Ok(Some(queued))
    }

    /// Undoes whatever an attempt may have left: its place in the queue, whether it holds or waits.
    ///
    /// It is final. The requests of one session are carried out in the order in which they were sent; when the session moves to another
    /// connection, the server refuses what is left of the old one. So after this session's `sync` and read, a create that was
    /// under way in the same session is either seen or will never be. An earlier session is known to have ended before this one began,
    /// see [`Link::session`](crate::link::Link::session), and a create of it with it. And no new request of this
    /// attempt is made, because the attempt is known only in this process, which remembers.
    pub(crate) async fn undo(&self, request: &Request) -> Result<()> {
        remember_abandoned(request.attempt());
        let session = self.link.session().await?;
        session.up().await?;
        let parent = self.lock_path(request.name());
        let synced = session.sync();
        let listed = session.children(&parent);
        synced.await?;
        let (children, stat) = match listed.await {
            Ok(listed) => listed,
            Err(Fault::NoNode) => return Ok(()),
            Err(fault) => return Err(fault.into()),
        };
        let left: Vec<_> = places(&children)
            .into_iter()
            .filter(|place| place.is_of(request.attempt()))
            .map(|place| session.delete(&format!("{parent}/{}", place.node)))
            .collect();
        for deleted in left {
            gone(deleted.await)?;
        }
        if children.is_empty() && stat.child_changes == 0 {
            // The server leaves a container alone that never had a child. If it is in use by now, it refuses.
            let _ = session.delete(&parent).await;
        }
        Ok(())
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

type Known = (Option<(String, Stat)>, Vec<String>, Moment);

/// Reads the queue after the connection broke; `None` when our place is not in it.
async fn look_up(session: &Session, parent: &str, request: &Request) -> Result<Option<Known>> {
    loop {
        session.up().await?;
        let sent = request.now();
        let synced = session.sync();
        let listed = session.children(parent);
        match (synced.await, listed.await) {
            (Ok(()), Ok((children, _))) => return Ok(Some((None, children, sent))),
            (Ok(()), Err(Fault::NoNode)) => return Ok(None),
            (Err(Fault::Broken(_)), _) | (_, Err(Fault::Broken(_))) => {}
            (Err(fault), _) | (_, Err(fault)) => return Err(fault.into()),
        }
    }
}

/// Finds our one place among the children. The same attempt may have created several, if a reply was lost or it was asked twice: the
/// first one counts, and the others go. One of another session is not ours to keep: it ends with its session.
async fn settle(
    session: &Session,
    parent: &str,
    request: &Request,
    known: Option<(String, Stat)>,
    children: &[String],
) -> Result<Option<(Place, Stat, Vec<Place>)>> {
    let all = places(children);
    let (own, mut others): (Vec<Place>, Vec<Place>) = all
        .into_iter()
        .partition(|place| place.is_of(request.attempt()));
    if let ([mine], Some((node, stat))) = (own.as_slice(), known)
        && mine.node == node
    {
        others.push(mine.clone());
        return Ok(Some((mine.clone(), stat, others)));
    }
    let path = |place: &Place| format!("{parent}/{}", place.node);
    let asked: Vec<_> = own.iter().map(|place| session.stat(&path(place))).collect();
    let mut found: Vec<(Place, Stat)> = Vec::new();
    for (place, stat) in own.into_iter().zip(asked) {
        if let Some(stat) = stat.await? {
            found.push((place, stat));
        }
    }
    let first = found
        .iter()
        .filter(|(_, stat)| stat.owner == session.id())
        .min_by_key(|(_, stat)| stat.czxid)
        .cloned();
    for (place, _) in found {
        if first.as_ref().is_none_or(|(mine, _)| *mine != place) {
            gone(session.delete(&path(&place)).await)?;
        }
    }
    Ok(first.map(|(mine, stat)| {
        others.push(mine.clone());
        (mine, stat, others)
    }))
}

/// A node that is not there is as good as deleted.
pub(crate) fn gone(deleted: Result<(), Fault>) -> Result<()> {
    match deleted {
        Ok(()) | Err(Fault::NoNode) => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}

impl Queued {
    pub(crate) fn path_of(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }

    pub(crate) fn verdict(&self) -> Result<Verdict> {
        crate::queue::verdict(&self.mine, &self.places).ok_or_else(removed)
    }

    /// A reader behind a writer, which may have become a reader.
    pub(crate) fn may_share_with(&self, obstacle: &Obstacle) -> bool {
        self.mine.mode == Mode::Shared && obstacle.mode == Mode::Exclusive
    }

    async fn state_of(&self, obstacle: &Obstacle) -> Result<State, Fault> {
        let (data, _) = self.session.data(&self.path_of(&obstacle.node)).await?;
        Ok(read_data(&data).0)
    }

    /// Reads the queue again.
    pub(crate) async fn look(&mut self, request: &Request) -> Result<()> {
        loop {
            self.session.up().await?;
            let sent = request.now();
            match self.session.children(&self.parent).await {
                Ok((children, _)) => {
                    self.places = places(&children);
                    self.sent = sent;
                    return Ok(());
                }
                Err(Fault::Broken(_)) => {}
                Err(Fault::NoNode) => return Err(removed()),
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// The lock is ours, and the session lived when our last answered request was sent.
    pub(crate) fn held(&self, request: &Request) -> Attempt {
        let node = Node {
            path: self.path_of(&self.mine.node),
            sequence: self.mine.sequence,
            session: self.session.id(),
            label: request.label().into(),
        };
        let lease = Lease::new(request, self.sent).with_native(Arc::new(node));
        Attempt::Held(crate::fence::with_token(lease, self.czxid))
    }

    /// Gives the place back.
    pub(crate) async fn leave(&self) -> Result<()> {
        gone(self.session.delete(&self.path_of(&self.mine.node)).await)
    }

    pub(crate) async fn conflict(&self, request: &Request, used: u32) -> Result<Attempt> {
        self.leave().await?;
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "this semaphore is in use with {used} permits, and {} was asked for: everybody must give the same limit",
                request.mode()
            ),
        ))
    }
}

pub(crate) fn removed() -> Error {
    Error::new(
        ErrorKind::Store,
        "somebody deleted this attempt's node while it waited: it has to queue again",
    )
    .with_held(HeldNow::No)
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

fn refuse_abandoned(attempt: AttemptId) -> Result<()> {
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
