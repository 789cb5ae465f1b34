//! What happened in this client, counted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::LossReason;
use crate::sync::locked;

/// What one client has done so far, and what it holds now.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Locks acquired from the store.
    pub acquired: u64,
    /// Entries into a lock that the owner held already (no trip).
    pub reentered: u64,
    /// `try_lock` found the lock held by others.
    pub busy: u64,
    /// A time limit passed while others held the lock.
    pub timeouts: u64,
    /// Acquires that ended in an error.
    pub failed: u64,
    /// Acquires whose future was dropped.
    pub cancelled: u64,
    /// Leases renewed.
    pub renewals: u64,
    /// Renewals that failed and were tried again.
    pub renewals_failed: u64,
    /// Releases that the store confirmed.
    pub released: u64,
    /// Holds that were lost, by reason.
    pub losses: Losses,
    /// Holds now.
    pub held: u64,
    /// Attempts and releases that are under way or not confirmed yet.
    pub in_doubt: u64,
    /// How long acquires that succeeded waited.
    pub wait: Times,
    /// How long locks were held.
    pub hold: Times,
}

/// Lost holds by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// The lease could not be renewed in time.
    pub expired: u64,
    /// The store no longer had the hold.
    pub gone: u64,
    /// The session ended.
    pub session_ended: u64,
    /// The maximum hold time was reached.
    pub max_hold: u64,
    /// The client was closed while it held.
    pub closed: u64,
}

impl Losses {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.expired + self.gone + self.session_ended + self.max_hold + self.closed
    }
}

/// A distribution of times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// How many.
    pub count: u64,
    /// The mean.
    pub mean: Duration,
    /// Half are shorter.
    pub p50: Duration,
    /// 90 % are shorter.
    pub p90: Duration,
    /// 95 % are shorter.
    pub p95: Duration,
    /// 99 % are shorter.
    pub p99: Duration,
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

/// Counts; cheap enough for every lock.
#[derive(Debug)]
pub(crate) struct Recorder {
    #[cfg(feature = "metrics")]
    backend: &'static str,
    counters: [AtomicU64; COUNT],
    wait: Mutex<Option<Histogram<u64>>>,
    hold: Mutex<Option<Histogram<u64>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Acquired,
    Reentered,
    Busy,
    TimedOut,
    Failed,
    Cancelled,
    Renewed,
    RenewalFailed,
    Released,
    LostExpired,
    LostGone,
    LostSession,
    LostMaxHold,
    LostClosed,
}

const COUNT: usize = Event::LostClosed as usize + 1;
const LONGEST_MICROS: u64 = 7 * 24 * 3600 * 1_000_000;

impl From<LossReason> for Event {
    fn from(reason: LossReason) -> Self {
        match reason {
            LossReason::Expired => Self::LostExpired,
            LossReason::Gone => Self::LostGone,
            LossReason::SessionEnded => Self::LostSession,
            LossReason::MaxHold => Self::LostMaxHold,
            LossReason::Closed => Self::LostClosed,
        }
    }
}

impl Recorder {
    #[cfg_attr(
        not(feature = "metrics"),
        allow(unused_variables, reason = "only metrics carry the backend's name")
    )]
    pub(crate) fn new(backend: &'static str) -> Self {
        // Two digits are exact enough; bounds that hdrhistogram refuses would leave the times empty, not break a lock.
        let times = || Mutex::new(Histogram::new_with_bounds(1, LONGEST_MICROS, 2).ok());
        Self {
            #[cfg(feature = "metrics")]
            backend,
            counters: Default::default(),
            wait: times(),
            hold: times(),
        }
    }

    pub(crate) fn count(&self, event: Event) {
        if let Some(counter) = self.counters.get(event as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(feature = "metrics")]
        metrics::counter!(event.metric(), "backend" => self.backend).increment(1);
    }

    pub(crate) fn waited(&self, time: Duration) {
        record(&self.wait, time);
        #[cfg(feature = "metrics")]
        metrics::histogram!("dlock_wait_seconds", "backend" => self.backend).record(time);
    }

    pub(crate) fn held(&self, time: Duration) {
        record(&self.hold, time);
        #[cfg(feature = "metrics")]
        metrics::histogram!("dlock_hold_seconds", "backend" => self.backend).record(time);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let read = |event: Event| {
            self.counters
                .get(event as usize)
                .map_or(0, |counter| counter.load(Ordering::Relaxed))
        };
        Stats {
            acquired: read(Event::Acquired),
            reentered: read(Event::Reentered),
            busy: read(Event::Busy),
            timeouts: read(Event::TimedOut),
            failed: read(Event::Failed),
            cancelled: read(Event::Cancelled),
            renewals: read(Event::Renewed),
            renewals_failed: read(Event::RenewalFailed),
            released: read(Event::Released),
            losses: Losses {
                expired: read(Event::LostExpired),
                gone: read(Event::LostGone),
                session_ended: read(Event::LostSession),
                max_hold: read(Event::LostMaxHold),
                closed: read(Event::LostClosed),
            },
            held: 0,
            in_doubt: 0,
            wait: summary(&self.wait),
            hold: summary(&self.hold),
        }
    }
}

#[cfg(feature = "metrics")]
impl Event {
    fn metric(self) -> &'static str {
        match self {
            Self::Acquired => "dlock_acquired_total",
            Self::Reentered => "dlock_reentered_total",
            Self::Busy => "dlock_busy_total",
            Self::TimedOut => "dlock_timeouts_total",
            Self::Failed => "dlock_failed_total",
            Self::Cancelled => "dlock_cancelled_total",
            Self::Renewed => "dlock_renewals_total",
            Self::RenewalFailed => "dlock_renewals_failed_total",
            Self::Released => "dlock_released_total",
            Self::LostExpired => "dlock_lost_expired_total",
            Self::LostGone => "dlock_lost_gone_total",
            Self::LostSession => "dlock_lost_session_total",
            Self::LostMaxHold => "dlock_lost_max_hold_total",
            Self::LostClosed => "dlock_lost_closed_total",
        }
    }
}

fn record(times: &Mutex<Option<Histogram<u64>>>, time: Duration) {
    if let Some(times) = locked(times).as_mut() {
        times.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }
}

fn summary(times: &Mutex<Option<Histogram<u64>>>) -> Times {
    let times = locked(times);
    let Some(times) = times.as_ref().filter(|times| !times.is_empty()) else {
        return Times::default();
    };
    let at = |quantile| Duration::from_micros(times.value_at_quantile(quantile));
    Times {
        count: times.len(),
        mean: Duration::from_secs_f64(times.mean() / 1e6),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        min: Duration::from_micros(times.min()),
        max: Duration::from_micros(times.max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_losses_add_up() {
        let recorder = Recorder::new("test");
        for micros in 1..=100 {
            recorder.waited(Duration::from_micros(micros));
        }
        recorder.count(LossReason::Gone.into());
        recorder.count(LossReason::MaxHold.into());
        let stats = recorder.snapshot();
        assert_eq!(stats.wait.count, 100);
        assert_eq!(stats.wait.p50, Duration::from_micros(50));
        assert_eq!(stats.wait.max, Duration::from_micros(100));
        assert_eq!(stats.losses.total(), 2);
        assert_eq!(stats.hold, Times::default());
    }
}
