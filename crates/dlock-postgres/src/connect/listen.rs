//! The connection that listens.

use std::time::Duration;

use dlock_core::ErrorKind;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::shared::SharedConnections;
use super::wire::Wire;
use crate::error::Trouble;

/// A connection that has heard nothing for so long is asked whether it lives.
const ASK_AFTER: Duration = Duration::from_secs(5);

/// A connection that listens to a channel, and keeps a lock, the *bell*, as long as it lives: whoever gives a lock to a waiter tries the
/// bell, and if nobody has it, nobody would hear.
#[derive(Debug)]
pub(crate) struct Ear {
    wire: Wire,
    heard: UnboundedReceiver<String>,
    pub(crate) bell: i64,
    limit: Duration,
}

impl Ear {
    pub(crate) async fn open(shared: &SharedConnections, channel: &str) -> Result<Self, Trouble> {
        let (sink, heard) = unbounded_channel();
        let mut wire = shared.open_listening(sink).await?;
        // A new one for each connection: the server may take the old connection for alive.
        let bell = fastrand::i64(..);
        let limit = shared.limit();
        // The channel's name is ours, and made of letters and digits. Where the server has the setting, it would end a connection that is
        // idle, as a good listener is.
        let begin = format!(
            "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'; \
             LISTEN \"{channel}\"; SELECT pg_advisory_lock({bell})"
        );
        timed(limit, wire.text(&begin)).await?;
        Ok(Self {
            wire,
            heard,
            bell,
            limit,
        })
    }

    /// The next message.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    pub(crate) async fn hear(&mut self) -> Result<String, Trouble> {
        loop {
            let message = self.wire.hear(&mut self.heard);
            if let Ok(message) = tokio::time::timeout(ASK_AFTER, message).await {
                return message;
            }
            timed(self.limit, self.wire.text("")).await?;
        }
    }
}

async fn timed<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    let late = |_| {
        Trouble::new(
            ErrorKind::TimedOut,
            format!("the connection that listens did not answer within {limit:?}"),
        )
    };
    tokio::time::timeout(limit, work).await.map_err(late)?
}
