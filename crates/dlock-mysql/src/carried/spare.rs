//! Connections that carry nothing now, for the next attempt.

use std::sync::atomic::Ordering;

use dlock_core::backend::Request;

use super::{ConnectionLocks, within};
use crate::connect::Connection;
use crate::error::Trouble;
use crate::server::silence;

impl ConnectionLocks {
    /// A connection for one attempt; whether it was used before.
    pub(super) async fn connection(&self) -> Result<(Connection, bool), Trouble> {
        let spare = self.spare().pop();
        match spare {
            Some(connection) if self.is_fresh(&connection) => Ok((connection, true)),
            _ => Ok((
                Connection::open_carrying(&self.config, &self.setup).await?,
                false,
            )),
        }
    }

    /// Keeps the connection of an attempt that did not get the lock.
    pub(super) async fn put_away(&self, mut connection: Connection, request: &Request) {
        if within(request.trip_timeout(), self.kind.end_wait(&mut connection))
            .await
            .is_ok()
        {
            self.keep(connection);
        }
    }

    /// Keeps a connection that holds nothing for the next attempt.
    pub(super) fn keep(&self, connection: Connection) {
        let mut spare = self.spare();
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        spare.retain(|connection| self.is_fresh(connection));
        // As many as were in use at the same time lately: a new one is made only when there is none.
        spare.push(connection);
    }

    /// Not for so long without a word that the server may have ended it.
    fn is_fresh(&self, connection: &Connection) -> bool {
        connection.idle_for() * 2 < silence(self.config.session_validity)
    }

    /// Opens a first connection, and tries everything on it.
    pub(crate) async fn rehearse(&self) -> Result<(), Trouble> {
        let (mut connection, _) = self.connection().await?;
        let limit = self.config.connect_timeout;
        let all = self.kind.rehearse(&mut connection, &self.shared);
        within(limit, all)
            .await
            .map_err(|trouble| trouble.about("checking what we may do").unsent())?;
        self.keep(connection);
        Ok(())
    }
}
