//! Takes several locks, all or none of them: the members of a multi-lock, or permits of a semaphore.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::random_between;
use crate::engine::spec::{LockSpec, Patience};
use crate::{Clock, Error, ErrorKind, Guard, HeldNow, Moment, Operation, Released, Result};

/// Who holds some members waits so long for the next before it gives them back: between half of it and all of it.
const WAIT_WITH_OTHERS: Duration = Duration::from_secs(1);
/// What a member may still take when the limit has passed while an earlier one was waited for.
const LAST_CHANCE: Duration = Duration::from_millis(20);

/// Waits as long as the settings of the members allow.
pub(crate) async fn wait_for_all(specs: &[&LockSpec]) -> Result<Guard> {
    let limit = specs
        .iter()
        .filter_map(|spec| spec.settings.wait_at_most)
        .min();
    let guard = match limit {
        Some(limit) if limit.is_zero() => take_all(specs, None).await?,
        limit => wait_within(specs, limit).await?,
    };
    guard.ok_or_else(|| {
        let limit = limit.unwrap_or_default();
        Error::new(
            ErrorKind::Busy,
            format!("not all locks were free within {limit:?}: try later, or wait longer"),
        )
        .with_operation(Operation::Acquire)
    })
}

/// Waits for one member while holding nothing, then for the others a short while each; who is not had is waited for next.
pub(super) async fn wait_within(
    specs: &[&LockSpec],
    limit: Option<Duration>,
) -> Result<Option<Guard>> {
    let Some(clock) = specs.first().map(|spec| spec.client.clock.clone()) else {
        return Err(no_members());
    };
    // The clock of the first member counts for all: clients may have different ones only in tests.
    let deadline = limit.map_or(Moment::NEVER, |limit| clock.now() + limit);
    let mut first = 0;
    let mut unconfirmed = false;
    loop {
        let order = (first..specs.len()).chain(0..first);
        let mut held = Held::new(specs.len(), clock.clone(), deadline);
        let mut missing = None;
        let mut trouble = None;
        for index in order {
            let Some(spec) = specs.get(index) else {
                continue;
            };
            let now = clock.now();
            let at_least = LAST_CHANCE / u32::try_from(specs.len()).unwrap_or(u32::MAX);
            let left = deadline.since(now).max(at_least);
            let patience = match held.guards.is_empty() {
                true if deadline == Moment::NEVER => Patience::Forever,
                true => Patience::Within(left),
                false => {
                    let wait = random_between(WAIT_WITH_OTHERS / 2, WAIT_WITH_OTHERS);
                    Patience::Within(wait.min(left))
                }
            };
            match spec.acquire(patience, &spec.settings.label).await {
                Ok(Some(guard)) => held.guards.push(guard),
                Ok(None) => {
                    missing = Some(index);
                    break;
                }
                // The patience with a store in trouble is longer than a wait with others: it is waited for alone.
                Err(error) if error.is_retryable() && !held.guards.is_empty() && now < deadline => {
                    missing = Some(index);
                    trouble = Some(error);
                    break;
                }
                Err(error) => {
                    let error = held.give_back_for(error).await;
                    return Err(if unconfirmed {
                        error.with_held(HeldNow::Unknown)
                    } else {
                        error
                    });
                }
            }
        }
        let Some(missing) = missing else {
            return held.join().map(Some);
        };
        unconfirmed |= !held.give_back().await;
        if clock.now() >= deadline {
            // A member out of reach is not busy (C5).
            return match trouble {
                Some(error) if unconfirmed => Err(error.with_held(HeldNow::Unknown)),
                Some(error) => Err(error),
                None => Ok(None),
            };
        }
        first = missing;
    }
}

/// Takes all of them without waiting for a holder.
pub(crate) async fn take_all(
    specs: &[&LockSpec],
    deadline: Option<Moment>,
) -> Result<Option<Guard>> {
    let Some(clock) = specs.first().map(|spec| spec.client.clock.clone()) else {
        return Err(no_members());
    };
    let mut held = Held::new(specs.len(), clock, deadline.unwrap_or(Moment::NEVER));
    for spec in specs {
        match spec.try_now().await {
            Ok(Some(guard)) => held.guards.push(guard),
            Ok(None) => {
                held.give_back().await;
                return Ok(None);
            }
            Err(error) => return Err(held.give_back_for(error).await),
        }
    }
    held.join().map(Some)
}

fn no_members() -> Error {
    Error::invalid("a multi-lock has no members")
}

/// The members that were had so far.
struct Held {
    guards: Vec<Guard>,
    clock: Arc<dyn Clock>,
    deadline: Moment,
}

impl Held {
    fn new(most: usize, clock: Arc<dyn Clock>, deadline: Moment) -> Self {
        Self {
            guards: Vec::with_capacity(most),
            clock,
            deadline,
        }
    }

    fn join(self) -> Result<Guard> {
        let guard = Guard::join(self.guards).ok_or_else(no_members)?;
        if guard.is_held() {
            return Ok(guard);
        }
        Err(Error::new(
            ErrorKind::TooLate,
            "the first locks were lost while waiting for the last: use a longer lease",
        )
        .with_operation(Operation::Acquire))
    }

    /// Gives back what was had, within the caller's limit: what is not confirmed by then goes on in the background. Returns whether
    /// all is free.
    async fn give_back(self) -> bool {
        let Some(guard) = Guard::join(self.guards) else {
            return true;
        };
        // Nobody had the locks all together: they are for others, not for the next task of this client.
        guard.not_passed_on();
        let until = self.deadline.max(self.clock.now() + LAST_CHANCE);
        tokio::select! {
            biased;
            released = guard.release() => match released {
                Ok(found) => found != Released::Unknown,
                Err(error) => {
                    tracing::warn!(%error, "a member of a multi-lock could not be given back yet; that is tried again");
                    false
                }
            },
            () = self.clock.sleep_until(until) => false,
        }
    }

    /// The error of the member that failed; it also tells whether another member may still be held.
    async fn give_back_for(self, error: Error) -> Error {
        if self.give_back().await || error.held_now() == HeldNow::Yes {
            error
        } else {
            error.with_held(HeldNow::Unknown)
        }
    }
}
