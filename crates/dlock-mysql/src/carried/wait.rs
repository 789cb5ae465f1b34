//! How a waiter waits: in the server's queue, and for the time of a holder that did not leave in order.
//!
//! The server does not tell who waits in its queue. So each waiter takes one of a few named locks first, its *place*: a holder that would give way asks
//! whether somebody else has one ([C23](dlock_core::contract#c23)). It goes with the waiter's connection, whatever ends that, and else with the hold
//! that the waiter gets. When all places are taken somebody waits for certain, and whoever has none tries again now and then.

use std::time::Duration;

use dlock_core::backend::Request;
use dlock_core::{Moment, Name};

use super::call_sign::CallSign;
use super::grab::{Grab, named_grabbed, row_grabbed};
use super::kind::{Kind, LONGEST_ROW_WAIT, LONGEST_WAIT, Locking, PlaceOfWaiter};
use super::mark::{MarkPeek, literal};
use super::{AttemptState, ConnectionLocks, within};
use crate::connect::{AnswerRow, Connection, Job};
use crate::error::Trouble;
use crate::key::place_of_waiter;

/// How many of those who wait for a lock can be seen.
pub(super) const PLACES: u8 = 8;

/// The lock was granted to one that waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Its place among those who wait.
    pub(super) place: Option<PlaceOfWaiter>,
    /// The mark, which may have been read when the wait began.
    pub(super) peek: MarkPeek,
    /// When the request was sent that the grant answers.
    pub(super) asked: Moment,
}

/// What the server says about a wait at once, before it is over.
#[derive(Debug)]
struct InLine {
    /// `None` when all are taken.
    place: Option<PlaceOfWaiter>,
    is_free: bool,
}

impl InLine {
    fn read(row: &AnswerRow) -> Self {
        let place = row.number(0).and_then(|place| u8::try_from(place).ok());
        Self {
            place: place.map(PlaceOfWaiter),
            is_free: row.number(1) == Some(1),
        }
    }
}

impl Kind {
    /// Takes a place among those who wait, and waits for the lock, in one request: so a waiter has as few trips as can be. The server tells at once
    /// which place it is and whether the lock was free, and `hears` that. A lock that was free is taken by that very look: if somebody could take it in
    /// between, the waiter would know of nobody who has it, and take the server's silence for a store that does not answer ([C5](dlock_core::contract#c5)).
    async fn stand_in_line(
        &self,
        connection: &mut Connection,
        name: &Name,
        without_place: Duration,
        mut hears: impl FnMut(InLine) + Send,
    ) -> Result<Grab, Trouble> {
        // It stops at the first that is free.
        let places = (0..PLACES).map(|place| {
            let lock = self.waiters_lock(name, place);
            format!("WHEN GET_LOCK('{lock}', 0) = 1 THEN {place} ")
        });
        let place = format!("CASE {}END", places.collect::<String>());
        let all = match &self.how {
            Locking::Row { is_free, grab, .. } => {
                let name = literal(name.as_str().as_bytes());
                let (is_free, grab) = (is_free.replace("{name}", &name), grab.replace('?', &name));
                format!(
                    "SET @dlock_place = {place}, @dlock_is_free = 0; {is_free}; SELECT @dlock_place, @dlock_is_free; {grab}"
                )
            }
            Locking::Named { .. } => {
                let lock = self.named_lock(name);
                let (longest, shorter) = (LONGEST_WAIT.as_secs(), without_place.as_secs());
                // One that is taken twice would not be free after one release.
                format!(
                    "SET @dlock_place = {place}, @dlock_is_free = GET_LOCK('{lock}', 0); SELECT @dlock_place, @dlock_is_free; \
                     SELECT IF(@dlock_is_free = 1, 1, GET_LOCK('{lock}', IF(@dlock_place IS NULL, {shorter}, {longest}))), NULL, \
                     CONCAT(@@global.read_only)"
                )
            }
        };
        let mut is_first = true;
        let answer = connection.texts(&all, |row| {
            if std::mem::take(&mut is_first) {
                hears(InLine::read(row));
            }
        });
        match (&self.how, answer.await) {
            (Locking::Row { .. }, answer) => row_grabbed(answer),
            (Locking::Named { .. }, answer) => named_grabbed(&answer?),
        }
    }

