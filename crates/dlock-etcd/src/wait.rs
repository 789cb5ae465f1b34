//! How a waiter wakes: it watches the one entry that stands in its way ([C17](dlock_core::contract#c17)).

use std::time::Duration;

use dlock_core::backend::{AttemptId, Backoff, Lease, Outcome, Request};
use dlock_core::{Mode, Moment, Name};

use crate::acquire::{Entry, Held, busy, removed};
use crate::connect::{KeyWatch, Watching};
use crate::error::Trouble;
use crate::line::Ahead;
use crate::lookout::Post;
use crate::position::{Near, Position};
use crate::queue;
use crate::store::Store;
use crate::txn::{About, Query, Row, Step, Txn, When};
use crate::watched::{Watched, by_key};

/// What a waiter waits for.
#[derive(Debug)]
pub(crate) enum Waits {
    /// This, which was so at that revision.
    Watch(Watched, i64),
    /// One of our own who is before it.
    Line(Ahead),
}

/// What a waiter has come to know.
#[derive(Debug)]
enum Next {
    /// Where its entry stands, at that revision.
    Stands((Position, i64)),
    /// It goes on to wait, for this.
    Waits(Waits),
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// A store that cannot be asked, from the first failure on until it answers again.
#[derive(Debug)]
struct Disturbance {
    since: Option<Moment>,
    backoff: Backoff,
}

impl Disturbance {
    fn none() -> Self {
        Self {
            since: None,
            backoff: Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE),
        }
    }

    /// The store has answered: the next one is new, and has a patience of its own.
    fn is_over(&mut self) {
        self.since = None;
        self.backoff.reset();
    }

    /// When to try again; `None` when it lasts too long.
    fn goes_on(&mut self, now: Moment, patience: Duration) -> Option<Moment> {
        let since = *self.since.get_or_insert(now);
        (now.since(since) < patience).then(|| now + self.backoff.pause())
    }
}

impl Store {
    /// Waits at a place in the queue. Ends with the lock, at the deadline, or when the store is out of reach.
    pub(crate) async fn wait(
        &self,
        request: &Request,
        entry: Entry,
        mut waits: Waits,
    ) -> Result<Outcome, Trouble> {
        let mut disturbance = Disturbance::none();
        // Until it does not wait any more: those of this client who come after it may stand behind it.
        let _standing = self.lines.stand(request.name(), request.mode(), &entry);
        loop {
            let moved = async {
                match &waits {
                    Waits::Watch(watched, seen) => {
                        let moved = self.moved(request, &entry, watched, *seen, &mut disturbance);
                        moved.await.map(Next::Stands)
                    }
                    Waits::Line(ahead) => {
                        self.in_line(request, &entry, ahead, &mut disturbance).await
                    }
                }
            };
            let moved = tokio::select! {
                biased;
                moved = moved => moved,
                () = at(request, request.deadline()) => {
                    let removed = self.remove(request.attempt(), &entry.key, Some(entry.created));
                    removed.await.map_err(Trouble::in_doubt)?;
                    return Ok(busy());
                }
            };
            match moved {
                Ok(Next::Stands((Position::Holds { followed }, _))) => {
                    let lease = self.held(request, entry)?;
                    if followed {
                        self.attempts.owe_ring(lease.attempt());
                        self.ring(&lease).await;
                    }
                    return Ok(Outcome::Held(lease));
                }
                Ok(Next::Stands((Position::Behind(next), revision))) => {
                    waits = Waits::Watch(next, revision);
                    disturbance.is_over();
                }
                Ok(Next::Waits(next)) => waits = next,
                Ok(Next::Stands((Position::Gone, _))) => return Err(removed()),
                Err(trouble) if trouble.is_lease_gone() => return Err(trouble),
                Err(trouble) if !trouble.kind().is_retryable() => return Err(trouble.in_doubt()),
                Err(trouble) => {
                    // A watch ends when its server does, and the next one may have another store.
                    self.cluster.suspect();
                    // The place in the queue lives as long as the lease: a restart or an election does not cost it.
                    let again = disturbance.goes_on(request.now(), request.trip_timeout());
                    let again = again.filter(|_| !entry.session.has_ended());
                    let Some(again) = again else {
                        return Err(trouble.in_doubt());
                    };
                    tracing::debug!(name = %request.name(), why = trouble.message(), "the wait was disturbed");
                    request.clock().sleep_until(again).await;
                }
            }
        }
    }

