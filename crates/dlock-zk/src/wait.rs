//! How a waiter wakes: by a watch on the one place before it, backed by a slow look at that place and its own.
//!
//! A waiter has its place as long as its session lives, whatever happens to the connection meanwhile: places and watches outlast it. That
//! the session lives is proven once for all waiters of a client, see [`Session::lived_since`](crate::connect::Session::lived_since).

use std::pin::pin;
use std::time::Duration;

use dlock_core::backend::{Busy, Outcome, Request};
use dlock_core::{Error, ErrorKind, Mode, Moment, Result};
use futures::FutureExt;

use crate::ZkBackend;
use crate::acquire::{Queued, Telling, may_share, removed};
use crate::connect::{NodeWatch, Seen, in_order};
use crate::error::{Fault, disconnected};
use crate::queue::{NodeState, Obstacle, Verdict, node_data, read_data, verdict};

/// A waiter looks at its place and the one before it about this often without being woken. Watches are reliable; this is for what
/// nobody thought of.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Why a waiter goes on.
enum Woken {
    /// It holds.
    Held,
    /// What it knows of the queue may have changed.
    Look,
    /// Its time is up.
    Deadline,
}

impl ZkBackend {
    pub(crate) async fn acquire(&self, request: &Request) -> Result<Outcome> {
        let mut queued = self.take_place(request).await?;
        loop {
            let woken = match queued.verdict.clone() {
                Verdict::Held => break,
                Verdict::Conflict(used) => {
                    return trip(request, queued.conflict(request, used)).await;
                }
                Verdict::Wait(obstacle) => queued.wait_for(&obstacle, request).await?,
                Verdict::AnyChange => queued.wait_for_any(request).await?,
            };
            match woken {
                Woken::Held => break,
                Woken::Look => {}
                Woken::Deadline => {
                    trip(request, queued.leave()).await?;
                    return Ok(Outcome::Busy(Busy::default()));
                }
            }
        }
        if !queued.is_recent(request) {
            queued.confirm(request).await?;
        }
        queued.tell_successor(request);
        queued.held(request)
    }

    /// Takes a place in the queue, in one trip, when it is this one's turn to ask.
    async fn take_place(&self, request: &Request) -> Result<Queued> {
        let limit = request.trip_timeout();
        let Some(admitted) = self.crowd.admit(request, limit).await else {
            return Err(silent(limit));
        };
        let queued = trip(request, self.enter(request, false)).await?;
        admitted.was_answered();
        Ok(queued)
    }
}

impl Queued {
    /// Waits until the place before ours is left.
    async fn wait_for(&mut self, obstacle: &Obstacle, request: &Request) -> Result<Woken> {
        request.mark_contended();
        let breaks = self.session.breaks();
        let end = self.end();
        let watched = by(request, end, self.watch_both(&obstacle.node)).await?;
        let seen = match watched {
            Err(Fault::NoNode) => Seen::Deleted,
            // Nothing is known of the queue that was not known before: watch again.
            Err(Fault::Broken(_)) => return Ok(Woken::Look),
            Err(fault) => return Err(fault.into()),
            Ok((data, watch)) => match self.read_state(obstacle, &data) {
                Some(Woken::Held) => return self.hold_if_there(request).await,
                Some(woken) => return self.woken(woken, request).await,
                None => match self.watch(watch, Some(obstacle), request).await? {
                    Some(seen) => seen,
                    None => return Ok(Woken::Deadline),
                },
            },
        };
        match seen {
            Seen::SessionEnded => Err(self.session.ended()),
            // Nobody is before us any more. Our own node was still there when the last one went: on one connection its watch would
            // have told first. So the lock is ours, without a further trip.
            Seen::Deleted if obstacle.last && self.is_sure(breaks, request) => {
                self.hold_if_there(request).await
            }
            Seen::Deleted if obstacle.last => {
                self.confirm(request).await?;
                Ok(Woken::Held)
            }
            Seen::Deleted | Seen::Changed => self.woken(Woken::Look, request).await,
        }
    }

    /// What the state of the place before ours means for us; `None`: wait.
    fn read_state(&self, obstacle: &Obstacle, data: &[u8]) -> Option<Woken> {
        match (read_data(data).0, obstacle.mode) {
            (NodeState::Downgraded, _) if may_share(self.mine.mode, obstacle) => Some(Woken::Held),
            // It was granted between our look at the queue and the watch.
            (NodeState::Granted, Mode::Permit { .. }) => Some(Woken::Look),
            _ => None,
        }
    }

