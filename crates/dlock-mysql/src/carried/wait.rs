//! How a waiter waits: in the server's queue, and for the time of a holder that did not leave in order.
//!
//! The server does not tell who waits in its queue. So each waiter takes one of a few named locks first, its *place*: a holder that would give way asks
//! whether somebody else has one (C23). It goes with the waiter's connection, whatever ends that, and else with the hold that the waiter
//! gets. When all places are taken somebody waits for certain, and whoever has none tries again now and then.

use std::time::Duration;

use dlock_core::backend::Request;
use dlock_core::{Moment, Name};

use super::call_sign::CallSign;
use super::kind::{Grab, Kind, LONGEST_ROW_WAIT, LONGEST_WAIT};
use super::mark::MarkPeek;
use super::{AttemptState, ConnectionLocks, within};
use crate::connect::{Connection, Job};
use crate::error::Trouble;
use crate::key::place_of_waiter;

/// How many of those who wait for a lock can be seen.
pub(super) const PLACES: u8 = 8;

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceOfWaiter(pub(super) u8);

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

impl Kind {
    /// Takes a place among those who wait; `None` when all are taken.
    pub(super) async fn stand_in_line(
        &self,
        connection: &mut Connection,
        name: &Name,
    ) -> Result<Option<PlaceOfWaiter>, Trouble> {
        // It stops at the first that is free.
        let places = (0..PLACES).map(|place| {
            let lock = self.waiters_lock(name, place);
            format!("WHEN GET_LOCK('{lock}', 0) = 1 THEN {place}")
        });
        let places: Vec<String> = places.collect();
        let answer = connection
            .text(&format!("SELECT CASE {} END", places.join(" ")))
            .await?;
        let place = answer.first_number();
        Ok(place.and_then(|place| u8::try_from(place).ok().map(PlaceOfWaiter)))
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
    pub(super) async fn others_stand_in_line(&self, name: &Name) -> bool {
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
    /// wait for ever (C5).
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
                if place.is_none() {
                    place = self.kind.stand_in_line(connection, name).await?;
                }
                let wait = match place {
                    Some(_) => LONGEST_WAIT,
                    None => without_place,
                };
                // Whoever tries again goes to the end of the server's queue: less and less often, or it would never be the first of many.
                without_place = (without_place * 2).min(LONGEST_WAIT);
                let asked = request.now();
                let grab = self.kind.grab(connection, &self.shared, name, wait, limit);
                if let Grab::Granted(peek) = grab.await? {
                    return Ok(Turn { place, peek, asked });
                }
            }
        };
        let mut granted = std::pin::pin!(granted);
        loop {
            tokio::select! {
                biased;
                granted = &mut granted => return granted,
                () = tokio::time::sleep(self.config.answer_timeout) => {
                    if !self.is_known(call_sign, limit).await? {
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
