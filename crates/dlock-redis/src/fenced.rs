//! Writes to keys of your own that a stale holder cannot make.

use std::time::Duration;

use dlock_core::fence::Mark;
use dlock_core::{Error, FencingToken, Result};

use crate::RedisBackend;
use crate::acquire::unexpected_reply;
use crate::connect::{RedisReply, ScriptCall, millis};
use crate::error::Trouble;
use crate::key::beside;
use crate::script::Script;
use crate::store::Store;

/// The script behind [`RedisBackend::fenced_set`] and [`RedisBackend::fenced_write`], for your own client: its header says what it takes.
pub const FENCED_SET: &str = include_str!("scripts/fenced_set.lua");

/// How long the highest token seen is kept after the last write: longer than any holder may sleep.
const SEEN_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

impl RedisBackend {
    /// Sets a key of your own, unless a holder with a higher token has done so before: `false` when the write was refused.
    ///
    /// One script. The highest token seen for the key stands in a key beside it (`dlock-fence:{key}`) for 30 days after the last
    /// write. All writers of the key must use this, or the script [`FENCED_SET`] by their own client. Where the locks may be moved to another
    /// store one day, use [`fenced_write`](RedisBackend::fenced_write) from the start.
    ///
    /// ```no_run
    /// # async fn sell() -> Result<(), dlock_core::Error> {
    /// use std::sync::Arc;
    /// use dlock_core::Locks;
    ///
    /// let redis = Arc::new(dlock_redis::Config::from_url("redis://127.0.0.1")?.connect().await?);
    /// let locks = Locks::new(redis.clone())?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// if let Some(token) = guard.token() {
    ///     let written = redis.fenced_set("stock:42:left", b"4999", token).await?;
    ///     assert!(written, "somebody with a later hold has written already");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the server did not confirm, or in a cluster no key can be kept beside this one; [`Conflict`](dlock_core::ErrorKind::Conflict) when the
    /// last write named its store or an epoch, so that this token says nothing.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may happen or not.
    pub async fn fenced_set(
        &self,
        key: &str,
        value: impl AsRef<[u8]>,
        token: FencingToken,
    ) -> Result<bool> {
        let mine = (&*token.get().to_string(), "0", "");
        let refused = self.store.write_fenced(key, value.as_ref(), mine).await;
        match refused.map_err(with_context)? {
            None => Ok(true),
            Some(highest) if highest.epoch == 0 && highest.store.is_empty() => Ok(false),
            Some(highest) => match Mark::new(token)?.check(&highest, key) {
                Ok(()) => Ok(false),
                Err(error) => Err(with_context(error)),
            },
        }
    }

    /// Sets a key of your own, unless a later holder has done so before; with the store and the epoch that the token is from, so that locks can be
    /// moved from one store to another (see [`dlock_core::fence`]).
    ///
    /// ```no_run
    /// # async fn sell() -> Result<(), dlock_core::Error> {
    /// use std::sync::Arc;
    /// use dlock_core::Locks;
    /// use dlock_core::fence::Mark;
    ///
    /// let redis = Arc::new(dlock_redis::Config::from_url("redis://127.0.0.1")?.connect().await?);
    /// let locks = Locks::new(redis.clone())?; // or those of another store
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// if let Some(token) = guard.token() {
    ///     let mark = Mark::new(token)?.of_store(locks.identity()).in_epoch(1);
    ///     redis.fenced_write("stock:42:left", b"4999", &mark).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was written: [`Lost`](dlock_core::ErrorKind::Lost) when a later holder of the same store was here,
    /// [`Conflict`](dlock_core::ErrorKind::Conflict) when the tokens cannot be compared, since the last write was of another store or of a later
    /// epoch. Else as for [`fenced_set`](RedisBackend::fenced_set).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may happen or not.
    pub async fn fenced_write(
        &self,
        key: &str,
        value: impl AsRef<[u8]>,
        mark: &Mark,
    ) -> Result<()> {
        if mark.epoch < 0 || mark.token < 0 {
            return Err(with_context(Error::invalid(format!(
                "the mark has epoch {} and token {}: neither may be below zero",
                mark.epoch, mark.token
            ))));
        }
        let (token, epoch) = (mark.token.to_string(), mark.epoch.to_string());
        let mine = (&*token, &*epoch, &*mark.store);
        let refused = self.store.write_fenced(key, value.as_ref(), mine).await;
        match refused.map_err(with_context)? {
            None => Ok(()),
            Some(highest) => mark.check(&highest, key).map_err(with_context),
        }
    }

    /// Forgets what has written to a key: the next fenced write passes, whatever its token. Only when no earlier holder can still be alive; a higher
    /// epoch is the safer way. The key itself stays.
    ///
    /// # Errors
    ///
    /// As for [`fenced_set`](RedisBackend::fenced_set).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may be forgotten or not.
    pub async fn reset_fence(&self, key: &str) -> Result<()> {
        self.store.reset_fence(key).await.map_err(with_context)
    }
}

fn with_context(error: Error) -> Error {
    error.with_backend("redis")
}

impl Store {
    /// Writes by token, epoch and store. When that was refused: what the last write came with.
    async fn write_fenced(
        &self,
        key: &str,
        value: &[u8],
        (token, epoch, store): (&str, &str, &str),
    ) -> Result<Option<Mark>> {
        let seen = beside(key, "dlock-fence:")?;
        let keys = [key, seen.as_str()];
        let call = ScriptCall::new(&self.scripts.fenced_set, keys.into_iter())
            .arg(token)
            .arg(value)
            .arg(millis(SEEN_TTL).to_string())
            .arg(epoch)
            .arg(store);
        let answer = self.link.call(&call, self.config.answer_timeout).await?.0;
        if matches!(answer, RedisReply::Number(1)) {
            return Ok(None);
        }
        let highest = refusal(answer);
        let highest =
            highest.ok_or_else(|| unexpected_reply("to a fenced write in an unknown form"));
        Ok(Some(highest?))
    }

    async fn reset_fence(&self, key: &str) -> Result<()> {
        let seen = beside(key, "dlock-fence:")?;
        let script = Script::new("reset fence", "return redis.call('DEL', KEYS[1])");
        let call = ScriptCall::new(&script, std::iter::once(seen.as_str()));
        let answer = self.link.call(&call, self.config.answer_timeout).await;
        answer.map(drop).map_err(Trouble::into)
    }
}

/// What the last write came with. A token that is too large for a mark is higher than any of ours.
fn refusal(answer: RedisReply) -> Option<Mark> {
    let RedisReply::List(parts) = answer else {
        return None;
    };
    let [
        RedisReply::Text(epoch),
        RedisReply::Text(token),
        RedisReply::Text(store),
    ] = parts.as_slice()
    else {
        return None;
    };
    Some(Mark {
        epoch: epoch.parse().ok()?,
        token: token.parse().unwrap_or(i64::MAX),
        store: store.clone(),
    })
}
