//! Free if still the owner; downgrade; break.

use dlock_core::backend::Lease;
use dlock_core::{Error, ErrorKind, Mode, Name, Released, Result};

use crate::acquire::{ReleaseHint, TOMBSTONE_TTL};
use crate::backend::Store;
use crate::batcher::{Dispatch, Said};
use crate::config::Style;
use crate::connect::{Answer, Call, millis};
use crate::error::Trouble;
use crate::script_args::Attempt32;

impl Store {
    pub(crate) async fn free(&self, lease: &Lease) -> Result<Released> {
        let past = lease.native::<ReleaseHint>().copied();
        let many = self.batcher.as_ref();
        let many = many.filter(|_| past.is_none() && lease.mode() == Mode::Exclusive);
        let mut twice = false;
        let mut until_answered = None;
        if let Some(many) = many {
            match many.free(|| (self.keys.lock(lease.name()), lease.attempt())) {
                Dispatch::Alone(alone) => until_answered = Some(alone),
                Dispatch::Together(place) => match place.answer(self.config.answer_timeout).await {
                    Ok(Said::Freed) => return Ok(Released::Freed),
                    Ok(_) => {}
                    Err(trouble) if trouble.may_go_again() => twice = trouble.is_sent(),
                    Err(trouble) => return Err(trouble.into()),
                },
            }
        }
        // In a box: what goes together with others does not pay for the room.
        let freed = Box::pin(self.free_alone(lease, past == Some(ReleaseHint::Stray), twice)).await;
        drop(until_answered);
        freed
    }

    /// Frees a hold in a trip of its own; `twice` when a request before may have done it.
    async fn free_alone(&self, lease: &Lease, stray: bool, twice: bool) -> Result<Released> {
        let key = self.keys.lock(lease.name());
        let attempt = Attempt32::new(lease.attempt());
        let memory = if stray { millis(TOMBSTONE_TTL) } else { 0 };
        let call = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, lease.attempt())?;
            let keys = [key.as_str(), tombstone.as_str()];
            Call::new(&self.scripts.release, keys.into_iter())
                .arg(attempt)
                .arg(memory.to_string())
        } else if stray {
            self.call(&self.scripts.abandon, &key, attempt)
                .arg(memory.to_string())
        } else {
            self.call(&self.scripts.release, &key, attempt)
        };
        let limit = self.config.answer_timeout;
        match self.link.call(&call, limit).await? {
            (Answer::Number(1), _) => Ok(Released::Freed),
            (_, again) if !again && !twice => Ok(Released::AlreadyLost),
            // The first request may have freed it, and its answer was lost: nobody knows (C15).
            _ => Err(Trouble::new(
                ErrorKind::Unreachable,
                "the connection broke during the release, and afterwards the hold was gone",
            )
            .into()),
        }
    }

    pub(crate) async fn share(&self, lease: &Lease) -> Result<()> {
        let key = self.keys.lock(lease.name());
        let attempt = Attempt32::new(lease.attempt());
        let call = self.call(&self.scripts.downgrade, &key, attempt);
        match self.link.call(&call, self.config.answer_timeout).await?.0 {
            Answer::Number(1) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Lost,
                "the hold is gone, so there is nothing to downgrade",
            )),
        }
    }

    pub(crate) async fn free_by_force(&self, name: &Name) -> Result<bool> {
        let key = self.keys.lock(name);
        let call = self.call(&self.scripts.break_lock, &key, "");
        let answer = self.link.call(&call, self.config.answer_timeout).await?.0;
        Ok(matches!(answer, Answer::Number(1)))
    }
}
