//! Gives a hold back.

use dlock_core::Released;
use dlock_core::backend::Lease;
use tokio_postgres::types::Type;

use super::{SessionLocks, within};
use crate::connect::{Arg, Job};
use crate::error::Trouble;

impl SessionLocks {
    /// A hold was good until its mark is cleared, whether its own connection does that or, when that has broken, another one.
    pub(super) async fn release(&self, lease: &Lease) -> Result<Released, Trouble> {
        let attempt = lease.attempt();
        let Some(hold) = self.held(attempt) else {
            return Ok(Released::AlreadyLost);
        };
        let mut carried_by = hold.carried_by.lock().await;
        let limit = self.config.answer_timeout;
        let (name, token) = (lease.name().as_str(), hold.token);
        let args = |here: &'static bool| -> [Arg<'_>; 4] {
            [
                (&name, Type::TEXT),
                (attempt.as_uuid(), Type::UUID),
                (&token, Type::INT8),
                (here, Type::BOOL),
            ]
        };
        // Taken out while it is asked: if this is dropped, the connection ends with it.
        if let Some(mut carrier) = carried_by.carrier.take() {
            carried_by.is_release_sent = true;
            match within(limit, carrier.number(&self.sql.release, &args(&true))).await {
                Ok(said) => {
                    self.attempts().remove(&attempt);
                    // Whoever broke the lock ends this connection, so nothing else may be on it.
                    if said == 1 {
                        self.keep(carrier);
                    }
                    return released(said, false);
                }
                Err(trouble) => {
                    tracing::debug!(error = trouble.message(), "a release on another connection");
                }
            }
        }
        // An earlier call may have been carried out too: whatever fails from here on, the hold may be gone.
        let tried = carried_by.is_release_sent;
        let doubt = |trouble: Trouble| if tried { trouble.in_doubt() } else { trouble };
        self.end(carried_by.sign, limit).await.map_err(doubt)?;
        let args = args(&false);
        carried_by.is_release_sent = true;
        let told = self.shared.call(Job::Ask(&self.sql.release, &args), limit);
        let told = told.await.map_err(doubt)?;
        let said: i32 = told.first()?;
        self.attempts().remove(&attempt);
        released(said, tried || told.again)
    }
}

/// When it had left already, a first try, whose answer was lost, may have done so.
fn released(said: i32, tried: bool) -> Result<Released, Trouble> {
    match said {
        1 => Ok(Released::Freed),
        2 if tried => Ok(Released::Freed),
        3 if tried => Err(Trouble::gone()),
        _ => Ok(Released::AlreadyLost),
    }
}
