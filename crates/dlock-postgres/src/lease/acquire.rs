//! One attempt, and its undo.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Mode, kit};
use tokio_postgres::types::Type;

use super::LeaseLocks;
use crate::connect::{Arg, Job};
use crate::error::Trouble;
use crate::fence;
use crate::key::micros;

/// How long a request of an abandoned attempt that is still under way is refused. A pooler may keep one for minutes.
pub(crate) const TOMBSTONE_TTL: Duration = Duration::from_secs(300);

/// What one attempt found.
#[derive(Debug)]
pub(crate) enum AcquireReply {
    Held(Lease),
    Others {
        /// When asking again is worth it.
        free_in: Option<Duration>,
        /// The last token given out: a later grant has a higher one.
        last: i64,
        /// A request may still be under way, and must be refused when the attempt is given up ([C13](dlock_core::contract#c13)).
        stray: bool,
        /// Nobody at this server keeps the bell that the waiter named: who listens does so elsewhere.
        deaf: bool,
    },
}

/// How somebody waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait<'a> {
    /// Not at all.
    No,
    /// In the queue, asking again.
    Asking,
    /// In the queue, listening to this channel by the connection with this bell.
    Listening(&'a str, i64),
}

/// Kept with a hold when a request for it may still be under way: the release must keep it from taking effect ([C13](dlock_core::contract#c13)).
#[derive(Debug)]
pub(crate) struct Stray;

impl LeaseLocks {
    /// An attempt that does not wait.
    pub(crate) async fn try_acquire(&self, request: &Request) -> Result<Outcome, Trouble> {
        match self.ask(request, Wait::No, request.trip_timeout()).await? {
            AcquireReply::Held(lease) => Ok(Outcome::Held(lease)),
            AcquireReply::Others { free_in, stray, .. } => {
                if stray {
                    self.abandon(request).await.map_err(Trouble::in_doubt)?;
                }
                Ok(Outcome::Busy(Busy {
                    retry_after: free_in,
                }))
            }
        }
    }

    /// Asks once; one who waits then stands in the queue if others hold the lock.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        wait: Wait<'_>,
        limit: Duration,
    ) -> Result<AcquireReply, Trouble> {
        let kind = kind(request.mode())?;
        let (lease, patience) = (micros(request.lease()), micros(self.waiter_lease));
        let (channel, bell) = match wait {
            Wait::No => (None, None),
            Wait::Asking => (Some(""), None),
            Wait::Listening(channel, bell) => (Some(channel), Some(bell)),
        };
        let (name, label) = (request.name().as_str(), request.label());
        let attempt = request.attempt();
        let client = self.listener.channel();
        let args: [Arg<'_>; 9] = [
            (&name, Type::TEXT),
            (attempt.as_uuid(), Type::UUID),
            (&kind, Type::INT4),
            (&lease, Type::INT8),
            (&label, Type::TEXT),
            (&channel, Type::TEXT),
            (&bell, Type::INT8),
            (&patience, Type::INT8),
            (&client, Type::TEXT),
        ];
        // Read before the first byte is sent (C7).
        let sent = request.now();
        let job = Job::Ask(&self.sql.acquire, &args);
        let told = self.shared.call(job, limit).await?;
        let row = told.rows.first();
        let said: Option<i32> = row.and_then(|row| row.try_get(0).ok());
        let number: i64 = row.and_then(|row| row.try_get(1).ok()).unwrap_or(0);
        let last: Option<i64> = row.and_then(|row| row.try_get(2).ok());
        let doubt = |trouble: Trouble| {
            if told.again {
                trouble.in_doubt()
            } else {
                trouble.unsent()
            }
        };
        match said {
            Some(1) => {
                let mut lease = Lease::new(request, sent).with_token(fence::token(number)?);
                if told.again {
                    lease = lease.with_native(Arc::new(Stray));
                }
                Ok(AcquireReply::Held(lease))
            }
            Some(busy @ (0 | 4)) => Ok(AcquireReply::Others {
                free_in: in_micros(number),
                last: last.unwrap_or(0),
                stray: told.again,
                deaf: busy == 4,
            }),
            Some(2) => Err(doubt(kit::abandoned().into())),
            Some(3) => Err(doubt(kit::other_limit(number, request.mode()).into())),
            _ => Err(Trouble::unexpected_reply("something unknown to an acquire")),
        }
    }

    /// Removes whatever an attempt left, and keeps what is still under way from taking effect.
    pub(crate) async fn abandon(&self, request: &Request) -> Result<(), Trouble> {
        let attempt = *request.attempt().as_uuid();
        self.end_attempt(
            request.name().as_str(),
            attempt,
            TOMBSTONE_TTL,
            request.trip_timeout(),
        )
        .await?;
        Ok(())
    }
}

/// As it stands in the tables.
fn kind(mode: Mode) -> Result<i32, Trouble> {
    match mode {
        Mode::Exclusive => Ok(-1),
        Mode::Shared => Ok(0),
        Mode::Permit { limit } => i32::try_from(limit).map_err(|_| {
            Trouble::new(
                ErrorKind::Invalid,
                format!(
                    "a semaphore of {limit} permits is too large: at most {} here",
                    i32::MAX
                ),
            )
            .unsent()
        }),
        other => Err(Trouble::new(
            ErrorKind::Unsupported,
            format!("this backend does not know the mode \"{other}\": update it"),
        )
        .unsent()),
    }
}

fn in_micros(left: i64) -> Option<Duration> {
    let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
    Some(Duration::from_micros(left))
}