    /// Reads the queue if that is what a waiter was woken for.
    async fn woken(&mut self, woken: Woken, request: &Request) -> Result<Woken> {
        if matches!(woken, Woken::Look) {
            by(request, self.end(), self.look()).await?;
        }
        Ok(woken)
    }

    /// Waits until any place is taken or left.
    async fn wait_for_any(&mut self, request: &Request) -> Result<Woken> {
        request.mark_contended();
        let watched = by(request, self.end(), async {
            self.session.up().await?;
            let (children, watch) = match self.session.watch_children(&self.parent).await {
                Ok(read) => read,
                Err(fault) => return Ok(Err(fault)),
            };
            let places = in_order(&self.session, &self.parent, &children).await;
            Ok(places.map(|places| (places, watch)))
        });
        match watched.await? {
            Ok((places, watch)) => {
                self.judge(verdict(&self.mine, &places))?;
                if self.verdict != Verdict::AnyChange {
                    return Ok(Woken::Look);
                }
                match self.watch(watch, None, request).await? {
                    Some(Seen::SessionEnded) => return Err(self.session.ended()),
                    Some(_) => {}
                    None => return Ok(Woken::Deadline),
                }
            }
            Err(Fault::Broken(_)) => {}
            Err(Fault::NoNode) => return Err(removed()),
            Err(fault) => return Err(fault.into()),
        }
        self.woken(Woken::Look, request).await
    }

    /// Watches the place before ours, and our own if it is not watched yet, in one trip.
    async fn watch_both(&mut self, before: &str) -> Result<Result<(Vec<u8>, NodeWatch), Fault>> {
        self.session.up().await?;
        let path = self.path_of(&self.mine.node);
        let own = self.own.is_none().then(|| self.session.watch_data(&path));
        let before = self.session.watch_data(&self.path_of(before));
        let own = match own {
            Some(own) => Some(own.await),
            None => None,
        };
        let before = before.await;
        match own {
            None => {}
            Some(Ok((_, watch))) => self.own = Some(Box::pin(watch.seen())),
            Some(Err(Fault::NoNode)) => return Err(removed()),
            Some(Err(Fault::Broken(cause))) => return Ok(Err(Fault::Broken(cause))),
            Some(Err(fault)) => return Err(fault.into()),
        }
        Ok(before)
    }

    /// Whether the session is known to have lived a moment ago, so that a hold that counts from there is worth something.
    fn is_recent(&self, request: &Request) -> bool {
        request.now().since(self.sent) < self.session.ttl() / 2
    }

    /// Whether the watch on our own node has been good all the time, and the session is known to have lived a moment ago.
    ///
    /// After a reconnect, events come in no order: that of the place before ours may come before the one of our own.
    fn is_sure(&self, breaks: u64, request: &Request) -> bool {
        self.own.is_some() && self.session.breaks() == breaks && self.is_recent(request)
    }

    /// Nobody is in the way of our node: it holds, if it is there.
    ///
    /// The watch on it may have been set for one who was before us earlier, and have fired since: when somebody deletes our node and then the last one before us,
    /// after we have looked and before we watch that one, the read of that one says that it is gone, and our own watch has told already, but was not listened to.
    async fn hold_if_there(&mut self, request: &Request) -> Result<Woken> {
        // Without tokio's budget, by which a task that has done much may be told that nothing has come though it has.
        let own = self.own.as_mut();
        let told = own.and_then(|own| tokio::task::unconstrained(own).now_or_never());
        match told {
            None => {}
            Some(Seen::Deleted) => return Err(removed()),
            Some(Seen::SessionEnded) => return Err(self.session.ended()),
            Some(Seen::Changed) => {
                self.own = None;
                self.confirm(request).await?;
            }
        }
        Ok(Woken::Held)
    }

    /// When a session that was not heard of since [`sent`](Queued::sent) has ended, and our place with it.
    fn end(&self) -> Moment {
        self.sent + self.session.ttl()
    }

    /// One trip to a majority shows that the session lives, and that our place was not taken away.
    async fn confirm(&mut self, request: &Request) -> Result<()> {
        let path = self.path_of(&self.mine.node);
        let session = self.session.clone();
        let asked = async {
            loop {
                session.up().await?;
                let sent = request.now();
                let proven = session.prove();
                let stat = session.stat(&path);
                match (proven.await, stat.await) {
                    (Ok(()), Ok(Some(_))) => return Ok(sent),
                    (Ok(()), Ok(None)) => return Err(removed()),
                    (Err(Fault::Broken(_)), _) | (_, Err(Fault::Broken(_))) => {}
                    (Err(fault), _) | (_, Err(fault)) => return Err(fault.into()),
                }
            }
        };
        self.sent = by(request, self.end(), asked).await?;
        Ok(())
    }

