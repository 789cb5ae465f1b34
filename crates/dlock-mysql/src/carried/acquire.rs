//! One attempt, until the server has granted the lock or others have it.

use std::time::Duration;

use dlock_core::backend::{Busy, Outcome, Request};
use dlock_core::{ErrorKind, kit};
use tokio::sync::OwnedSemaphorePermit;

use super::call_sign::CallSign;
use super::grab::Grab;
use super::granted::{Granted, Next, lease};
use super::kind::{MARK_WAIT, NOW, Proof};
use super::mark::{HoldKey, MarkPeek};
use super::take::Take;
use super::wait::Turn;
use super::{AttemptState, ConnectionLocks, Hold, within};
use crate::connect::Connection;
use crate::error::Trouble;

/// The answer to the first question of an attempt.
enum First {
    /// The lock and its mark are ours.
    Held(HoldKey),
    Grab(Grab),
    /// It did not try, but stood in line, and has the lock.
    Waited(Turn),
}

impl ConnectionLocks {
    pub(super) async fn try_acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        self.attempt(request, false).await
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        self.attempt(request, true).await
    }

    async fn attempt(&self, request: &Request, wait: bool) -> Result<Outcome, Trouble> {
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
                match self.has_waited(&mut granted, turn).await? {
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

    pub(super) fn limit(&self, request: &Request) -> Duration {
        request.trip_timeout().min(self.config.answer_timeout)
    }

    /// For a change of the mark. Whoever waits has the lock by then, and would lose it and its turn by giving up before the server does, which waits
    /// for the row of a mark whose release is not committed yet. A try has no longer than it has for any answer.
    pub(super) fn limit_of_a_change(&self, request: &Request, wait: bool) -> Duration {
        let limit = self.limit(request);
        if wait { limit.max(MARK_WAIT) } else { limit }
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
