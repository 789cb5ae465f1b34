//! A connection as the server knows it: whether it has it, and its end.
//!
//! It is known by its [call sign](call_sign_text), a named lock that it has taken, and never by its number: after a fail-over or a restart a
//! stranger has that. The server tells everybody who has a named lock, also of connections whose owner is another user, and it lets go of
//! it after the connection's transaction has ended.

use std::time::Duration;

use super::{ConnectionLocks, within};
use crate::connect::{Connection, Job, call_sign_text};
use crate::error::Trouble;

/// "Unknown thread id".
const NO_SUCH_CONNECTION: u16 = 1094;
/// How often a connection that is being ended is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A connection, by its call sign.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallSign {
    pub(super) number: u64,
    /// The server's number of it, as far as this client has opened it; 0 for others.
    pub(super) connection: u32,
}

impl CallSign {
    pub(super) fn of(connection: &Connection) -> Self {
        Self {
            number: connection.call_sign(),
            connection: connection.id(),
        }
    }
}

impl ConnectionLocks {
    /// Ends a connection, and returns when the server has let go of what it held.
    pub(super) async fn end(&self, call_sign: CallSign, limit: Duration) -> Result<(), Trouble> {
        if !self.is_known(call_sign, limit).await? {
            return Ok(());
        }
        // One statement finds and ends it, so it cannot be another server that carries out the second half.
        let kill = format!("KILL IS_USED_LOCK('{}')", call_sign_text(call_sign.number));
        match self.shared.call(Job::Text(&kill), limit).await {
            Ok(_) => {}
            Err(trouble) if trouble.code == Some(NO_SUCH_CONNECTION) => {}
            Err(trouble) => return Err(trouble.about("ending a connection in doubt")),
        }
        let gone = async {
            while self.is_known(call_sign, limit).await? {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        within(limit, gone).await
    }

    /// Whether the server has the connection.
    pub(super) async fn is_known(
        &self,
        call_sign: CallSign,
        limit: Duration,
    ) -> Result<bool, Trouble> {
        let sql = format!(
            "SELECT IS_USED_LOCK('{}')",
            call_sign_text(call_sign.number)
        );
        let told = self.shared.call(Job::Text(&sql), limit).await?;
        if told.answer.rows.is_empty() {
            return Err(Trouble::unexpected_reply("nothing"));
        }
        Ok(told.answer.first_number().is_some())
    }
}
