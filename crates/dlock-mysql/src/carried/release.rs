//! Gives a hold back.

use dlock_core::Released;
use dlock_core::backend::Lease;

use super::{CarriedLocks, within};
use crate::connect::Job;
use crate::error::Trouble;

impl CarriedLocks {
    /// A hold was good until its mark is cleared, whether its own connection does that or, when that has broken, another one.
    pub(super) async fn free(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let Some(carrier) = self.held(attempt) else {
            return Ok(Released::AlreadyLost);
        };
        let mut seated = carrier.seated.lock().await;
        let limit = self.config.answer_timeout;
        let mut doubt = None;
        if seated.wire.is_open() {
            let wire = &mut seated.wire;
            let let_go = self.kind.let_go(wire, lease.name(), carrier.mark);
            match within(limit, let_go).await {
                Ok(freed) => {
                    self.known().remove(&attempt);
                    if let Some(wire) = seated.wire.hand_over() {
                        self.keep(wire);
                    }
                    return Ok(released(freed));
                }
                Err(trouble) => doubt = Some(trouble),
            }
            seated.wire.shut();
        }
        self.end(seated.line, limit).await?;
        let clear = self.kind.marks.clear(carrier.mark);
        let told = self.link.call(Job::Text(&clear), limit).await?;
        self.known().remove(&attempt);
        if told.answer.affected > 0 {
            return Ok(Released::Freed);
        }
        // A first try, whose answer was lost, may have cleared it.
        let seen = self.look_from_outside(lease.name(), limit).await?;
        match (seen.and_then(|seen| seen.end_of(carrier.mark)), doubt) {
            (Some(end), _) => Ok(end),
            (None, Some(trouble)) => Err(trouble.in_doubt()),
            (None, None) => Err(Trouble::gone()),
        }
    }
}

fn released(freed: bool) -> Released {
    if freed {
        Released::Freed
    } else {
        Released::AlreadyLost
    }
}
