//! Proves that a hold lives, and takes it to another connection when its own has broken.

use std::sync::Arc;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{Error, ErrorKind, LossReason};
use futures::future::join_all;
use tokio_postgres::types::Type;

use super::connection::Carrier;
use super::{CarriedBy, Hold, SessionLocks, within};
use crate::connect::{Arg, Turns};
use crate::error::Trouble;

/// Whether a trouble says nothing about the connection. A server that refuses writes was demoted: the hold goes on at another.
fn is_of_the_question(trouble: &Trouble) -> bool {
    !trouble.broken && trouble.kind() != ErrorKind::TimedOut && !trouble.has_code("25006")
}

impl SessionLocks {
    pub(super) async fn renew(&self, leases: &[Arc<Lease>]) -> Vec<Renewal> {
        join_all(leases.iter().map(|lease| self.renew_one(lease))).await
    }

    /// One question, sent after this call began: whoever gets the lock after it waits for a validity. When the connection has broken, or its
    /// server was demoted, the lock is taken again on a new one; as long as the mark is ours, nobody held it in between.
    async fn renew_one(&self, lease: &Lease) -> Renewal {
        let Some(hold) = self.held(lease.attempt()) else {
            return Renewal::Lost(LossReason::SessionEnded);
        };
        let mut carried_by = hold.carried_by.lock().await;
        // A release may have come first, and its connection may carry another hold by now.
        let is_held = |now: Arc<Hold>| Arc::ptr_eq(&now, &hold);
        if !self.held(lease.attempt()).is_some_and(is_held) {
            return Renewal::Lost(LossReason::SessionEnded);
        }
        // A half, so that a second connection gets its chance when the first is silent.
        let limit = self.config.answer_timeout.min(lease.renewal_limit() / 2);
        if let Some(carrier) = carried_by.carrier.as_mut() {
            let proof = self.ask_proof(carrier, lease, hold.token);
            match within(limit, proof).await {
                Ok(1) => return Renewal::Extended,
                Ok(2) => {
                    // Whoever broke it waits for the end of this connection.
                    carried_by.carrier = None;
                    return self.is_gone(lease);
                }
                Ok(_) => {}
                // The server has answered, so the connection has the lock as it had: it is asked again (C10).
                Err(trouble) if is_of_the_question(&trouble) => {
                    return Renewal::Failed(Error::from(trouble));
                }
                Err(trouble) => tracing::debug!(
                    error = trouble.message(),
                    "a hold looks for another connection"
                ),
            }
        }
        carried_by.carrier = None;
        match within(limit, self.go_on(lease, &hold, &mut carried_by)).await {
            Ok(true) => Renewal::Extended,
            Ok(false) => self.is_gone(lease),
            Err(trouble) => Renewal::Failed(Error::from(trouble)),
        }
    }

    /// Nobody will ask about this hold again, so its place among the sessions is free now.
    fn is_gone(&self, lease: &Lease) -> Renewal {
        self.attempts().remove(&lease.attempt());
        Renewal::Lost(LossReason::Gone)
    }

    pub(super) async fn ask_proof(
        &self,
        carrier: &mut Carrier,
        lease: &Lease,
        token: i64,
    ) -> Result<i32, Trouble> {
        let (name, attempt) = (lease.name().as_str(), lease.attempt());
        let args: [Arg<'_>; 3] = [
            (&name, Type::TEXT),
            (attempt.as_uuid(), Type::UUID),
            (&token, Type::INT8),
        ];
        carrier.number(&self.sql.prove, &args).await
    }

    /// `false` when the mark is not ours any more.
    async fn go_on(
        &self,
        lease: &Lease,
        hold: &Hold,
        carried_by: &mut CarriedBy,
    ) -> Result<bool, Trouble> {
        let limit = self.config.answer_timeout;
        // The server may not know yet that the old one has broken.
        let ended = carried_by.sign;
        self.end_by(ended, limit, Turns::Renewals).await?;
        let mut carrier = self.open().await?;
        // Known before it is asked: if this is dropped, the next try or an undo ends it.
        carried_by.sign = carrier.sign;
        let (name, attempt) = (lease.name().as_str(), lease.attempt());
        let (token, sign) = (hold.token, carrier.sign);
        let args: [Arg<'_>; 4] = [
            (&name, Type::TEXT),
            (attempt.as_uuid(), Type::UUID),
            (&token, Type::INT8),
            (&sign, Type::INT8),
        ];
        let said = carrier.number(&self.sql.go_on, &args).await?;
        if said == 1 {
            carried_by.carrier = Some(carrier);
            return Ok(true);
        }
        // It goes to another attempt, and what is remembered here gets ended.
        carried_by.sign = ended;
        self.keep(carrier);
        match said {
            2 => Ok(false),
            // Whoever has it may only have tried, or may not become its holder.
            _ => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection of this hold broke, and another client has asked for the lock meanwhile",
            )),
        }
    }
}
