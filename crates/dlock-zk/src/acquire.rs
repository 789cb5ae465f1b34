//! One attempt, and its undo.

mod queued;
mod undo;

use std::sync::Arc;

use dlock_core::{Attempt, Busy, Error, Moment, Request, Result};

pub(crate) use self::queued::{Node, Queued, Telling, removed};
use self::undo::refuse_abandoned;
use crate::ZkBackend;
use crate::connect::{Session, Stat};
use crate::error::Fault;
use crate::queue::{Place, State, Verdict, node_data, node_prefix, places};

/// How often the lock's node may vanish under a new place: a container goes only when it is empty, so twice is rare.
const TRIES: usize = 10;

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
        let others = in_order(session, parent, others).await?;
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
    let Some((mine, stat)) = first else {
        return Ok(None);
    };
    others.push(mine.clone());
    let others = in_order(session, parent, others).await?;
    Ok(Some((mine, stat, others)))
}

/// A queue in which the numbers do not tell the order gets the transactions that do, in one trip. What is gone by then is left out.
pub(crate) async fn in_order(
    session: &Session,
    parent: &str,
    places: Vec<Place>,
) -> Result<Vec<Place>, Fault> {
    if !places.iter().any(Place::is_worn_out) {
        return Ok(places);
    }
    let asked: Vec<_> = places
        .iter()
        .map(|place| session.stat(&format!("{parent}/{}", place.node)))
        .collect();
    let mut known = Vec::with_capacity(places.len());
    for (place, stat) in places.into_iter().zip(asked) {
        if let Some(stat) = stat.await? {
            let czxid = Some(stat.czxid);
            known.push(Place { czxid, ..place });
        }
    }
    Ok(known)
}

/// A node that is not there is as good as deleted.
pub(crate) fn gone(deleted: Result<(), Fault>) -> Result<()> {
    match deleted {
        Ok(()) | Err(Fault::NoNode) => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}
