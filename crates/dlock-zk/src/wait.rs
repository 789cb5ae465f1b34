//! How a waiter wakes: by a watch on the one place before it, backed by a slow look.

use std::pin::pin;
use std::time::Duration;

use dlock_core::{Attempt, Busy, Error, ErrorKind, Mode, Moment, Request, Result};

use crate::ZkBackend;
use crate::acquire::{Queued, Telling, in_order, removed};
use crate::connect::{Seen, Watch};
use crate::error::{Fault, disconnected};
use crate::queue::{Obstacle, State, Verdict, node_data, read_data};

/// A waiter reads the queue this often without being woken. Watches are reliable; this is for what nobody thought of.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Why a waiter goes on.
enum Woken {
    /// It holds.
    Held,
    /// The queue was read again.
    Look,
    /// Its time is up.
    Deadline,
}

impl ZkBackend {
    pub(crate) async fn wait(&self, request: &Request) -> Result<Attempt> {
        let mut queued = trip(request, self.enter(request)).await?;
        loop {
            let woken = match queued.verdict()? {
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
                    return Ok(Attempt::Busy(Busy::default()));
                }
            }
        }
        queued.tell_successor(request);
        Ok(queued.held(request))
    }
}

impl Queued {
    /// Waits until the place before ours is left.
    async fn wait_for(&mut self, obstacle: &Obstacle, request: &Request) -> Result<Woken> {
        request.mark_contended();
        let breaks = self.session.breaks();
        let watched = trip(request, self.watch_both(&obstacle.node, request)).await?;
        let seen = match watched {
            Err(Fault::NoNode) => Seen::Deleted,
            Err(Fault::Broken(_)) => Seen::Changed,
            Err(fault) => return Err(fault.into()),
            Ok((data, watch)) => match (read_data(&data).0, obstacle.mode) {
                (State::Downgraded, _) if self.may_share_with(obstacle) => return Ok(Woken::Held),
                // It was granted between our look at the queue and the watch.
                (State::Granted, Mode::Permit { .. }) => Seen::Changed,
                _ => match self.watch(watch, request).await? {
                    Some(seen) => seen,
                    None => return Ok(Woken::Deadline),
                },
            },
        };
        match seen {
            Seen::SessionEnded => Err(self.session.ended()),
            // Nobody is before us any more. Our own node was still there when the last one went: on one connection its watch would
            // have told first. So the lock is ours, without a further trip.
            Seen::Deleted if obstacle.last && self.is_sure(breaks, request) => Ok(Woken::Held),
            Seen::Deleted if obstacle.last => self.confirm(request).await,
            Seen::Deleted | Seen::Changed => {
                trip(request, self.look(request)).await?;
                Ok(Woken::Look)
            }
        }
    }

    /// Waits until any place is taken or left.
    async fn wait_for_any(&mut self, request: &Request) -> Result<Woken> {
        request.mark_contended();
        let sent = request.now();
        let watched = trip(request, async {
            let (children, watch) = match self.session.watch_children(&self.parent).await {
                Ok(read) => read,
                Err(fault) => return Ok(Err(fault)),
            };
            let places = crate::queue::places(&children);
            let places = in_order(&self.session, &self.parent, places).await;
            Ok(places.map(|places| (places, watch)))
        });
        match watched.await? {
            Ok((places, watch)) => {
                self.places = places;
                self.sent = sent;
                if self.verdict()? != Verdict::AnyChange {
                    return Ok(Woken::Look);
                }
                match self.watch(watch, request).await? {
                    Some(Seen::SessionEnded) => return Err(self.session.ended()),
                    Some(_) => {}
                    None => return Ok(Woken::Deadline),
                }
            }
            Err(Fault::Broken(_)) => {}
            Err(Fault::NoNode) => return Err(removed()),
            Err(fault) => return Err(fault.into()),
        }
        trip(request, self.look(request)).await?;
        Ok(Woken::Look)
    }

    /// Watches the place before ours, and our own if it is not watched yet, in one trip.
    async fn watch_both(
        &mut self,
        before: &str,
        request: &Request,
    ) -> Result<Result<(Vec<u8>, Watch), Fault>> {
        let sent = request.now();
        let path = self.path_of(&self.mine.node);
        let own = self.own.is_none().then(|| self.session.watch_data(&path));
        let before = self.session.watch_data(&self.path_of(before));
        let own = match own {
            Some(own) => Some(own.await),
            None => None,
        };
        let before = before.await;
        match own {
            None | Some(Err(Fault::Broken(_))) => {}
            Some(Ok((_, watch))) => self.own = Some(Box::pin(watch.seen())),
            Some(Err(Fault::NoNode)) => return Err(removed()),
            Some(Err(fault)) => return Err(fault.into()),
        }
        if before.is_ok() {
            self.sent = sent;
        }
        Ok(before)
    }

