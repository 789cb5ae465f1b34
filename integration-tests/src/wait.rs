//! The one loop that waits for a state a server does not announce.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::{Error, Result};

/// The pause between two looks: short against any start-up time, long enough not to load the server.
const PAUSE: Duration = Duration::from_millis(10);

/// One look at a frozen server must end so that the next can be made.
const LOOK: Duration = Duration::from_secs(1);

/// Looks again and again until `look` succeeds, and returns what it saw.
///
/// For states that a server reaches without telling anybody: it is up, a fail-over is over. The condition must be the
/// thing awaited, never an assertion of a test.
///
/// # Errors
/// [`Error::TimedOut`] with the last answer when `limit` has passed. [`Error::Ended`], [`Error::PortTaken`] and
/// [`Error::NotInstalled`] end the wait at once, because no later look can be better.
pub async fn until<T, F>(what: &str, limit: Duration, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let end = Instant::now() + limit;
    loop {
        let last = match timeout(LOOK, look()).await {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(error)) if error.is_final() => return Err(error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {LOOK:?}"),
        };
        if Instant::now() >= end {
            return Err(Error::TimedOut {
                what: what.to_owned(),
                limit,
                last,
            });
        }
        sleep(PAUSE).await;
    }
}
