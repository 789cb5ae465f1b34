//! One attempt.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Moment, kit};
use tokio::sync::OwnedSemaphorePermit;

use super::call_sign::CallSign;
use super::grab::Grab;
use super::kind::{NOW, PlaceOfWaiter, Proof};
use super::mark::{HoldKey, MarkPeek, MarkRow, MarkVersion, claim_args, version_args};
use super::take::Take;
use super::wait::Turn;
use super::{AttemptState, ConnectionLocks, Hold, HoldConnection, within};
use crate::connect::Connection;
use crate::error::Trouble;
use crate::fence::first_of;

/// How often a mark that others change is looked at. They have lost the lock, so they are few.
const LOOKS: usize = 16;

/// An attempt that has the lock at the server, and is not a hold yet.
struct Granted<'a> {
    request: &'a Request,
    connection: Connection,
    call_sign: CallSign,
    /// When the request was sent that proved, last, that the connection has the lock.
    proved: Moment,
    /// Where it stands among those who wait.
    waits: Option<PlaceOfWaiter>,
}

/// The answer to the first question of an attempt.
enum First {
    /// The lock and its mark are ours.
    Held(HoldKey),
    Grab(Grab),
    /// It did not try, but stood in line, and has the lock.
    Waited(Turn),
}

/// What to do about a mark.
enum Next {
    Claim(MarkVersion),
    Held(HoldKey),
    /// Its owner may not know yet that it has lost the lock.
    Wait(MarkRow),
    /// It has changed since the look: a release was not committed yet.
    LookAgain,
    /// Somebody has its row, and keeps it: a release, for instance, whose commit takes long.
    RowIsBusy,
}

