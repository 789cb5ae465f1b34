//! How a waiter waits: in the server's queue, and for the time of a holder that did not leave in order.
//!
//! The server does not tell who waits in its queue. So each waiter takes one of a few named locks first, its *place*: a holder that would give way asks
//! whether somebody else has one (C23). It goes with the waiter's connection, whatever ends that, and else with the hold that the waiter
//! gets. When all places are taken somebody waits for certain, and whoever has none tries again now and then.

use std::time::Duration;

use dlock_core::Name;
use dlock_core::backend::Request;

use super::call_sign::CallSign;
use super::kind::{Grab, LONGEST_ROW_WAIT, LONGEST_WAIT};
use super::{AttemptState, ConnectionLocks, within};
use crate::connect::{Connection, Job};
use crate::error::Trouble;

/// How many of those who wait for a lock can be seen.
pub(super) const PLACES: u8 = 8;

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceOfWaiter(pub(super) u8);

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
    ) -> Result<Option<PlaceOfWaiter>, Trouble> {
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
                let grab = self.kind.grab(connection, &self.shared, name, wait, limit);
                if let Grab::Granted(_) = grab.await? {
                    return Ok(place);
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
