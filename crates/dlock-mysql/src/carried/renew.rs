//! Proves that a hold lives, and takes it to another connection when its own has broken.

use std::sync::Arc;

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{ErrorKind, LossReason};
use futures::future::join_all;

use super::call_sign::CallSign;
use super::grab::Grab;
use super::kind::{NOW, Proof};
use super::mark::{MarkRow, move_args};
use super::{ConnectionLocks, Hold, HoldConnection, within};
use crate::connect::Connection;
use crate::error::Trouble;

impl ConnectionLocks {
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
        if !self.is_held_still(lease.attempt(), &hold) {
            return Renewal::Lost(LossReason::SessionEnded);
        }
        let limit = self.config.answer_timeout;
        if carried_by.connection.is_open() {
            let proof = self.kind.prove(&mut carried_by.connection, lease, hold.key);
            match within(limit, proof).await {
                Ok(Proof::Holds) => return Renewal::Extended,
                Ok(Proof::Gone) => {
                    // Whoever broke it waits for the end of this connection.
                    carried_by.connection.shut();
                    return self.is_gone(lease);
                }
                Ok(Proof::Disturbed) => {}
                Err(trouble) => tracing::debug!(?trouble, "a hold looks for another connection"),
            }
        }
        carried_by.connection.shut();
        match within(limit, self.go_on(lease, &hold, &mut carried_by)).await {
            Ok(true) => Renewal::Extended,
            Ok(false) => self.is_gone(lease),
            Err(trouble) => Renewal::Failed(trouble.into()),
        }
    }

    /// Nobody will ask about this hold again, so its place among the sessions is free now.
    fn is_gone(&self, lease: &Lease) -> Renewal {
        self.attempts().remove(&lease.attempt());
        Renewal::Lost(LossReason::Gone)
    }

    /// `false` when the mark is not ours any more.
    async fn go_on(
        &self,
        lease: &Lease,
        hold: &Hold,
        carried_by: &mut HoldConnection,
    ) -> Result<bool, Trouble> {
        let (limit, name) = (self.config.answer_timeout, lease.name());
        // The server may not know yet that the old one has broken.
        self.end(carried_by.call_sign, limit).await?;
        let mut connection = Connection::open_carrying(&self.config, &self.setup).await?;
        carried_by.call_sign = CallSign::of(&connection);
        let grab = self
            .kind
            .grab(&mut connection, &self.shared, name, NOW, limit);
        let is_live = |seen: &MarkRow| seen.is_live(hold.key);
        let Grab::Granted(_) = grab.await? else {
            // Another client has the lock at the server, but holds nothing as long as the mark is ours: it may only have tried, or be about to give the
            // lock back. While our mark is good, the renewal is tried again.
            let seen = self.look_from_outside(name, limit).await?;
            if !seen.as_ref().is_some_and(is_live) {
                return Ok(false);
            }
            return Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection of this hold broke, and another client has asked for the lock meanwhile",
            ));
        };
        let seen = self
            .kind
            .look(&mut connection, &self.shared, name, limit)
            .await?;
        if !is_live(&seen) {
            self.kind.give_up(&mut connection, name).await?;
            self.keep(connection);
            return Ok(false);
        }
        let args = move_args(connection.call_sign(), seen.version);
        let sql = &self.kind.marks.go_on;
        let moved = self
            .kind
            .write(&mut connection, &self.shared, sql, &args, limit);
        if moved.await? != 1 {
            return Err(Trouble::unexpected_reply(
                "that the lock's mark changed meanwhile",
            ));
        }
        carried_by.connection = connection;
        Ok(true)
    }
}