    /// Looks at our own place and the one before it; what a watch on that one should have told, if anything.
    async fn glance(&self, obstacle: &Obstacle) -> Result<Option<Seen>> {
        self.session.up().await?;
        let own = self.session.stat(&self.path_of(&self.mine.node));
        let before = self.session.data(&self.path_of(&obstacle.node));
        match own.await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(removed()),
            Err(Fault::Broken(_)) => return Ok(None),
            Err(fault) => return Err(fault.into()),
        }
        match before.await {
            Ok((data, _)) => Ok(self.read_state(obstacle, &data).map(|_| Seen::Changed)),
            Err(Fault::NoNode) => Ok(Some(Seen::Deleted)),
            Err(Fault::Broken(_)) => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }

    /// What the watch has seen; `None` at the caller's deadline.
    ///
    /// Meanwhile it is proven, every quarter of the session's time, that the session lives: a hold counts from there. A session that
    /// could not be heard of for its whole time is given up, and the place with it, but not before.
    async fn watch(
        &mut self,
        watch: NodeWatch,
        obstacle: Option<&Obstacle>,
        request: &Request,
    ) -> Result<Option<Seen>> {
        let clock = request.clock().clone();
        let mut seen = pin!(watch.seen());
        let mut deadline = clock.sleep_until(request.deadline().unwrap_or(Moment::NEVER));
        let mut look_at = request.now() + look_after(request);
        loop {
            let mut own = self.own.take();
            let alive_at = self.sent + self.session.ttl() / 4;
            let beat = async {
                clock.sleep_until(alive_at).await;
                self.session.lived_since(alive_at, request).await
            };
            let look = async {
                clock.sleep_until(look_at).await;
                match obstacle {
                    Some(obstacle) => self.glance(obstacle).await,
                    None => Ok(Some(Seen::Changed)),
                }
            };
            tokio::select! {
                biased;
                // Our own node's watch comes first. If our node was removed before the obstacle was, both have fired by now, and whoever took the
                // obstacle's end for a grant would hold nothing.
                changed = told(&mut own) => return match changed {
                    Seen::Deleted => Err(removed()),
                    other => Ok(Some(other)),
                },
                seen = &mut seen => {
                    self.own = own;
                    return Ok(Some(seen));
                }
                () = &mut deadline => return Ok(None),
                () = clock.sleep_until(self.end()) => return Err(disconnected()),
                lived = beat => self.sent = lived?,
                glanced = look => {
                    if let Some(seen) = glanced? {
                        self.own = own;
                        return Ok(Some(seen));
                    }
                    look_at = request.now() + look_after(request);
                }
            }
            self.own = own;
        }
    }

    /// Tells whoever waits behind a permit that it was granted; the successor watches this node's data, and then looks at the queue.
    ///
    /// The future is dropped, which takes nothing back: the request is on its way. Should it get lost, the first renewal of the hold
    /// tells again, and a release tells as well.
    fn tell_successor(&mut self, request: &Request) {
        // The watch on our own node is given up first: the write below changes that node, and would wake it.
        self.own = None;
        if self.tells(request) {
            let data = node_data(NodeState::Granted, request.label());
            drop(self.session.set_data(&self.path_of(&self.mine.node), &data));
        }
    }
}

/// Between three quarters and five quarters of [`LOOK_AGAIN`], by the attempt's id: those who came together do not look together.
fn look_after(request: &Request) -> Duration {
    let spread = LOOK_AGAIN / 2;
    let at = request.attempt().as_uuid().as_u128() % spread.as_millis().max(1);
    LOOK_AGAIN * 3 / 4 + Duration::from_millis(at as u64)
}

/// What a watch tells, if there is one.
async fn told(watch: &mut Option<Telling>) -> Seen {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}

/// One trip of an attempt that has no place yet, within its time-out.
async fn trip<T>(request: &Request, trip: impl Future<Output = Result<T>>) -> Result<T> {
    let limit = request.trip_timeout();
    tokio::select! {
        biased;
        answer = trip => answer,
        () = request.clock().sleep_until(request.now() + limit) => Err(silent(limit)),
    }
}

fn silent(limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("no answer within {limit:?}: is ZooKeeper alive and reachable?"),
    )
}

/// What an attempt with a place asks, as long as the place can be there.
async fn by<T>(
    request: &Request,
    end: Moment,
    trips: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        answer = trips => answer,
        () = request.clock().sleep_until(end) => Err(disconnected()),
    }
}