    /// Tells which connections have a place among those who wait.
    pub(super) fn who_stands_in_line(&self, name: &Name) -> String {
        let places = (0..PLACES).map(|place| {
            let lock = self.waiters_lock(name, place);
            format!("SELECT IS_USED_LOCK('{lock}')")
        });
        places.collect::<Vec<_>>().join(" UNION ALL ")
    }

    /// The name is a digest, in letters and digits.
    pub(super) fn waiters_lock(&self, name: &Name, place: u8) -> String {
        place_of_waiter(&self.scope.prefix, &self.scope.database, name, place)
    }
}

impl ConnectionLocks {
    /// Whether somebody of another client stands in line. Not when the server does not answer: then nobody gets the lock from it either.
    pub(super) async fn others_wait(&self, name: &Name) -> bool {
        let asked = self.kind.who_stands_in_line(name);
        let told = self
            .shared
            .call(Job::Text(&asked), self.config.answer_timeout);
        let answer = match told.await {
            Ok(told) => told.answer,
            Err(trouble) => {
                tracing::debug!(?trouble, %name, "nobody knows whether others wait");
                return false;
            }
        };
        let attempts = self.attempts();
        let is_ours = |connection: u64| {
            attempts.values().any(|state| match state {
                AttemptState::Asking(sign) => u64::from(sign.connection) == connection,
                AttemptState::Holding(hold) => {
                    hold.waited.is_some() && u64::from(hold.opened_as) == connection
                }
            })
        };
        let mut waiters = answer.rows.iter().filter_map(|row| row.number(0));
        waiters.any(|connection| !is_ours(connection))
    }

    /// Waits at the server. Now and then another connection asks whether the server still knows the waiter: a silent network must not make it
    /// wait for ever ([C5](dlock_core::contract#c5)).
    pub(super) async fn queue(
        &self,
        request: &Request,
        connection: &mut Connection,
        call_sign: CallSign,
        limit: Duration,
    ) -> Result<Turn, Trouble> {
        let name = request.name();
        let granted = async {
            let mut place = None;
            let mut without_place = LONGEST_ROW_WAIT;
            loop {
                let asked = request.now();
                let grab = if place.is_some() {
                    let grab = self
                        .kind
                        .grab(connection, &self.shared, name, LONGEST_WAIT, limit);
                    grab.await?
                } else {
                    let hears = |heard: InLine| {
                        place = heard.place;
                        if heard.is_free {
                            self.lately_busy.forget(name);
                        } else {
                            self.lately_busy.note(name);
                            request.mark_contended();
                        }
                    };
                    let stands = self
                        .kind
                        .stand_in_line(connection, name, without_place, hears);
                    stands.await?
                };
                if let Grab::Granted(peek) = grab {
                    return Ok(Turn { place, peek, asked });
                }
                // Whoever tries again goes to the end of the server's queue: less and less often, or it would never be the first of many.
                without_place = (without_place * 2).min(LONGEST_WAIT);
            }
        };
        let mut granted = std::pin::pin!(granted);
        loop {
            tokio::select! {
                biased;
                granted = &mut granted => return granted,
                () = tokio::time::sleep(self.config.answer_timeout) => {
                    // The waiter may have been granted the lock by now, whatever becomes of this question.
                    let is_known = self.is_known(call_sign, limit).await;
                    if !is_known.map_err(Trouble::in_doubt)? {
                        return Err(Trouble::gone());
                    }
                }
            }
        }
    }

    /// Waits, and keeps the connection alive meanwhile.
    pub(super) async fn sit_out(
        &self,
        connection: &mut Connection,
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
            within(limit, connection.ping()).await?;
        }
    }
}
