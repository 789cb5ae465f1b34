//! One attempt, and its undo.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{AttemptId, Busy, Lease, Outcome, Request};
use dlock_core::{ErrorKind, Mode};

use crate::batcher::{BatchOutcome, Dispatch, LoneRequest};
use crate::config::Style;
use crate::connect::{RedisReply, ScriptCall, millis};
use crate::error::Trouble;
use crate::fence;
use crate::key::Keys;
use crate::script_args::Attempt32;
use crate::store::Store;

/// How long a request of an abandoned attempt that is still under way is refused.
pub(crate) const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// What one attempt found.
#[derive(Debug)]
pub(crate) enum AttemptOutcome {
    Held(Lease),
    Others {
        /// When asking again is worth it.
        free_in: Option<Duration>,
        /// The last token given out: a later grant has a higher one.
        last: u64,
        /// A request may still be under way, and must be refused when the attempt is given up ([C13](dlock_core::contract#c13)).
        stray: bool,
    },
}

/// What became of the first step of an attempt.
#[derive(Debug)]
pub(crate) enum FirstStep<T> {
    Held(T),
    /// It has to ask by itself.
    Ask {
        /// To be kept until the answer is there.
        alone: Option<LoneRequest>,
        /// A request may still be under way.
        stray: bool,
    },
}

impl<T> FirstStep<T> {
    const ASK: Self = Self::Ask {
        alone: None,
        stray: false,
    };
}

/// Kept with a hold whose release must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseHint {
    /// A request may still be under way: the release must keep it from taking effect ([C13](dlock_core::contract#c13)).
    Stray,
    /// Others wanted the lock too, so there is no short cut for its release.
    Contended,
}

impl Store {
    /// How an attempt begins: when many of this client ask at once they go together, and those whose lock is simply free have it.
    pub(crate) async fn begin(&self, request: &Request) -> Result<FirstStep<Lease>, Trouble> {
        // Read before the first byte is sent (C7).
        let sent = request.now();
        let wish = || {
            (
                self.keys.lock(request.name()),
                self.script_args.holder(request.attempt(), request.label()),
                self.script_args.lasts(request.lease()),
            )
        };
        let step = self.take_together(request.mode(), self.limit(request), wish);
        Ok(match step.await? {
            FirstStep::Held(token) => FirstStep::Held(fence::lease(request, sent, token)),
            FirstStep::Ask { alone, stray } => FirstStep::Ask { alone, stray },
        })
    }

    /// Takes a lock together with others, if it is simply free: with its token. `wish` is the key, the end of its value and its time to live.
    pub(crate) async fn take_together(
        &self,
        mode: Mode,
        limit: Duration,
        wish: impl FnOnce() -> (String, Vec<u8>, u64),
    ) -> Result<FirstStep<u64>, Trouble> {
        let batcher = self.batcher.as_ref();
        let Some(batcher) = batcher.filter(|_| mode == Mode::Exclusive) else {
            return Ok(FirstStep::ASK);
        };
        let place = match batcher.try_acquire(wish) {
            Dispatch::Alone(alone) => {
                return Ok(FirstStep::Ask {
                    alone,
                    stray: false,
                });
            }
            Dispatch::Together(place) => place,
        };
        match place.answer(limit).await {
            Ok(BatchOutcome::Taken(token)) => Ok(FirstStep::Held(token)),
            Ok(_) => Ok(FirstStep::ASK),
            Err(trouble) if trouble.may_go_again() => Ok(FirstStep::Ask {
                alone: None,
                stray: trouble.is_sent(),
            }),
            Err(trouble) => Err(trouble),
        }
    }

    /// An attempt that does not wait.
    pub(crate) async fn try_acquire(&self, request: &Request) -> Result<AttemptOutcome, Trouble> {
        match self.begin(request).await? {
            FirstStep::Held(lease) => Ok(AttemptOutcome::Held(lease)),
            FirstStep::Ask {
                alone: _until_answered,
                stray,
            } => {
                let mut reply = self.ask(request, "", self.limit(request)).await;
                if stray {
                    reply = reply.map(AttemptOutcome::astray).map_err(Trouble::in_doubt);
                }
                if let Ok(AttemptOutcome::Others { stray: true, .. }) = reply {
                    let undone = self.abandon(request, millis(TOMBSTONE_TTL)).await;
                    undone.map_err(Trouble::in_doubt)?;
                }
                reply
            }
        }
    }

