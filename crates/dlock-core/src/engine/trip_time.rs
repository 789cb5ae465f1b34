//! How long a trip to the store takes, as the trips of this client have shown.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time of a trip of late. From it follows how long local turns may keep others waiting ([`local_time`]), so it must be a question and
/// its answer: never the wait for a lock.
///
/// [`local_time`]: crate::Settings::local_time
#[derive(Debug)]
pub(crate) struct TripTime {
    /// In nanoseconds; [`UNKNOWN`] before the first trip.
    of_late: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;
/// A trip that took longer counts as this: nothing that follows from it is longer.
const SLOWEST: Duration = Duration::from_millis(5);

impl Default for TripTime {
    fn default() -> Self {
        Self {
            of_late: AtomicU64::new(UNKNOWN),
        }
    }
}

impl TripTime {
    /// The store has answered. A faster trip counts at once and a slower one by an eighth: a store that was slow for a moment is
    /// no reason to keep others waiting for longer.
    pub(crate) fn took(&self, time: Duration) {
        let time = u64::try_from(time.min(SLOWEST).as_nanos()).unwrap_or(UNKNOWN);
        // Of two that come at once, one may be lost: that changes little.
        let before = self.of_late.load(Ordering::Relaxed);
        let after = match time.checked_sub(before) {
            Some(longer) => before + longer / 8,
            None => time,
        };
        if after != before {
            self.of_late.store(after, Ordering::Relaxed);
        }
    }

    /// What a trip takes; nothing while that is not known.
    pub(crate) fn of_late(&self) -> Duration {
        match self.of_late.load(Ordering::Relaxed) {
            UNKNOWN => Duration::ZERO,
            nanos => Duration::from_nanos(nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_trip_counts_at_once_and_a_slow_one_little() {
        let trips = TripTime::default();
        assert_eq!(trips.of_late(), Duration::ZERO);
        let (fast, slow) = (Duration::from_micros(200), Duration::from_millis(1));
        trips.took(slow);
        assert_eq!(trips.of_late(), slow);
        trips.took(fast);
        assert_eq!(trips.of_late(), fast);
        trips.took(slow);
        assert_eq!(trips.of_late(), fast + (slow - fast) / 8);
        trips.took(Duration::MAX);
        assert!(trips.of_late() < slow, "{:?}", trips.of_late());
        for _ in 0..100 {
            trips.took(slow);
        }
        let of_late = trips.of_late();
        assert!(of_late <= slow && of_late > slow * 9 / 10, "{of_late:?}");
    }
}
