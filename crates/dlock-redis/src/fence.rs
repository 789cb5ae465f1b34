//! Where the token comes from, and how a write of the user's own is fenced.
//!
//! The token is made by the scripts: `max(last + 1, server time in microseconds)`. The lock's key keeps the last one, so that tokens
//! increase also when the clock does not; and since it is a time, they increase also when the key was lost (eviction, fail-over).

use std::time::Duration;

use dlock_core::{Error, ErrorKind, FencingToken, Result};

use crate::backend::Store;
use crate::connect::{Answer, Call, millis};
use crate::key::beside;

/// The script behind [`RedisBackend::fenced_set`](crate::RedisBackend::fenced_set), for your own client: its header says what
/// it takes.
pub const FENCED_SET: &str = include_str!("scripts/fenced_set.lua");

/// How long the highest token seen is kept after the last write: longer than any holder may sleep.
const SEEN_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

impl Store {
    pub(crate) async fn set_fenced(
        &self,
        key: &str,
        value: &[u8],
        token: FencingToken,
    ) -> Result<bool> {
        let seen = beside(key, "dlock-fence:")?;
        let keys = [key, seen.as_str()];
        let call = Call::new(&self.scripts.fenced_set, keys.into_iter())
            .arg(token.get().to_string())
            .arg(value)
            .arg(millis(SEEN_TTL).to_string());
        match self.link.call(&call, self.config.answer_timeout).await?.0 {
            Answer::Number(written) => Ok(written == 1),
            _ => Err(Error::new(
                ErrorKind::Store,
                "the server's script answered in an unknown form",
            )),
        }
    }
}
