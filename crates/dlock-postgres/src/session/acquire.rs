//! One attempt.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{AttemptId, Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Mode, Moment, kit};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::types::Type;

use super::connection::Carrier;
use super::{AttemptState, CarriedBy, Hold, SessionLocks, within};
use crate::connect::Arg;
use crate::error::Trouble;
use crate::fence;
use crate::key::micros;

/// How often a mark that others change is looked at. They have lost the lock, so they are few.
const LOOKS: usize = 16;

/// How often a claim is made again that the server has undone for the sake of another transaction.
const UNDONE: usize = 3;

/// What a claim was answered.
enum ClaimReply {
    Holds(i64),
    Busy(Option<Duration>),
    /// The owner of the mark may not know yet that it has lost the lock: its token, and the time it has.
    Wait(i64, Duration),
}

impl SessionLocks {
    pub(super) async fn try_acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        self.attempt(request, false).await
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        self.attempt(request, true).await
    }

    async fn attempt(&self, request: &Request, wait: bool) -> Result<Outcome, Trouble> {
        if request.mode() != Mode::Exclusive {
            return Err(Trouble::new(
                ErrorKind::Unsupported,
                "mode=session has locks for one holder alone: use mode=lease for readers and permits",
            )
            .unsent());
        }
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
        let (mut carrier, mut is_spare) = self.carrier().await?;
        let doubt = Trouble::in_doubt;
        let mut again = false;
        let mut undone = 0;
        // First without waiting, also for those who will.
        let (mut sent, mut claim) = loop {
            let sign = carrier.sign;
            // From here on `abandon` finds the connection, also when this future is dropped.
            if let Err(trouble) = self.begin_asking(request.attempt(), sign) {
                self.keep(carrier);
                return Err(if again { doubt(trouble) } else { trouble });
            }
            let sent = request.now();
            match within(limit, self.claim(&mut carrier, request, true, None)).await {
                Ok(claim) => break (sent, claim),
                // It may have died while nobody used it, and must not be in our own way. Or only the answer was lost.
                Err(trouble) if is_spare && trouble.broken => {
                    self.end(sign, limit).await.map_err(doubt)?;
                    carrier = self.open().await.map_err(doubt)?;
                    (is_spare, again) = (false, true);
                }
                // Undone by the server for the sake of another transaction. The key may have been taken, which no rollback gives back.
                Err(trouble) if trouble.contended && undone < UNDONE => {
                    drop(carrier);
                    self.end(sign, limit).await.map_err(doubt)?;
                    carrier = self.open().await.map_err(doubt)?;
                    undone += 1;
                }
                Err(trouble) if again => return Err(doubt(trouble)),
                Err(trouble) => return Err(trouble),
            }
        };
        // Whatever fails from here on, the server may have made it a hold.
        for _ in 0..LOOKS {
            match claim {
                ClaimReply::Holds(token) => {
                    let lease = lease(request, sent, token)?;
                    self.begin_hold(request, carrier, token, permit)?;
                    return Ok(Outcome::Held(lease));
                }
                ClaimReply::Busy(retry_after) if !wait => {
                    self.keep(carrier);
                    return Ok(Outcome::Busy(Busy { retry_after }));
                }
                ClaimReply::Busy(_) => {
                    request.mark_contended();
                    self.queue(request, &mut carrier, limit)
                        .await
                        .map_err(doubt)?;
                    // The wait was long: the hold counts from a question that was sent after it.
                    sent = request.now();
                    let again = self.claim(&mut carrier, request, false, None);
                    claim = within(limit, again).await.map_err(doubt)?;
                }
                ClaimReply::Wait(mark, left) => {
                    request.mark_contended();
                    self.sit_out(&mut carrier, left, limit)
                        .await
                        .map_err(doubt)?;
                    sent = request.now();
                    let again = self.claim(&mut carrier, request, false, Some(mark));
                    claim = within(limit, again).await.map_err(doubt)?;
                }
            }
        }
        Err(doubt(Trouble::unexpected_reply(
            "that the lock's mark changed again and again",
        )))
    }

    async fn claim(
        &self,
        carrier: &mut Carrier,
        request: &Request,
        try_key: bool,
        seen: Option<i64>,
    ) -> Result<ClaimReply, Trouble> {
        let (name, label) = (request.name().as_str(), request.label());
        let attempt = request.attempt();
        let valid = micros(self.config.session_validity);
        let sign = carrier.sign;
        let args: [Arg<'_>; 7] = [
            (&name, Type::TEXT),
            (attempt.as_uuid(), Type::UUID),
            (&valid, Type::INT8),
            (&sign, Type::INT8),
            (&label, Type::TEXT),
            (&try_key, Type::BOOL),
            (&seen, Type::INT8),
        ];
        let rows = carrier.ask(&self.sql.claim, &args).await?;
        let row = rows.first();
        let said: Option<i32> = row.and_then(|row| row.try_get(0).ok());
        let number: i64 = row.and_then(|row| row.try_get(1).ok()).unwrap_or(0);
        let mark: Option<i64> = row.and_then(|row| row.try_get(2).ok().flatten());
        let time = Duration::from_micros(number.unsigned_abs());
        match (said, mark) {
            (Some(1), _) => Ok(ClaimReply::Holds(number)),
            (Some(0), _) => Ok(ClaimReply::Busy((number > 0).then_some(time))),
            (Some(2), Some(mark)) => Ok(ClaimReply::Wait(mark, time)),
            _ => Err(Trouble::unexpected_reply("something unknown to a claim")),
        }
    }

    /// Waits at the server. Now and then another connection asks whether the server still knows the waiter: a silent network must not make it
    /// wait for ever, nor keep a lock that the server has given it without its knowledge ([C5](dlock_core::contract#c5)).
    async fn queue(
        &self,
        request: &Request,
        carrier: &mut Carrier,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let sign = carrier.sign;
        let name = request.name().as_str();
        let args: [Arg<'_>; 1] = [(&name, Type::TEXT)];
        let mut granted = std::pin::pin!(carrier.ask(&self.sql.wait, &args));
        let mut silent = false;
        loop {
            tokio::select! {
                biased;
                granted = &mut granted => return granted.map(|_| ()),
                () = tokio::time::sleep(self.config.answer_timeout) => {
                    if self.waits(sign, limit).await? {
                        silent = false;
                    } else if std::mem::replace(&mut silent, true) {
                        return Err(Trouble::gone());
                    }
                }
            }
        }
    }

    /// Waits, and keeps the connection alive meanwhile.
    async fn sit_out(
        &self,
        carrier: &mut Carrier,
        left: Duration,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let until = tokio::time::Instant::now() + left;
        loop {
            let next = tokio::time::Instant::now() + self.config.session_validity / 3;
            if until <= next {
                tokio::time::sleep_until(until).await;
                return Ok(());
            }
            tokio::time::sleep_until(next).await;
            within(limit, carrier.ping()).await?;
        }
    }

    /// An undo that came while this one looked for a connection has found nothing, and was confirmed: then nothing may be sent any more. It remembers the
    /// attempt before it looks, and here it is the other way round under the same lock, so one of the two sees the other.
    fn begin_asking(&self, attempt: AttemptId, sign: i64) -> Result<(), Trouble> {
        let mut attempts = self.attempts();
        kit::refuse_abandoned(attempt).map_err(|error| Trouble::from(error).unsent())?;
        attempts.insert(attempt, AttemptState::Asking(sign));
        Ok(())
    }

    /// An undo that has come meanwhile ended the connection: what its last answer says is over.
    fn begin_hold(
        &self,
        request: &Request,
        carrier: Carrier,
        token: i64,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), Trouble> {
        let mut attempts = self.attempts();
        // An undo that is under way finds no hold yet, and has left its word; one that has ended, or a close, has removed the attempt.
        kit::refuse_abandoned(request.attempt())
            .map_err(|error| Trouble::from(error).in_doubt())?;
        if !attempts.contains_key(&request.attempt()) {
            return Err(Trouble::from(kit::abandoned()).in_doubt());
        }
        let hold = Arc::new(Hold {
            carried_by: tokio::sync::Mutex::new(CarriedBy {
                sign: carrier.sign,
                carrier: Some(carrier),
                is_release_sent: false,
            }),
            token,
            _permit: permit,
        });
        attempts.insert(request.attempt(), AttemptState::Holding(hold));
        Ok(())
    }

    /// The request was sent twice: it is one hold.
    async fn again(&self, request: &Request, hold: &Hold) -> Result<Outcome, Trouble> {
        let sent = request.now();
        let mut carried_by = hold.carried_by.lock().await;
        let held = lease(request, sent, hold.token)?;
        let Some(carrier) = carried_by.carrier.as_mut() else {
            return Err(Trouble::gone());
        };
        let proof = self.ask_proof(carrier, &held, hold.token);
        match within(self.limit(request), proof).await? {
            1 => Ok(Outcome::Held(held)),
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
                "all {} sessions of this client are taken: each holder and each waiter of mode=session needs a connection of its \
                 own. Raise max_sessions, or use mode=lease",
                self.config.max_sessions
            ),
        )
        .unsent()
    }
}

/// The hold whose mark has this number.
fn lease(request: &Request, sent: Moment, token: i64) -> Result<Lease, Trouble> {
    Ok(Lease::new(request, sent).with_token(fence::token(token)?))
}
