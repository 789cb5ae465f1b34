//! Proves that a hold lives, and takes it to another connection when its own has broken.

use dlock_core::backend::{Lease, Renewal};
use dlock_core::{Error, ErrorKind, LossReason};

use super::kind::{Grab, Proof};
use super::line::Line;
use super::mark::{Seen, move_args};
use super::{CarriedLocks, Carrier, Seated, within};
use crate::connect::Wire;
use crate::error::Trouble;

impl CarriedLocks {
    /// One question, sent after this call began: whoever gets the lock after it waits for a validity. When the connection has broken, or its
    /// server was demoted, the lock is taken again on a new one; as long as the mark is ours, nobody held it in between.
    pub(super) async fn prove(&self, lease: &Lease) -> Renewal {
        let Some(carrier) = self.held(lease.attempt()) else {
            return Renewal::Lost(LossReason::SessionEnded);
        };
        let mut seated = carrier.seated.lock().await;
        let limit = self.config.answer_timeout;
        if seated.wire.is_open() {
            let proof = self.kind.prove(&mut seated.wire, lease, carrier.mark);
            match within(limit, proof).await {
                Ok(Proof::Holds) => return Renewal::Extended,
                Ok(Proof::Gone) => {
                    // Whoever broke it waits for the end of this connection.
                    seated.wire.shut();
                    return Renewal::Lost(LossReason::Gone);
                }
                Ok(Proof::Disturbed) => {}
                Err(trouble) => tracing::debug!(?trouble, "a hold looks for another connection"),
            }
        }
        seated.wire.shut();
        match within(limit, self.go_on(lease, &carrier, &mut seated)).await {
            Ok(true) => Renewal::Extended,
            Ok(false) => Renewal::Lost(LossReason::Gone),
            Err(trouble) => Renewal::Failed(Error::new(trouble.kind, trouble.message())),
        }
    }

    /// `false` when the mark is not ours any more.
    async fn go_on(
        &self,
        lease: &Lease,
        carrier: &Carrier,
        seated: &mut Seated,
    ) -> Result<bool, Trouble> {
        let (limit, name) = (self.config.answer_timeout, lease.name());
        // The server may not know yet that the old one has broken.
        self.end(seated.line, limit).await?;
        let mut wire = Wire::open_carrying(&self.config, &self.setup).await?;
        seated.line = Line::of(&wire);
        let grab = self.kind.grab(&mut wire, &self.link, name, false, limit);
        let is_live = |seen: &Seen| seen.is_live(carrier.mark, lease.attempt());
        let Grab::Granted(_) = grab.await? else {
            // Whoever has it may only have tried, or may not become its holder.
            let seen = self.look_from_outside(name, limit).await?;
            if !seen.as_ref().is_some_and(is_live) {
                return Ok(false);
            }
            return Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection of this hold broke, and another client has asked for the lock meanwhile",
            ));
        };
        let seen = self.kind.look(&mut wire, &self.link, name, limit).await?;
        if !is_live(&seen) {
            self.kind.give_up(&mut wire, name).await?;
            self.keep(wire);
            return Ok(false);
        }
        let args = move_args(wire.key(), seen.place);
        let sql = &self.kind.marks.go_on;
        let moved = self.kind.write(&mut wire, &self.link, sql, &args, limit);
        if moved.await? != 1 {
            return Err(Trouble::strange("that the lock's mark changed meanwhile"));
        }
        seated.wire = wire;
        Ok(true)
    }
}
