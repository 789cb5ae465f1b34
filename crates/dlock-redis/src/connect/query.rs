//! Any command, for [`Client`](crate::client::Client).

use redis::{Cmd, Value};

use super::RedisLink;
use super::motion::Outgoing;
use crate::error::Trouble;

impl RedisLink {
    pub(crate) async fn query(&self, cmd: &Cmd) -> Result<Value, Trouble> {
        let mut current = self.connection().await?;
        let (what, limit) = (Outgoing::Command(cmd), self.config.answer_timeout);
        let until = current.0.connection.until(limit);
        let trip = self.within(limit, &mut current, what).await;
        match (trip, until) {
            (Err(trouble), Some(until)) if trouble.passing => {
                self.in_motion(what, until, trouble).await
            }
            (trip, _) => trip,
        }
    }

    /// Asks every master, and tells where it is if there are several.
    pub(crate) async fn query_masters(
        &self,
        cmd: &Cmd,
    ) -> Result<Vec<(Option<String>, Value)>, Trouble> {
        let mut current = self.connection().await?;
        let mut answers = Vec::new();
        for node in self.masters(&mut current).await? {
            let what = Outgoing::At(node.as_ref(), cmd);
            let limit = self.config.answer_timeout;
            let answer = self.within(limit, &mut current, what).await?;
            let place = node.map(|(host, port)| format!("{host}:{port}"));
            answers.push((place, answer));
        }
        Ok(answers)
    }
}
