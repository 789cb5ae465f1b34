//! Free if still the owner; downgrade; break.

use dlock_core::backend::{AttemptId, Lease};
use dlock_core::{Error, ErrorKind, Mode, Name, Released, Result};

use crate::acquire::{ReleaseHint, TOMBSTONE_TTL};
use crate::batcher::{BatchOutcome, Dispatch, LoneRequest};
use crate::config::Style;
use crate::connect::{RedisReply, ScriptCall, millis};
use crate::error::Trouble;
use crate::script_args::Attempt32;
use crate::store::Store;

/// What became of the first step of a release.
#[derive(Debug)]
pub(crate) enum FreeStep {
    Freed,
    /// It has to ask by itself.
    Ask {
        /// To be kept until the answer is there.
        alone: Option<LoneRequest>,
        /// A release of it was sent before, and may have freed it.
        sent_before: bool,
    },
}

impl Store {
    /// Frees an exclusive hold together with others, if nobody waits for it.
    pub(crate) async fn free_together(
        &self,
        name: &Name,
        attempt: AttemptId,
    ) -> Result<FreeStep, Trouble> {
        let (mut alone, mut sent_before) = (None, false);
        if let Some(batcher) = &self.batcher {
            match batcher.release(|| (self.keys.lock(name), attempt)) {
                Dispatch::Alone(request) => alone = request,
                Dispatch::Together(place) => match place.answer(self.config.answer_timeout).await {
                    Ok(BatchOutcome::Freed) => return Ok(FreeStep::Freed),
                    Ok(_) => {}
                    Err(trouble) if trouble.may_go_again() => sent_before = trouble.is_sent(),
                    Err(trouble) => return Err(trouble),
                },
            }
        }
        Ok(FreeStep::Ask { alone, sent_before })
    }

    pub(crate) async fn release(&self, lease: &Lease) -> Result<Released> {
        let hint = lease.native::<ReleaseHint>().copied();
        let together = hint.is_none() && lease.mode() == Mode::Exclusive;
        let (until_answered, sent_before) = if together {
            match self.free_together(lease.name(), lease.attempt()).await? {
                FreeStep::Freed => return Ok(Released::Freed),
                FreeStep::Ask { alone, sent_before } => (alone, sent_before),
            }
        } else {
            (None, false)
        };
        // In a box, so that the future of a release that goes with others stays small.
        let stray = hint == Some(ReleaseHint::Stray);
        let freed = Box::pin(self.release_alone(lease, stray, sent_before)).await;
        drop(until_answered);
        freed
    }

    /// Frees a hold in a trip of its own. `stray`: a request of its acquire may still be under way, and must be refused when it comes.
    /// `sent_before`: a release of it was sent before this one, and may have freed it.
    async fn release_alone(
        &self,
        lease: &Lease,
        stray: bool,
        sent_before: bool,
    ) -> Result<Released> {
        let key = self.keys.lock(lease.name());
        let attempt = Attempt32::new(lease.attempt());
        let memory = if stray { millis(TOMBSTONE_TTL) } else { 0 };
        let call = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, lease.attempt())?;
            let keys = [key.as_str(), tombstone.as_str()];
            ScriptCall::new(&self.scripts.release, keys.into_iter())
                .arg(attempt)
                .arg(memory.to_string())
        } else if stray {
            self.call(&self.scripts.abandon, &key, attempt)
                .arg(memory.to_string())
        } else {
            self.call(&self.scripts.release, &key, attempt)
        };
        let limit = self.config.answer_timeout;
        let answer = match self.link.call(&call, limit).await {
            // The first request may have freed it.
            Err(trouble) if sent_before => return Err(trouble.in_doubt().into()),
            answer => answer?,
        };
        match answer {
            (RedisReply::Number(1), _) => Ok(Released::Freed),
            (_, sent_twice) if !sent_twice && !sent_before => Ok(Released::AlreadyLost),
            // The first request may have freed it, and its answer was lost: nobody knows (C15).
            _ => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke during the release, and afterwards the hold was gone",
            )
            .into()),
        }
    }

    pub(crate) async fn downgrade(&self, lease: &Lease) -> Result<()> {
        let key = self.keys.lock(lease.name());
        let attempt = Attempt32::new(lease.attempt());
        let call = self.call(&self.scripts.downgrade, &key, attempt);
        match self.link.call(&call, self.config.answer_timeout).await?.0 {
            RedisReply::Number(1) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Lost,
                "the hold is gone, so there is nothing to downgrade",
            )),
        }
    }

    pub(crate) async fn break_lock(&self, name: &Name) -> Result<bool> {
        let key = self.keys.lock(name);
        let call = self.call(&self.scripts.break_lock, &key, "");
        let answer = self.link.call(&call, self.config.answer_timeout).await?.0;
        Ok(matches!(answer, RedisReply::Number(1)))
    }
}
