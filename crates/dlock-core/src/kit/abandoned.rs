//! The attempts that were abandoned.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::texts::abandoned;
use crate::Result;
use crate::backend::AttemptId;

/// How long an abandoned attempt is remembered: longer than any task or thread of it can still be on its way to the store.
const REMEMBER: Duration = Duration::from_secs(300);

/// Of all clients of this process: requests of an attempt come from nowhere else.
static ABANDONED: Mutex<Abandoned> = Mutex::new(Abandoned::new());

/// From now on this process makes no more requests for the attempt: [`refuse_abandoned`] sees to that.
///
/// [`Backend::abandon`](crate::backend::Backend::abandon) must be final: nothing of the attempt may take effect after it
/// ([C13](crate::contract#c13)). A task or thread of it may just be about to send its request, though. Where the store itself can be told to refuse
/// that (a tombstone), nothing else is needed. Elsewhere the backend calls this first thing in `abandon`, and [`refuse_abandoned`] in the same
/// critical section, or on the same ordered connection, in which an attempt takes effect. Remembered for five minutes, for all clients of the
/// process.
///
/// ```
/// use dlock_core::backend::AttemptId;
/// use dlock_core::kit;
///
/// let attempt = AttemptId::new();
/// assert!(kit::refuse_abandoned(attempt).is_ok());
/// kit::remember_abandoned(attempt);
/// assert!(kit::refuse_abandoned(attempt).is_err());
/// ```
pub fn remember_abandoned(attempt: AttemptId) {
    locked().remember(attempt, Instant::now());
}

/// Whether a request may be made for the attempt.
///
/// # Errors
///
/// [`abandoned`](super::abandoned()) when it was abandoned.
pub fn refuse_abandoned(attempt: AttemptId) -> Result<()> {
    if locked().attempts.contains(&attempt) {
        return Err(abandoned());
    }
    Ok(())
}

fn locked() -> MutexGuard<'static, Abandoned> {
    ABANDONED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Abandoned {
    attempts: BTreeSet<AttemptId>,
    in_order: VecDeque<(Instant, AttemptId)>,
}

impl Abandoned {
    const fn new() -> Self {
        Self {
            attempts: BTreeSet::new(),
            in_order: VecDeque::new(),
        }
    }

    fn remember(&mut self, attempt: AttemptId, now: Instant) {
        while let Some((since, old)) = self.in_order.front().copied()
            && now.duration_since(since) > REMEMBER
        {
            self.attempts.remove(&old);
            self.in_order.pop_front();
        }
        if self.attempts.insert(attempt) {
            self.in_order.push_back((now, attempt));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_remembered_for_its_time_and_then_forgotten() {
        let mut abandoned = Abandoned::new();
        let (first, again, last) = (AttemptId::new(), AttemptId::new(), AttemptId::new());
        let start = Instant::now();
        abandoned.remember(first, start);
        abandoned.remember(again, start);
        abandoned.remember(again, start + REMEMBER / 2);
        abandoned.remember(last, start + REMEMBER);
        assert!(abandoned.attempts.contains(&first), "not a moment too soon");
        let moment = Duration::from_nanos(1);
        abandoned.remember(AttemptId::new(), start + REMEMBER + moment);
        assert!(!abandoned.attempts.contains(&first));
        assert!(abandoned.attempts.contains(&last));
        assert_eq!(abandoned.attempts.len(), 2, "nothing piles up");
        assert_eq!(abandoned.in_order.len(), 2);
    }
}