    /// Asks once; with an inbox, the attempt then stands in the queue if others hold the lock.
    pub(crate) async fn ask(
        &self,
        request: &Request,
        inbox: &str,
        limit: Duration,
    ) -> Result<AttemptOutcome, Trouble> {
        let key = self.keys.lock(request.name());
        let (attempt, lease) = (request.attempt(), request.lease());
        let call = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, attempt)?;
            let keys = [key.as_str(), tombstone.as_str()];
            ScriptCall::new(&self.scripts.acquire, keys.into_iter())
                .arg(Attempt32::new(attempt))
                .arg(millis(lease).to_string())
        } else {
            ScriptCall::on(&self.scripts.acquire, &key)
                .arg(self.script_args.holder(attempt, request.label()))
                .arg(self.script_args.acquire(request.mode(), lease, inbox))
                .arg(self.script_args.lasts(lease).to_string())
        };
        // Read before the first byte is sent (C7).
        let sent = request.now();
        let answer = match &self.acquires {
            None => {
                let (answer, twice) = self.link.call(&call, limit).await?;
                let reply = Self::read(request, sent, answer);
                // Whatever was said to the second request, the first one may still come.
                return if twice {
                    reply.map(AttemptOutcome::astray).map_err(Trouble::in_doubt)
                } else {
                    reply
                };
            }
            Some(link) => {
                let held = |answer: &RedisReply| matches!(answer, RedisReply::Text(_));
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

    fn read(
        request: &Request,
        sent: dlock_core::Moment,
        answer: RedisReply,
    ) -> Result<AttemptOutcome, Trouble> {
        match answer {
            RedisReply::Text(token) => {
                if token.is_empty() {
                    return Ok(AttemptOutcome::Held(Lease::new(request, sent)));
                }
                match token.parse() {
                    Ok(token) => Ok(AttemptOutcome::Held(fence::lease(request, sent, token))),
                    Err(_) => Err(unexpected_reply("a token that is no number")),
                }
            }
            RedisReply::Number(left) => Ok(AttemptOutcome::Others {
                free_in: in_millis(left),
                last: 0,
                stray: false,
            }),
            RedisReply::List(parts) => match parts.as_slice() {
                [RedisReply::Number(left), RedisReply::Text(last)] => Ok(AttemptOutcome::Others {
                    free_in: in_millis(*left),
                    last: last
                        .parse()
                        .map_err(|_| unexpected_reply("a token that is no number"))?,
                    stray: false,
                }),
                [RedisReply::Text(what)] if what == "abandoned" => Err(Trouble::new(
                    ErrorKind::Store,
                    "this attempt was abandoned: make a new one",
                )
                .unsent()),
                [RedisReply::Text(what), RedisReply::Text(used)] if what == "conflict" => {
                    Err(Trouble::new(
                        ErrorKind::Conflict,
                        format!(
                            "this semaphore is in use with {used} permits, not as {}: everybody must give the same limit",
                            request.mode()
                        ),
                    )
                    .unsent())
                }
                _ => Err(unexpected_reply("an unknown list")),
            },
            RedisReply::Nothing => Err(unexpected_reply("nothing")),
        }
    }

    /// Removes whatever an attempt left; requests of it that come within `memory` ms are refused.
    pub(crate) async fn abandon(&self, request: &Request, memory: u64) -> Result<(), Trouble> {
        let key = self.keys.lock(request.name());
        let attempt = Attempt32::new(request.attempt());
        let call = if self.config.style == Style::Plain {
            let tombstone = self.tombstone(&key, request.attempt())?;
            let keys = [key.as_str(), tombstone.as_str()];
            ScriptCall::new(&self.scripts.abandon, keys.into_iter()).arg(attempt)
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
    ) -> ScriptCall<'a> {
        ScriptCall::on(script, key)
            .arg(attempt)
            .arg(self.script_args.plain())
    }

    pub(crate) fn tombstone(&self, key: &str, attempt: AttemptId) -> Result<String, Trouble> {
        Keys::tombstone(key, attempt, self.config.is_cluster())
            .map_err(|error| Trouble::new(ErrorKind::Invalid, error.message()).unsent())
    }

    /// How long an answer to this request may take.
    pub(crate) fn limit(&self, request: &Request) -> Duration {
        self.config.answer_timeout.min(request.trip_timeout())
    }
}

impl AttemptOutcome {
    /// A request for it may still be under way.
    pub(crate) fn astray(self) -> Self {
        match self {
            Self::Held(lease) => Self::Held(lease.with_native(Arc::new(ReleaseHint::Stray))),
            Self::Others { free_in, last, .. } => Self::Others {
                free_in,
                last,
                stray: true,
            },
        }
    }
}

impl From<AttemptOutcome> for Outcome {
    fn from(reply: AttemptOutcome) -> Self {
        match reply {
            AttemptOutcome::Held(lease) => Self::Held(lease),
            AttemptOutcome::Others { free_in, .. } => Self::Busy(Busy {
                retry_after: free_in,
            }),
        }
    }
}

fn in_millis(left: i64) -> Option<Duration> {
    let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
    Some(Duration::from_millis(left))
}

pub(crate) fn unexpected_reply(what: &str) -> Trouble {
    Trouble::new(
        ErrorKind::Store,
        format!("the server's script answered {what}: does another program use the same keys?"),
    )
}
