//! How a waiter of `lease` and `unique` waits: for the bell of the name, and beside that it asks again.
//!
//! Who has the bell, or is the first who could have it, asks every few milliseconds while the holder has none. Who queues for it asks every few seconds,
//! in case that no bell rings, and when the holder's lease ends. Without bells, pauses grow with the age of the hold that is in
//! the way: where holds are short, somebody asks every few milliseconds; a crowd that waits for a long one would cost the server a core for
//! nothing, and hears of its end a twentieth of its length later at most. A loop of its own, beside the one in core, because that one
//! knows neither bells nor ages.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::backend::{Backoff, Busy, Lease, Outcome, Request};
use dlock_core::{Capabilities, Mode, Moment, WakeUp, kit};

use crate::bell::{Bell, Bells, Turn};
use crate::error::Trouble;
use crate::waiters::Waiters;

const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause between two questions while holds are short (less than a second).
pub(crate) const SHORT_HOLDS: Duration = Duration::from_millis(50);
/// The longest pause between two questions.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The pause of one that queues for the bell, from half of it on: the next one is woken, and this is in case that no bell rings.
const NET_PAUSE: Duration = Duration::from_millis(1200);
/// Who waits for a shorter time than this does not wait for a bell.
const SHORTEST_BELL: Duration = Duration::from_secs(1);
/// How long one that has reason to think that others wait queues for the bell, before it asks for the lock all the same.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The next one is woken within this time after a release, with nobody disturbing.
const WAKE_UP: Duration = Duration::from_millis(100);
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
    /// One that waits looks first, because an attempt at once locks the row, and keeps its holder from giving it back.
    async fn try_once(&self, request: &Request, look_first: bool) -> Result<Tried, Trouble>;

    /// Where those who wait make themselves known.
    fn waiters(&self) -> &Waiters;

    /// How those who wait are woken.
    fn bells(&self) -> &Arc<Bells>;
}

/// How those who wait are woken.
pub(crate) fn declare(bells: &Bells, capabilities: &mut Capabilities) {
    capabilities.wake_up = if bells.are_on() {
        WakeUp::Push { bound: WAKE_UP }
    } else {
        WakeUp::Poll {
            longest: SHORT_HOLDS,
        }
    };
}

/// Where a waiter stands.
enum Queued {
    /// It has not asked for the bell.
    NotYet,
    Waits(Turn),
    Has(Bell),
    /// There is no bell for it.
    Without,
}

impl Queued {
    fn enter(bells: &Arc<Bells>, request: &Request) -> Self {
        bells
            .queue(request.name())
            .map_or(Self::Without, Self::Waits)
    }

    /// Until the bell is ours, or the time has come to ask without it.
    async fn wait(&mut self, request: &Request, until: Moment) {
        let sleep = request.clock().sleep_until(until);
        let Self::Waits(turn) = self else {
            return sleep.await;
        };
        let bell = tokio::select! {
            biased;
            bell = turn => bell,
            () = sleep => return,
        };
        *self = bell.map_or(Self::Without, Self::Has);
    }

    /// An exclusive hold keeps the bell, and rings when it ends. Others share the lock, so the next one may try at once.
    fn settle(self, lease: Lease) -> Lease {
        match self {
            Self::Has(bell) if lease.mode() == Mode::Exclusive => lease.with_native(bell.kept()),
            _ => lease,
        }
    }
}

/// Tries until held or the deadline has passed.
pub(crate) async fn acquire<T: Tries + ?Sized>(
    tries: &T,
    request: &Request,
) -> Result<Outcome, Trouble> {
    let mut backoff = Backoff::new(SHORTEST_PAUSE, SHORT_HOLDS);
    let mut sign = tries.waiters().sign(request.name());
    let (bells, name) = (tries.bells(), request.name());
    let mut queued = Queued::NotYet;
    // A bell needs a connection, and one that is given up while it waits stays at the server for about a second: who has less time asks the row alone.
    let has_time = |request: &Request| request.time_left().is_none_or(|left| left > SHORTEST_BELL);
    let mut look_first = false;
    if has_time(request) && bells.others_may_wait(name) {
        // Behind those who wait already: whoever asked at once would always be faster than the one that is woken.
        queued = Queued::enter(bells, request);
        if let Queued::Waits(_) = queued {
            queued.wait(request, request.now() + FIRST_PAUSE).await;
            look_first = !matches!(queued, Queued::Has(_));
        }
    }
    loop {
        let limit = request.trip_timeout();
        let tried = tokio::time::timeout(limit, tries.try_once(request, look_first)).await;
        let others = match tried.unwrap_or_else(|_| Err(kit::no_answer(limit).into()))? {
            Tried::Held(lease) => return Ok(Outcome::Held(queued.settle(lease))),
            Tried::Busy(others) => others,
        };
        request.mark_contended();
        bells.note_others(name);
        sign.show(limit).await;
        if matches!(queued, Queued::NotYet) && has_time(request) {
            queued = Queued::enter(bells, request);
        }
        let has_bell = matches!(queued, Queued::Has(_));
        let pause = match queued {
            Queued::Waits(_) => until_end(between(NET_PAUSE), others),
            // Nobody else asks.
            Queued::Has(_) => until_end(backoff.pause(), others),
            _ => pause(&mut backoff, others),
        };
        let until = request.now() + pause;
        match request.deadline() {
            Some(deadline) if deadline <= until => {
                queued.wait(request, deadline).await;
                if request.now() >= deadline {
                    return Ok(Tried::Busy(others).into());
                }
            }
            _ => queued.wait(request, until).await,
        }
        // Woken by a release: a look would cost a trip more.
        look_first = has_bell || !matches!(queued, Queued::Has(_));
    }
}

fn pause(backoff: &mut Backoff, others: InTheWay) -> Duration {
    let top = (others.age.unwrap_or_default() / PART_OF_AGE).min(LONGEST_PAUSE);
    let pause = if top <= SHORT_HOLDS {
        backoff.pause()
    } else {
        backoff.reset();
        between(top)
    };
    until_end(pause, others)
}

/// At random, from the half of it on.
fn between(top: Duration) -> Duration {
    top / 2 + (top / 2).mul_f64(fastrand::f64())
}

/// A lease that ends unrenewed is a lock that is free.
fn until_end(pause: Duration, others: InTheWay) -> Duration {
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
