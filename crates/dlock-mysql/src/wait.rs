//! How a waiter of `lease` and `unique` waits: it asks again.
//!
//! Its pauses grow with the age of the hold that is in its way. Where holds are short, somebody asks every few milliseconds; a crowd that waits
//! for a long one would cost the server a core for nothing, and hears of its end a twentieth of its length later at most. A loop of its
//! own, beside the one in core, because that one knows no ages.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backoff, Busy, Lease, Outcome, Request};
use dlock_core::kit;

use crate::error::Trouble;
use crate::waiters::Waiters;

const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause between two questions while holds are short (less than a second).
pub(crate) const SHORT_HOLDS: Duration = Duration::from_millis(50);
/// The longest pause between two questions.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Which part of a hold's age a pause may be.
const PART_OF_AGE: u32 = 20;

/// The answer to one attempt.
#[derive(Debug)]
pub(crate) enum Tried {
    Held(Lease),
    Busy(InTheWay),
}

/// What the server told about whoever holds the lock.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct InTheWay {
    /// When its lease ends.
    pub(crate) left: Option<Duration>,
    /// For how long it has the lock; of several holders, the last that came.
    pub(crate) age: Option<Duration>,
}

impl From<Tried> for Outcome {
    fn from(tried: Tried) -> Self {
        match tried {
            Tried::Held(lease) => Self::Held(lease),
            Tried::Busy(others) => Self::Busy(Busy {
                retry_after: others.left,
            }),
        }
    }
}

/// A mode that makes single attempts.
#[async_trait]
pub(crate) trait Tries {
    async fn attempt(&self, request: &Request) -> Result<Tried, Trouble>;

    /// Where those who wait make themselves known.
    fn waiters(&self) -> &Waiters;
}

/// Tries until held or the deadline has passed.
pub(crate) async fn poll<T: Tries + ?Sized>(
    tries: &T,
    request: &Request,
) -> Result<Outcome, Trouble> {
    let mut backoff = Backoff::new(SHORTEST_PAUSE, SHORT_HOLDS);
    let mut sign = tries.waiters().sign(request.name());
    loop {
        let limit = request.trip_timeout();
        let tried = tokio::time::timeout(limit, tries.attempt(request)).await;
        let others = match tried.unwrap_or_else(|_| Err(kit::no_answer(limit).into()))? {
            Tried::Held(lease) => return Ok(Outcome::Held(lease)),
            Tried::Busy(others) => others,
        };
        request.mark_contended();
        sign.show(limit).await;
        let until = request.now() + pause(&mut backoff, others);
        match request.deadline() {
            Some(deadline) if deadline <= until => {
                request.clock().sleep_until(deadline).await;
                return Ok(Tried::Busy(others).into());
            }
            _ => request.clock().sleep_until(until).await,
        }
    }
}

fn pause(backoff: &mut Backoff, others: InTheWay) -> Duration {
    let top = (others.age.unwrap_or_default() / PART_OF_AGE).min(LONGEST_PAUSE);
    let pause = if top <= SHORT_HOLDS {
        backoff.pause()
    } else {
        backoff.reset();
        top / 2 + (top / 2).mul_f64(fastrand::f64())
    };
    // A lease that ends unrenewed is a lock that is free.
    others
        .left
        .map_or(pause, |left| pause.min(left.max(SHORTEST_PAUSE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(age: u64, left: u64) -> Duration {
        let others = InTheWay {
            left: Some(Duration::from_millis(left)),
            age: Some(Duration::from_millis(age)),
        };
        let mut backoff = Backoff::new(SHORTEST_PAUSE, SHORT_HOLDS);
        let all = (0..500).map(|_| pause(&mut backoff, others));
        all.max().unwrap_or_default()
    }

    #[test]
    fn pauses_grow_with_the_hold_and_not_before_it_is_long() {
        for age in [0, 10, 500, 1000] {
            assert!(longest(age, 30_000) <= Duration::from_millis(50), "{age}");
        }
        for (age, most) in [(2000, 100), (5000, 250), (10_000, 500), (3_600_000, 500)] {
            let longest = longest(age, 30_000);
            assert!(longest <= Duration::from_millis(most), "{age}: {longest:?}");
            assert!(longest > Duration::from_millis(most / 2), "{age}");
        }
    }

    #[test]
    fn nobody_sleeps_past_the_end_of_a_lease() {
        assert_eq!(longest(60_000, 30), Duration::from_millis(30));
        assert_eq!(longest(60_000, 0), SHORTEST_PAUSE);
    }
}
