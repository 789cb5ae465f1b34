//! Which keys there are, at every master.

use super::call::{Connection, RedisReply};
use super::motion::Outgoing;
use super::{OpenConnection, RedisLink, silence};
use crate::error::Trouble;

/// How many keys one `SCAN` looks at. More where they are not ours, so that millions of others cost fewer trips; the most takes the server
/// a few milliseconds.
const SCAN_COUNT: u32 = 500;
const SCAN_MOST: u32 = 16_000;

impl RedisLink {
    /// All keys that fit a pattern, from every master. Each trip has the time of one answer, however many there are.
    pub(crate) async fn scan(&self, pattern: &str) -> Result<Vec<String>, Trouble> {
        let mut current = self.connection().await?;
        let nodes = self.masters(&mut current).await?;
        let mut keys = Vec::new();
        for node in &nodes {
            let mut cursor = "0".to_owned();
            let mut count = SCAN_COUNT;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor)
                    .arg("MATCH")
                    .arg(pattern)
                    .arg("COUNT")
                    .arg(count);
                scan.arg("TYPE").arg("string");
                let found = self
                    .within(
                        self.config.answer_timeout,
                        &mut current,
                        Outgoing::At(node.as_ref(), &scan),
                    )
                    .await?;
                let RedisReply::List(parts) = RedisReply::from(found) else {
                    break;
                };
                let mut parts = parts.into_iter();
                let (Some(RedisReply::Text(next)), Some(RedisReply::List(some))) =
                    (parts.next(), parts.next())
                else {
                    break;
                };
                count = if some.is_empty() {
                    SCAN_MOST.min(2 * count)
                } else {
                    SCAN_COUNT
                };
                keys.extend(some.into_iter().filter_map(|key| match key {
                    RedisReply::Text(key) => Some(key),
                    _ => None,
                }));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Where each master of a cluster is; `None` for the one server there is.
    pub(super) async fn masters(
        &self,
        current: &mut (OpenConnection, u64),
    ) -> Result<Vec<Option<(String, u16)>>, Trouble> {
        if !matches!(current.0.connection, Connection::Cluster(_)) {
            return Ok(vec![None]);
        }
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let slots = self
            .within(
                self.config.answer_timeout,
                current,
                Outgoing::At(None, &ask),
            )
            .await?;
        Ok(silence::masters(&slots.into())
            .into_iter()
            .map(Some)
            .collect())
    }
}
