//! A connection as the server knows it: whether it has it, and its end.

use std::time::{Duration, Instant};

use super::{CarriedLocks, within};
use crate::connect::{Arg, Job, Wire};
use crate::error::Trouble;

/// "Unknown thread id".
const NO_SUCH_CONNECTION: u16 = 1094;
/// How often a connection that is being ended is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A connection, by its number at a server that started before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub(super) id: u32,
    opened: Instant,
}

impl Line {
    pub(super) fn of(wire: &Wire) -> Self {
        Self {
            id: wire.id(),
            opened: Instant::now(),
        }
    }

    /// A connection that somebody has had for a time.
    pub(super) fn since(id: u32, age: Duration) -> Self {
        let now = Instant::now();
        Self {
            id,
            opened: now.checked_sub(age).unwrap_or(now),
        }
    }
}

impl CarriedLocks {
    /// Ends a connection, and returns when the server has let go of what it held.
    pub(super) async fn end(&self, line: Line, limit: Duration) -> Result<(), Trouble> {
        if !self.is_known(line, limit).await? {
            return Ok(());
        }
        match self
            .link
            .call(Job::Text(&format!("KILL {}", line.id)), limit)
            .await
        {
            Ok(_) => {}
            Err(trouble) if trouble.code == Some(NO_SUCH_CONNECTION) => return Ok(()),
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

    /// Whether the server has the connection. Its numbers start again when it does.
    pub(super) async fn is_known(&self, line: Line, limit: Duration) -> Result<bool, Trouble> {
        let uptime = Job::Text("SHOW GLOBAL STATUS LIKE 'Uptime'");
        let told = self.link.call(uptime, limit).await?;
        let uptime = told.answer.rows.first().and_then(|row| row.number(1));
        let age = line.opened.elapsed().as_secs();
        if uptime.is_some_and(|uptime| uptime + 1 < age) {
            return Ok(false);
        }
        let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ?";
        let args: [Arg<'_>; 1] = [u64::from(line.id).into()];
        let told = self.link.call(Job::Exec(sql, &args), limit).await?;
        Ok(told.answer.first_number() != Some(0))
    }
}