    /// Resolves when the entry stands elsewhere than behind `watched`.
    async fn moved(
        &self,
        request: &Request,
        entry: &Entry,
        watched: &Watched,
        mut seen: i64,
        disturbance: &mut Disturbance,
    ) -> Result<(Position, i64), Trouble> {
        loop {
            self.keep_if_due(&entry.session).await?;
            let mut watch = self
                .open_watch(request.name(), entry, watched, seen)
                .await?;
            if watch.since != seen {
                // Between the look and the watch something may have happened. A server that says less than what was seen lags behind, or
                // the store was restored from an old copy: the cluster tells.
                let near = Near {
                    member: watch.member,
                    revision: watch.since,
                };
                let near = Some(near).filter(|near| near.revision > seen);
                let (place, revision) = self.elsewhere(request, entry, watched, near).await?;
                if let Some(place) = place {
                    return Ok((place, revision));
                }
                seen = seen.min(revision);
                watch.knows(seen);
                watch.looked_at(revision);
            }
            disturbance.is_over();
            let post = watched
                .sight(entry)
                .map(|sight| self.lookout.post(sight, request.now()));
            let told = self.stay(request, entry, watched, &mut watch, post.as_ref());
            if let Some(moved) = told.await? {
                return Ok(moved);
            }
        }
    }

    /// Resolves when one of our own who is before us does not wait any more, or something of the two has changed.
    async fn in_line(
        &self,
        request: &Request,
        entry: &Entry,
        ahead: &Ahead,
        disturbance: &mut Disturbance,
    ) -> Result<Next, Trouble> {
        let period = self.sessions.ttl() / 3;
        // The one ahead is a task of this process: its end is seen at once, by `ahead.left`, unless its future is never polled again. So a look at
        // the store is needed rarely, and costs little.
        let rarely = self.sessions.ttl() * 2;
        let post = self.lookout.post(ahead.sight(entry), request.now());
        loop {
            let again = request.now() + less_some(period);
            tokio::select! {
                biased;
                () = ahead.left() => break,
                () = post.changed() => {
                    let place = self.place(request, entry, None).await?;
                    return Ok(Next::Stands(place));
                }
                () = request.clock().sleep_until(again) => {
                    self.keep_if_due(&entry.session).await?;
                    let now = request.now();
                    if now.since(post.looked()) >= rarely {
                        self.look_out(now, rarely).await?;
                    }
                    disturbance.is_over();
                }
            }
        }
        let (name, mode) = (request.name(), request.mode());
        if let Some(next) = self.lines.before(name, mode, entry.created) {
            return Ok(Next::Waits(Waits::Line(next)));
        }
        if mode == Mode::Exclusive {
            // Most likely it holds now. If it does not, the watch finds that out, and then looks. It was there when our own entry came, so what
            // happened to its key before is no news.
            let watched = Watched::end_of_key(&ahead.key, ahead.created);
            return Ok(Next::Waits(Waits::Watch(watched, entry.created)));
        }
        let place = self.place(request, entry, None).await?;
        Ok(Next::Stands(place))
    }

    async fn open_watch(
        &self,
        name: &Name,
        entry: &Entry,
        watched: &Watched,
        seen: i64,
    ) -> Result<KeyWatch, Trouble> {
        let _admitted = self.crowds.admit(name).await;
        let what = Watching {
            range: &watched.range,
            puts: watched.puts(),
            own: watched.last.then_some(&entry.key),
            waits: Some(seen),
        };
        self.cluster.watch(what).await
    }

