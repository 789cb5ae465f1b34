//! A connection as the server knows it: whether it has it, and its end.
//!
//! It is known by its [call sign](call_sign), a named lock that it has taken, and never by its number: after a fail-over or a restart a
//! stranger has that. The server tells everybody who has a named lock, also of connections whose owner is another user, and it lets go of
//! it after the connection's transaction has ended.

use std::time::Duration;

use super::{CarriedLocks, within};
use crate::connect::{Job, Wire, call_sign};
use crate::error::Trouble;

/// "Unknown thread id".
const NO_SUCH_CONNECTION: u16 = 1094;
/// How often a connection that is being ended is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A connection, by its call sign.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub(super) key: u64,
}

impl Line {
    pub(super) fn of(wire: &Wire) -> Self {
        Self { key: wire.key() }
    }
}

impl CarriedLocks {
    /// Ends a connection, and returns when the server has let go of what it held.
    pub(super) async fn end(&self, line: Line, limit: Duration) -> Result<(), Trouble> {
        if !self.is_known(line, limit).await? {
            return Ok(());
        }
        // One statement finds and ends it, so it cannot be another server that carries out the second half.
        let kill = format!("KILL IS_USED_LOCK('{}')", call_sign(line.key));
        match self.link.call(Job::Text(&kill), limit).await {
            Ok(_) => {}
            Err(trouble) if trouble.code == Some(NO_SUCH_CONNECTION) => {}
            Err(trouble) => return Err(trouble.about("ending a connection in doubt")),
        }
        let gone = async {
            while self.is_known(line, limit).await? {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        within(limit, gone).await
    }

    /// Whether the server has the connection.
    pub(super) async fn is_known(&self, line: Line, limit: Duration) -> Result<bool, Trouble> {
        let sql = format!("SELECT IS_USED_LOCK('{}')", call_sign(line.key));
        let told = self.link.call(Job::Text(&sql), limit).await?;
        if told.answer.rows.is_empty() {
            return Err(Trouble::strange("nothing"));
        }
        Ok(told.answer.first_number().is_some())
    }
}
