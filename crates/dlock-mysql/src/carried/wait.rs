//! How a waiter waits: in the server's queue, and for the time of a holder that did not leave in order.

use std::time::Duration;

use dlock_core::backend::Request;

use super::call_sign::CallSign;
use super::{CarriedLocks, within};
use crate::connect::Connection;
use crate::error::Trouble;

impl CarriedLocks {
    /// Waits at the server. Now and then another connection asks whether the server still knows the waiter: a silent network must not make it
    /// wait for ever (C5).
    pub(super) async fn queue(
        &self,
        request: &Request,
        connection: &mut Connection,
        call_sign: CallSign,
        limit: Duration,
    ) -> Result<(), Trouble> {
        let name = request.name();
        let mut granted =
            std::pin::pin!(self.kind.grab(connection, &self.shared, name, true, limit));
        loop {
            tokio::select! {
                biased;
                granted = &mut granted => return granted.map(|_| ()),
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
