//! Any command, for [`Client`](crate::client::Client).

use std::pin::pin;

use redis::{Cmd, Value};

use super::{Current, Link};
use crate::error::Trouble;

impl Link {
    pub(crate) async fn query(&self, cmd: &Cmd) -> Result<Value, Trouble> {
        let Current {
            mut connection,
            number,
            ..
        } = self.connection().await?;
        let trip = pin!(connection.send(cmd));
        self.within(self.config.answer_timeout, number, trip).await
    }

    /// Asks every master, and tells where it is if there are several.
    pub(crate) async fn query_masters(
        &self,
        cmd: &Cmd,
    ) -> Result<Vec<(Option<String>, Value)>, Trouble> {
        let Current {
            mut connection,
            number,
            ..
        } = self.connection().await?;
        let mut answers = Vec::new();
        for node in self.masters(&mut connection, number).await? {
            let answer = {
                let trip = pin!(connection.send_to(node.as_ref(), cmd.clone()));
                self.within(self.config.answer_timeout, number, trip)
                    .await?
            };
            let place = node.map(|(host, port)| format!("{host}:{port}"));
            answers.push((place, answer));
        }
        Ok(answers)
    }
}