    /// Whether the watch on our own node has been good all the time, and the session is known to have lived a moment ago.
    fn is_sure(&self, breaks: u64, request: &Request) -> bool {
        self.own.is_some()
            && self.session.breaks() == breaks
            && request.now().since(self.sent) < self.session.ttl() / 2
    }

    /// One trip shows that the session lives, and that our place was not taken away.
    async fn confirm(&mut self, request: &Request) -> Result<Woken> {
        let asked = async {
            loop {
                match self.beat(request).await? {
                    Some(sent) => return Ok(sent),
                    None => continue,
                }
            }
        };
        self.sent = trip(request, asked).await?;
        Ok(Woken::Held)
    }

    /// Asks for our own node; `None` when the connection broke over it.
    async fn beat(&self, request: &Request) -> Result<Option<Moment>> {
        self.session.up().await?;
        let sent = request.now();
        match self.session.stat(&self.path_of(&self.mine.node)).await {
            Ok(Some(_)) => Ok(Some(sent)),
            Ok(None) => Err(removed()),
            Err(Fault::Broken(_)) => Ok(None),
            Err(fault) => Err(fault.into()),
        }
    }

    /// What the watch has seen; `None` at the caller's deadline. From time to time it is as if something had changed.
    ///
    /// A trip every quarter of the session's time keeps it known that the session lives: the hold counts from there.
    async fn watch(&mut self, watch: Watch, request: &Request) -> Result<Option<Seen>> {
        let clock = request.clock().clone();
        let look_at = request.now() + LOOK_AGAIN;
        let until = request
            .deadline()
            .map_or(look_at, |deadline| deadline.min(look_at));
        let mut seen = pin!(watch.seen());
        let mut end = clock.sleep_until(until);
        loop {
            let mut own = self.own.take();
            let beat = async {
                clock.sleep_until(self.sent + self.session.ttl() / 4).await;
                self.beat(request).await
            };
            let beat = tokio::select! {
                biased;
                // First, because what it tells came first.
                changed = told(&mut own) => return match changed {
                    Seen::Deleted => Err(removed()),
                    other => Ok(Some(other)),
                },
                seen = &mut seen => {
                    self.own = own;
                    return Ok(Some(seen));
                }
                error = self.cut_off(request) => return Err(error),
                () = &mut end => {
                    self.own = own;
                    let deadline = request.deadline().is_some_and(|deadline| request.now() >= deadline);
                    return Ok((!deadline).then_some(Seen::Changed));
                }
                beat = beat => beat?,
            };
            self.own = own;
            self.sent = beat.unwrap_or(self.sent);
        }
    }

    /// Resolves when the session has ended, or was not connected for as long as a trip may take. Shorter than that, the place in
    /// the queue and the watch outlast it.
    async fn cut_off(&self, request: &Request) -> Error {
        loop {
            self.session.down().await;
            let until = request.now() + request.trip_timeout();
            tokio::select! {
                biased;
                up = self.session.up() => if let Err(error) = up {
                    return error;
                },
                () = request.clock().sleep_until(until) => return disconnected(),
            }
        }
    }

    /// A permit that was granted after a wait tells whoever waits behind it, who watches this node. Nobody waits for the answer: if it
    /// gets lost, the successor looks by itself after a while.
    fn tell_successor(&mut self, request: &Request) {
        // Or it would tell us.
        self.own = None;
        if matches!(self.mine.mode, Mode::Permit { .. }) && request.is_contended() {
            let data = node_data(State::Granted, request.label());
            drop(self.session.set_data(&self.path_of(&self.mine.node), &data));
        }
    }
}

/// What a watch tells, if there is one.
async fn told(watch: &mut Option<Telling>) -> Seen {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}

/// One trip of a waiter, within its time-out.
async fn trip<T>(request: &Request, trip: impl Future<Output = Result<T>>) -> Result<T> {
    let limit = request.trip_timeout();
    tokio::select! {
        biased;
        answer = trip => answer,
        () = request.clock().sleep_until(request.now() + limit) => Err(Error::new(
            ErrorKind::TimedOut,
            format!("no answer within {limit:?}: is ZooKeeper alive and reachable?"),
        )),
    }
}
