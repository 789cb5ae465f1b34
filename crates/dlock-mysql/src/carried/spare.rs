//! Connections that carry nothing now, for the next attempt.

use dlock_core::backend::Request;

use super::{CarriedLocks, within};
use crate::connect::Wire;
use crate::error::Trouble;
use crate::server::silence;

impl CarriedLocks {
    /// A connection for one attempt; whether it was used before.
    pub(super) async fn wire(&self) -> Result<(Wire, bool), Trouble> {
        let spare = self.spare().pop();
        match spare {
            Some(wire) if self.is_fresh(&wire) => Ok((wire, true)),
            _ => Ok((Wire::open_carrying(&self.config, &self.setup).await?, false)),
        }
    }

    /// Keeps the connection of an attempt that did not get the lock.
    pub(super) async fn put_away(&self, mut wire: Wire, request: &Request) {
        if within(request.trip_timeout(), self.kind.end_wait(&mut wire))
            .await
            .is_ok()
        {
            self.keep(wire);
        }
    }

    /// Keeps a connection that holds nothing for the next attempt.
    pub(super) fn keep(&self, wire: Wire) {
        let mut spare = self.spare();
        spare.retain(|wire| self.is_fresh(wire));
        if spare.len() < self.config.connections {
            spare.push(wire);
        }
    }

    /// Not for so long without a word that the server may have ended it.
    fn is_fresh(&self, wire: &Wire) -> bool {
        wire.idle_for() * 2 < silence(self.config.session_validity)
    }

    /// Opens a first connection, and tries everything on it.
    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let (mut wire, _) = self.wire().await?;
        let limit = self.config.connect_timeout;
        let all = self.kind.rehearse(&mut wire, &self.link);
        within(limit, all)
            .await
            .map_err(|trouble| trouble.about("checking what we may do").unsent())?;
        self.keep(wire);
        Ok(())
    }
}
