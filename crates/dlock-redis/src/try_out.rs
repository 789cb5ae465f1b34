//! A lock that is taken and freed when a client connects, so that a missing permission shows then.

use std::time::Duration;

use dlock_core::backend::AttemptId;
use dlock_core::{ErrorKind, Mode};
use uuid::Uuid;

use crate::config::Style;
use crate::connect::ScriptCall;
use crate::error::Trouble;
use crate::script_args::Attempt32;
use crate::store::Store;

impl Store {
    /// Connects, and takes and frees a lock of its own, so that a missing permission shows now and not at the first lock. All of
    /// it within the connect time-out.
    pub(crate) async fn check(&self) -> Result<(), Trouble> {
        let limit = self.config.connect_timeout;
        tokio::time::timeout(limit, self.try_out())
            .await
            .unwrap_or_else(|_| {
                Err(Trouble::new(
                    ErrorKind::TimedOut,
                    format!("not ready within {limit:?}: is the server overloaded or far away?"),
                )
                .unsent())
            })
    }

    async fn try_out(&self) -> Result<(), Trouble> {
        self.link.connect().await?;
        self.hear().await?;
        if let Some(acquires) = &self.acquires {
            acquires.connect().await?;
        }
        let key = self
            .keys
            .lock(&format!("dlock-check-{}", Uuid::new_v4().simple()));
        let attempt = AttemptId::new();
        let (take, free) = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, attempt)?;
            let on =
                |script| ScriptCall::new(script, [key.as_str(), tombstone.as_str()].into_iter());
            (
                on(&self.scripts.acquire)
                    .arg(Attempt32::new(attempt))
                    .arg("1"),
                on(&self.scripts.abandon)
                    .arg(Attempt32::new(attempt))
                    .arg("1"),
            )
        } else {
            // Everything it leaves is gone after a millisecond or two.
            let (args, moment) = (self.script_args.for_a_moment(), Duration::from_millis(1));
            (
                ScriptCall::on(&self.scripts.acquire, &key)
                    .arg(args.holder(attempt, ""))
                    .arg(args.acquire(Mode::Exclusive, moment, ""))
                    .arg(args.lasts(moment).to_string()),
                ScriptCall::on(&self.scripts.abandon, &key)
                    .arg(Attempt32::new(attempt))
                    .arg(args.plain())
                    .arg("1"),
            )
        };
        // So that the server knows this script too: the first renewal would else cost two answers, which a slow network may not give
        // within the part of a short lease that a renewal has.
        let sort: &[u8] = match self.config.style {
            Style::Plain => b"",
            _ => b"X",
        };
        let renew = ScriptCall::new(&self.scripts.renew, std::iter::once(key.as_str()))
            .arg(self.script_args.fence())
            .arg([sort, Attempt32::new(attempt).as_ref()].concat())
            .arg("1");
        for call in [take, renew, free] {
            let answer = self.link.call(&call, self.config.connect_timeout).await;
            answer.map_err(|trouble| trouble.about("checking what we may do").unsent())?;
        }
        if self.config.is_cluster() {
            let taught = self.link.teach(&self.scripts.renew).await;
            if let Err(trouble) = taught {
                tracing::debug!(
                    error = trouble.message(),
                    "not every node knows how to renew"
                );
            }
        }
        // A user without the right to publish could not tell a waiter of its grant: each hand-over would wait for the next sign of life, and no error say why.
        let told = self
            .ears
            .as_ref()
            .unwrap_or(&self.link)
            .tell_ourselves()
            .await;
        told.map_err(|trouble| trouble.about("checking what we may do").unsent())
    }
}
