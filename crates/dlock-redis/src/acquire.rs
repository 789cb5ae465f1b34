//! One attempt, and its undo.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Attempt, AttemptId, Busy, ErrorKind, Lease, Request};

use crate::backend::Store;
use crate::config::Style;
use crate::connect::{Answer, Call, millis};
use crate::error::Trouble;
use crate::how::Attempt32;
use crate::key::Keys;

/// How long a request of an abandoned attempt that is still under way is refused.
pub(crate) const MEMORY: Duration = Duration::from_secs(60);

/// What one attempt found.
#[derive(Debug)]
pub(crate) enum Reply {
    Held(Lease),
    Others {
        /// When asking again is worth it.
        free_in: Option<Duration>,
        /// The last token given out: a later grant has a higher one.
        last: u64,
    },
}

/// Kept with a hold of which a request may still be under way: its release must keep that from taking effect (C13).
#[derive(Debug)]
pub(crate) struct Stray;

impl Store {
    /// Asks once; with an inbox, the attempt then stands in the queue if others hold the lock.
    pub(crate) async fn ask(&self, request: &Request, inbox: &str) -> Result<Reply, Trouble> {
        let key = self.keys.lock(request.name());
        let (attempt, lease) = (request.attempt(), request.lease());
        let call = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, attempt)?;
            let keys = [key.as_str(), tombstone.as_str()];
            Call::new(&self.scripts.acquire, keys.into_iter())
                .arg(Attempt32::new(attempt))
                .arg(millis(lease).to_string())
        } else {
            Call::on(&self.scripts.acquire, &key)
                .arg(self.how.holder(attempt, request.label()))
                .arg(self.how.acquire(request.mode(), lease, inbox))
                .arg(self.how.lasts(lease))
        };
        let limit = self.limit(request);
        // Read before the first byte is sent (C7).
        let sent = request.now();
        let answer = match &self.acquires {
            None => {
                let (answer, twice) = self.link.call(&call, limit).await?;
                let reply = Self::read(request, sent, answer)?;
                return Ok(if twice { reply.astray() } else { reply });
            }
            Some(link) => {
                let held = |answer: &Answer| matches!(answer, Answer::Text(_));
                let (answer, replicas) = link.call_replicated(&call, limit, held).await?;
                if held(&answer) && replicas < self.config.replicas {
                    return Err(Trouble::new(
                        ErrorKind::Store,
                        format!(
                            "{replicas} of {} replicas confirmed the hold within {:?}, so it is undone",
                            self.config.replicas, self.config.replicas_timeout
                        ),
                    ));
                }
                answer
            }
        };
        Self::read(request, sent, answer)
    }

    fn read(request: &Request, sent: dlock_core::Moment, answer: Answer) -> Result<Reply, Trouble> {
        match answer {
            Answer::Text(token) => {
                let lease = Lease::new(request, sent);
                if token.is_empty() {
                    return Ok(Reply::Held(lease));
                }
                match token.parse() {
                    Ok(token) => Ok(Reply::Held(lease.with_token(token))),
                    Err(_) => Err(strange("a token that is no number")),
                }
            }
            Answer::Number(left) => Ok(Reply::Others {
                free_in: in_millis(left),
                last: 0,
            }),
            Answer::List(parts) => match parts.as_slice() {
                [Answer::Number(left), Answer::Text(last)] => Ok(Reply::Others {
                    free_in: in_millis(*left),
                    last: last
                        .parse()
                        .map_err(|_| strange("a token that is no number"))?,
                }),
                [Answer::Text(what)] if what == "abandoned" => Err(Trouble::new(
                    ErrorKind::Store,
                    "this attempt was abandoned: make a new one",
                )
                .unsent()),
                [Answer::Text(what), Answer::Text(used)] if what == "conflict" => {
                    Err(Trouble::new(
                        ErrorKind::Conflict,
                        format!(
                            "this semaphore is in use with {used} permits, not as {}: everybody must give the same limit",
                            request.mode()
                        ),
                    ))
                }
                _ => Err(strange("an unknown list")),
            },
            Answer::Nothing => Err(strange("nothing")),
        }
    }

    /// Removes whatever an attempt left; requests of it that come within `memory` ms are refused.
    pub(crate) async fn undo(&self, request: &Request, memory: u64) -> Result<(), Trouble> {
        let key = self.keys.lock(request.name());
        let attempt = Attempt32::new(request.attempt());
        let call = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, request.attempt())?;
            let keys = [key.as_str(), tombstone.as_str()];
            Call::new(&self.scripts.abandon, keys.into_iter()).arg(attempt)
        } else {
            self.call(&self.scripts.abandon, &key, attempt)
        };
        let call = call.arg(memory.to_string());
        self.link.call(&call, self.limit(request)).await.map(|_| ())
    }

    /// A call with the arguments that all scripts with a queue but the acquire begin with.
    pub(crate) fn call<'a>(
        &self,
        script: &'a crate::script::Script,
        key: &str,
        attempt: impl AsRef<[u8]>,
    ) -> Call<'a> {
        Call::on(script, key).arg(attempt).arg(self.how.plain())
    }

    pub(crate) fn tombstone(&self, key: &str, attempt: AttemptId) -> Result<String, Trouble> {
        Keys::tombstone(key, attempt, self.config.is_cluster())
            .map_err(|error| Trouble::new(ErrorKind::Invalid, error.message()).unsent())
    }

    fn limit(&self, request: &Request) -> Duration {
        self.config.answer_timeout.min(request.trip_timeout())
    }
}

impl Reply {
    /// A request for it may still be under way.
    pub(crate) fn astray(self) -> Self {
        match self {
            Self::Held(lease) => Self::Held(lease.with_native(Arc::new(Stray))),
            others => others,
        }
    }
}

impl From<Reply> for Attempt {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Held(lease) => Self::Held(lease),
            Reply::Others { free_in, .. } => Self::Busy(Busy {
                retry_after: free_in,
            }),
        }
    }
}

fn in_millis(left: i64) -> Option<Duration> {
    let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
    Some(Duration::from_millis(left))
}

pub(crate) fn strange(what: &str) -> Trouble {
    Trouble::new(
        ErrorKind::Store,
        format!("the server's script answered {what}: does another program use the same keys?"),
    )
}
