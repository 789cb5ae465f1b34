//! Work that is done while a hold is good.

use super::Guard;
use crate::{Error, ErrorKind, HeldNow, LossReason, Operation, Released, Result};

impl Guard {
    /// Runs `work` while the hold is good, then gives the lock back.
    pub(crate) async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T> {
        let done = {
            let signal = self.loss_signal();
            tokio::select! {
                biased;
                reason = signal.reason() => Err(reason),
                value = work(&self) => Ok(value),
            }
        };
        let value = match done {
            Ok(value) if self.is_held() => value,
            // The work ended after the hold had: nobody knows who else was at it.
            Ok(_) => return Err(self.lost_while_working(self.reason_if_lost())),
            Err(reason) => return Err(self.lost_while_working(reason)),
        };
        let (client, name) = (self.first.client.clone(), self.name());
        match self.release().await {
            // The store had ended the hold before the work was done, and nobody could know it until now.
            Ok(Released::AlreadyLost) => {
                return Err(client.with_context(
                    lost_error(LossReason::Gone),
                    Operation::Work,
                    &name,
                ));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the lock could not be given back yet; that is tried again")
            }
        }
        Ok(value)
    }

    pub(super) fn lost_while_working(&self, reason: LossReason) -> Error {
        let error = lost_error(reason);
        self.first
            .client
            .with_context(error, Operation::Work, &self.name())
    }
}

pub(super) fn lost_error(reason: LossReason) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!("{reason}: the work was not done under the lock to its end, so check or repeat it"),
    )
    .with_held(HeldNow::No)
}
