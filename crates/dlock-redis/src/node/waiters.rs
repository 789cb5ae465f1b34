//! Who waits, as a node is told: hints for clients that would make room for others.

use std::time::Duration;

use dlock_core::{Name, Result};

use super::Node;
use crate::acquire::unexpected_reply;
use crate::connect::{RedisReply, ScriptCall, millis};

impl Node {
    /// Tells the server that `client` waits for the lock, for the next `time`. Nothing is granted by it.
    ///
    /// # Errors
    ///
    /// When the server did not confirm.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server may have been told.
    pub async fn wait_for(&self, name: &Name, client: &str, time: Duration) -> Result<()> {
        self.waiters_of(name, client, millis(time))
            .await
            .map(|_| ())
    }

    /// Whether anybody but `client` has told the server that it waits.
    ///
    /// # Errors
    ///
    /// When the server did not answer.
    pub async fn others_wait(&self, name: &Name, client: &str) -> Result<bool> {
        self.waiters_of(name, client, 0).await
    }

    async fn waiters_of(&self, name: &Name, client: &str, time: u64) -> Result<bool> {
        let key = self.store.keys.lock(name) + ":m";
        let call = ScriptCall::new(&self.waiters, std::iter::once(key.as_str()))
            .arg(client)
            .arg(time.to_string());
        match self.trip(&call).await?.0 {
            RedisReply::Number(others) => Ok(others == 1),
            _ => Err(unexpected_reply("to a waiter in an unknown form").into()),
        }
    }
}