/// How many rows a statement has changed; `None` when it waited in vain for one, and did nothing.
fn changed(answer: Result<u64, Trouble>) -> Result<Option<u64>, Trouble> {
    match answer {
        Ok(count) => Ok(Some(count)),
        Err(trouble) if trouble.contended => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

impl ConnectionLocks {
    pub(super) async fn take(&self, request: &Request, wait: bool) -> Result<Outcome, Trouble> {
        let attempt = request.attempt();
        kit::refuse_abandoned(attempt)?;
        if let Some(hold) = self.held(attempt) {
            return self.again(request, &hold).await;
        }
        let Ok(permit) = self.sessions.clone().try_acquire_owned() else {
            return Err(self.full());
        };
        let outcome = self.ask(request, permit, wait).await;
        let nothing_left = match &outcome {
            Ok(Outcome::Held(_)) => false,
            Ok(Outcome::Busy(_)) => true,
            Err(trouble) => !trouble.is_sent(),
        };
        if nothing_left {
            self.attempts().remove(&attempt);
        }
        outcome
    }

    async fn ask(
        &self,
        request: &Request,
        permit: OwnedSemaphorePermit,
        wait: bool,
    ) -> Result<Outcome, Trouble> {
        let limit = self.limit(request);
        let (mut granted, first) = self.first_request(request, wait).await?;
        let turn = match first {
            First::Held(key) => return Ok(self.begin_hold(granted, key, permit)),
            First::Waited(turn) => Ok(turn),
            First::Grab(Grab::Granted(peek)) => Err(peek),
            First::Grab(Grab::Busy) if !wait => {
                self.put_away(granted.connection, request).await;
                return Ok(Outcome::Busy(Busy::default()));
            }
            First::Grab(Grab::Busy) => {
                request.mark_contended();
                let queue = self.queue(request, &mut granted.connection, granted.call_sign, limit);
                Ok(queue.await?)
            }
        };
        let version = match turn {
            Ok(turn) => {
                granted.waits = turn.place;
                match self.has_waited(&mut granted, turn, limit).await? {
                    Some(Next::Held(key)) => return Ok(self.begin_hold(granted, key, permit)),
                    Some(Next::Claim(version)) => Some(version),
                    _ => None,
                }
            }
            Err(MarkPeek::Free(version)) => Some(version),
            Err(MarkPeek::Owned) => None,
            Err(MarkPeek::NeverUsed) => {
                let first_use = self.kind.first_use(&self.shared, request.name(), limit);
                first_use.await.map_err(Trouble::in_doubt)?;
                None
            }
        };
        self.settle(granted, version, permit, wait)
            .await
            // The server may have made it a hold, whatever failed then.
            .map_err(Trouble::in_doubt)
    }

    /// Asks for the lock, on a connection of its own for this attempt: without waiting, unless it may wait and others had the lock just now.
    async fn first_request<'a>(
        &self,
        request: &'a Request,
        wait: bool,
    ) -> Result<(Granted<'a>, First), Trouble> {
        let (mut connection, mut is_spare) = self.connection().await?;
        loop {
            let call_sign = CallSign::of(&connection);
            // From here on `abandon` finds the connection, also when this future is dropped. An `abandon` that came before this found none, but
            // has noted the attempt, which is therefore refused here.
            {
                let mut attempts = self.attempts();
                kit::refuse_abandoned(request.attempt())?;
                attempts.insert(request.attempt(), AttemptState::Asking(call_sign));
            }
            let (limit, proved) = (self.limit(request), request.now());
            let first = async {
                if wait && self.lately_busy.has(request.name()) {
                    let turn = self.queue(request, &mut connection, call_sign, limit);
                    return Ok(First::Waited(turn.await?));
                }
                within(limit, self.first(request, &mut connection, limit)).await
            };
            match first.await {
                Ok(first) => {
                    let granted = Granted {
                        request,
                        connection,
                        call_sign,
                        proved,
                        waits: None,
                    };
                    return Ok((granted, first));
                }
                // It may have died while nobody used it, and must not be in our own way. Or it died with the answer: then the mark names it.
                Err(trouble) if is_spare && trouble.broken => {
                    let begins_anew = async {
                        self.end(call_sign, limit).await?;
                        self.clear_mark_of(request, call_sign, limit).await?;
                        Connection::open_carrying(&self.config, &self.setup).await
                    };
                    connection = begins_anew.await.map_err(Trouble::in_doubt)?;
                    is_spare = false;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn first(
        &self,
        request: &Request,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<First, Trouble> {
        let (kind, name) = (&self.kind, request.name());
        let valid = self.config.session_validity;
        match kind.take(connection, request, valid).await? {
            Take::Held(key) => return Ok(First::Held(key)),
            Take::Busy => return Ok(First::Grab(Grab::Busy)),
            Take::LongWay => {}
            // The lock is asked for once more: one that is taken twice would not be free after one release.
            Take::RowIsBusy => kind.give_up(connection, name).await?,
        }
        let grab = kind.grab(connection, &self.shared, name, NOW, limit);
        Ok(First::Grab(grab.await?))
    }

    /// The shortest way to the mark for one that has waited, and was granted the lock; `None` when it has to look at it.
    async fn has_waited(
        &self,
        granted: &mut Granted<'_>,
        turn: Turn,
        limit: Duration,
    ) -> Result<Option<Next>, Trouble> {
        let (request, valid) = (granted.request, self.config.session_validity);
        let sent = request.now();
        let take = self.kind.take(&mut granted.connection, request, valid);
        let taken = within(limit, take).await.map_err(Trouble::in_doubt)?;
        match taken {
            Take::Held(key) => {
                granted.proved = sent;
                return Ok(Some(Next::Held(key)));
            }
            // The lock stays with this connection, to which the server has granted it, while the mark is looked at.
            Take::RowIsBusy => return Ok(None),
            Take::Busy | Take::LongWay => {}
        }
        // The mark may have been read when the wait began, but a claim compares its version. The hold is valid from the sending of the wish
        // that was granted: after a long wait there would be little left of it, and then a look is a newer proof.
        match turn.peek {
            MarkPeek::Free(version) if request.now() < turn.asked + valid / 4 => {
                granted.proved = turn.asked;
                Ok(Some(Next::Claim(version)))
            }
            _ => Ok(None),
        }
    }

    /// Makes a hold of a lock that the server has granted.
    async fn settle(
        &self,
        mut granted: Granted<'_>,
        mut version: Option<MarkVersion>,
        permit: OwnedSemaphorePermit,
        wait: bool,
    ) -> Result<Outcome, Trouble> {
        let limit = self.limit(granted.request);
        let mut waited_for = None;
        let mut looks = 0;
        while looks < LOOKS {
            looks += 1;
            let next = match version.take() {
                Some(version) => Next::Claim(version),
                None => self.look(&mut granted, waited_for.take()).await?,
            };
            match next {
                Next::Held(key) => return Ok(self.begin_hold(granted, key, permit)),
                Next::Claim(version) => {
                    let attempt = granted.request.attempt();
                    let valid = self.config.session_validity;
                    let label = granted.request.label();
                    let args =
                        claim_args(&attempt, valid, granted.call_sign.number, label, version);
                    let (connection, sql) = (&mut granted.connection, &self.kind.marks.claim);
                    let claim = self.kind.write(connection, &self.shared, sql, &args, limit);
                    match changed(within(limit, claim).await)? {
                        Some(1) => {
                            let key = version.claimed(attempt);
                            return Ok(self.begin_hold(granted, key, permit));
                        }
                        // A late word of somebody who has lost the lock, or our own that was sent twice: look again.
                        Some(_) => {}
                        None if wait => {
                            granted.request.mark_contended();
                            looks -= 1;
                        }
                        None => return self.give_back(granted, limit, Busy::default()).await,
                    }
                }
                Next::LookAgain => {}
                // We have the lock, so whoever has the row is on the way out, or an administrator. A look is as long as the server waits for a row.
                Next::RowIsBusy if wait => {
                    granted.request.mark_contended();
                    looks -= 1;
                }
                Next::RowIsBusy => return self.give_back(granted, limit, Busy::default()).await,
                Next::Wait(seen) => {
                    granted.request.mark_contended();
                    // No longer than that, also when the server's clock was set back.
                    let left = seen.left.map_or(seen.valid, |left| left.min(seen.valid));
                    if !wait {
                        let retry_after = Some(left);
                        return self.give_back(granted, limit, Busy { retry_after }).await;
                    }
                    self.sit_out(&mut granted.connection, left, limit).await?;
                    waited_for = Some(seen);
                }
            }
        }
        Err(Trouble::unexpected_reply(
            "that the lock's mark changed again and again",
        ))
    }

    /// Lets go of a lock that the server has granted to a try, which may not wait for what is in the way of the mark.
    async fn give_back(
        &self,
        mut granted: Granted<'_>,
        limit: Duration,
        busy: Busy,
    ) -> Result<Outcome, Trouble> {
        let name = granted.request.name();
        within(limit, self.kind.give_up(&mut granted.connection, name)).await?;
        self.keep(granted.connection);
        Ok(Outcome::Busy(busy))
    }

    /// Reads the mark, and begins to count the time of an owner that has lost the lock.
    async fn look(
        &self,
        granted: &mut Granted<'_>,
        waited_for: Option<MarkRow>,
    ) -> Result<Next, Trouble> {
        let limit = self.limit(granted.request);
        let proved = granted.request.now();
        let (connection, name) = (&mut granted.connection, granted.request.name());
        let seen = within(limit, self.kind.look(connection, &self.shared, name, limit)).await?;
        granted.proved = proved;
        if seen.is_free() {
            return Ok(Next::Claim(seen.version));
        }
        if seen.is_of(granted.request.attempt()) {
            return Ok(Next::Held(HoldKey {
                attempt: granted.request.attempt(),
                fence: seen.fence(),
            }));
        }
        let is_over = seen.left.is_some_and(|left| left.is_zero())
            || waited_for.is_some_and(|before| before.is_unchanged(&seen));
        if is_over {
            return Ok(Next::Claim(seen.version));
        }
        if seen.left.is_none() {
            let args = version_args(seen.version);
            let sql = &self.kind.marks.dead;
            let count = self.kind.write(connection, &self.shared, sql, &args, limit);
            match changed(within(limit, count).await)? {
                Some(0) => return Ok(Next::LookAgain),
                Some(_) => {}
                None => return Ok(Next::RowIsBusy),
            }
        }
        Ok(Next::Wait(seen))
    }

    fn begin_hold(
        &self,
        granted: Granted<'_>,
        key: HoldKey,
        permit: OwnedSemaphorePermit,
    ) -> Outcome {
        let lease = lease(granted.request, granted.proved, key);
        let hold = Arc::new(Hold {
            carried_by: tokio::sync::Mutex::new(HoldConnection {
                connection: granted.connection,
                call_sign: granted.call_sign,
            }),
            key,
            waited: granted.waits,
            opened_as: granted.call_sign.connection,
            _permit: permit,
        });
        self.attempts()
            .insert(granted.request.attempt(), AttemptState::Holding(hold));
        Outcome::Held(lease)
    }

    /// The request was sent twice: it is one hold.
    async fn again(&self, request: &Request, hold: &Hold) -> Result<Outcome, Trouble> {
        let proved = request.now();
        let mut carried_by = hold.carried_by.lock().await;
        let held = lease(request, proved, hold.key);
        let proof = self.kind.prove(&mut carried_by.connection, &held, hold.key);
        match within(self.limit(request), proof).await? {
            Proof::Holds => Ok(Outcome::Held(held)),
            _ => Err(Trouble::gone()),
        }
    }

    fn limit(&self, request: &Request) -> Duration {
        request.trip_timeout().min(self.config.answer_timeout)
    }

    fn full(&self) -> Trouble {
        Trouble::new(
            ErrorKind::Store,
            format!(
                "all {} sessions of this client are taken: each holder and each waiter of mode={} needs a connection of its \
                 own. Raise max_sessions, or use mode=lease",
                self.config.max_sessions, self.config.mode
            ),
        )
        .unsent()
    }
}

fn lease(request: &Request, proved: Moment, key: HoldKey) -> Lease {
    Lease::new(request, proved).with_token(first_of(key.fence))
}