    /// Stays until the entry stands elsewhere, or, with `None`, until the watch must be opened at another server.
    async fn stay(
        &self,
        request: &Request,
        entry: &Entry,
        watched: &Watched,
        watch: &mut KeyWatch,
        post: Option<&Post>,
    ) -> Result<Option<(Position, i64)>, Trouble> {
        let period = self.sessions.ttl() / 3;
        let mut looked = request.now();
        loop {
            looked = post.map_or(looked, Post::looked);
            let look_again = looked + less_some(period);
            let near = tokio::select! {
                biased;
                event = watch.event() => {
                    let seen = event?;
                    if seen.is_anew() {
                        let near = Near { member: watch.member, revision: seen.revision() };
                        let (place, revision) = self.elsewhere(request, entry, watched, Some(near)).await?;
                        if let Some(place) = place {
                            return Ok(Some((place, revision)));
                        }
                        watch.looked_at(revision);
                        continue;
                    }
                    if watched.last && watch.in_order && !seen.is_own() {
                        // The end of our own entry would have been told before.
                        return Ok(Some((Position::Holds { followed: false }, seen.revision())));
                    }
                    // This server has seen the event, so it knows enough: what is before us can only become less.
                    Some(Near { member: watch.member, revision: seen.revision() })
                }
                () = changed(post) => None,
                () = request.clock().sleep_until(look_again) => {
                    self.keep_if_due(&entry.session).await?;
                    if self.cluster.current() != watch.member {
                        // Others were sent away from the server that serves the watch: it may be silent.
                        return Ok(None);
                    }
                    let now = request.now();
                    match post {
                        Some(post) if now.since(post.looked()) < period / 2 => continue,
                        Some(_) => {
                            self.look_out(now, period).await?;
                            continue;
                        }
                        None => looked = now,
                    }
                    None
                }
            };
            let (place, revision) = self.place(request, entry, near).await?;
            if place != Position::Behind(watched.clone()) {
                return Ok(Some((place, revision)));
            }
            watch.looked_at(revision);
        }
    }

    /// Where the entry stands if that is not behind `watched`: first by a look at the two keys that tell, whatever the length of the queue.
    async fn elsewhere(
        &self,
        request: &Request,
        entry: &Entry,
        watched: &Watched,
        near: Option<Near>,
    ) -> Result<(Option<Position>, i64), Trouble> {
        if let Some(sight) = watched.sight(entry) {
            let one = |key| Step::Get(About::Entries, Query::one(key).keys_only());
            let txn = Txn::of(sight.keys().map(one).to_vec());
            let answer = self.ask_near(txn, near).await?;
            let revision = answer.revision;
            let rows: Vec<Row> = answer.into_rows().collect();
            if sight.is_unchanged(&by_key(&rows)) {
                return Ok((None, revision));
            }
        }
        let (place, revision) = self.place(request, entry, near).await?;
        let moved = place != Position::Behind(watched.clone());
        Ok((moved.then_some(place), revision))
    }

    /// Tells the next who waits for a permit that it is the first now. If that fails, it is owed until a renewal has done it: the next one
    /// looks at this entry alone.
    pub(crate) async fn ring(&self, lease: &Lease) {
        let Some(held) = lease.native::<Held>() else {
            return;
        };
        match self.put_again(lease.attempt(), lease.mode(), held).await {
            Ok(()) => self.attempts.rung(lease.attempt()),
            Err(trouble) => {
                tracing::debug!(name = %lease.name(), why = trouble.message(), "the next waiter was not told");
            }
        }
    }

    async fn put_again(&self, attempt: AttemptId, mode: Mode, held: &Held) -> Result<(), Trouble> {
        let txn = Txn {
            when: vec![When::CreatedAt(held.key.clone(), held.created)],
            then: vec![Step::Put {
                key: held.key.clone(),
                value: queue::value(attempt, mode, &held.label),
                lease: held.lease,
            }],
            ..Txn::default()
        };
        self.cluster.txn(&txn).await.map(drop)
    }
}

/// A little less, and not the same for all waiters.
fn less_some(period: Duration) -> Duration {
    let random = uuid::Uuid::new_v4();
    let step = u32::from(random.as_bytes().first().copied().unwrap_or_default());
    period - period * step / 2048
}

/// Resolves when a look has found a change.
async fn changed(post: Option<&Post>) {
    match post {
        Some(post) => post.changed().await,
        None => std::future::pending().await,
    }
}

/// Resolves at a moment; never when there is none.
async fn at(request: &Request, moment: Option<Moment>) {
    match moment {
        Some(moment) => request.clock().sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disturbance_has_its_own_patience() {
        let patience = Duration::from_secs(5);
        let start = Moment::from_nanos(1);
        let mut disturbance = Disturbance::none();
        assert!(disturbance.goes_on(start, patience).is_some());
        assert!(disturbance.goes_on(start + patience, patience).is_none());
        disturbance.is_over();
        assert!(disturbance.goes_on(start + patience, patience).is_some());
    }
}
