//! What happened in this client, counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::LossReason;
use crate::sync::locked;

/// What one client has done so far, and what it holds now.
///
/// ```
/// # use dlock_core::Locks;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// # let locks = Locks::new(dlock_memory::MemoryBackend::new())?;
/// let stock = locks.mutex("stock:42")?;
/// let guard = stock.lock().await?;
/// assert!(stock.try_lock().await?.is_none());
///
/// let stats = locks.stats();
/// assert_eq!((stats.acquired, stats.busy, stats.held), (1, 1, 1));
/// if stats.wait.p99 > std::time::Duration::from_secs(1) {
///     println!("one in a hundred waits for longer than a second");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Locks acquired from the store.
    pub acquired: u64,
    /// Locks that the task before, of this same client, has passed on (no trip).
    pub passed_on: u64,
    /// Entries into a lock that the owner held already (no trip).
    pub reentered: u64,
    /// `try_lock` found the lock held by others.
    pub busy: u64,
    /// Waits given up because a time limit passed while others held the lock.
    pub gave_up: u64,
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
    /// Acquires under way now: all tasks of this client that wait, whether at the store or for their turn.
    pub waiting: u64,
    /// Attempts and releases that are under way or not confirmed yet.
    pub in_doubt: u64,
    /// How long acquires that succeeded waited.
    pub wait: Times,
    /// How long acquires took that ended without the lock: busy, given up, failed or cancelled.
    pub wait_in_vain: Times,
    /// How long locks were held.
    pub hold: Times,
}

/// Lost holds by reason.
///
/// ```
/// # let stats = dlock_core::Stats::default();
/// if stats.losses.expired > 0 {
///     println!("the store or this program was silent for longer than a lease");
/// }
/// assert_eq!(stats.losses.total(), 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
///
/// ```
/// # let stats = dlock_core::Stats::default(); // locks.stats()
/// let hold = stats.hold;
/// println!("{} holds, {:?} in the mean, {:?} at most", hold.count, hold.mean, hold.max);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

#[cfg(feature = "metrics")]
mod metric;

/// Counts; cheap enough for every lock.
#[derive(Debug)]
pub(crate) struct Recorder {
    #[cfg(feature = "metrics")]
    backend: &'static str,
    counters: [AtomicU64; COUNT],
    waiting: AtomicU64,
    wait: Mutex<Option<Histogram<u64>>>,
    wait_in_vain: Mutex<Option<Histogram<u64>>>,
    hold: Mutex<Option<Histogram<u64>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Acquired,
    PassedOn,
    Reentered,
    Busy,
    GaveUp,
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
        #[cfg(feature = "metrics")]
        metric::describe(backend);
        Self {
            #[cfg(feature = "metrics")]
            backend,
            counters: Default::default(),
            waiting: AtomicU64::new(0),
            wait: times(),
            wait_in_vain: times(),
            hold: times(),
        }
    }

    /// `group` is what the settings say these locks are for.
    #[cfg_attr(
        not(feature = "metrics"),
        allow(unused_variables, reason = "only metrics carry the group")
    )]
    pub(crate) fn count(&self, event: Event, group: &Arc<str>) {
        if let Some(counter) = self.counters.get(event as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(feature = "metrics")]
        metric::count(event, self.backend, group);
    }

    pub(crate) fn begins_to_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        metrics::gauge!(metric::WAITING, "backend" => self.backend).increment(1);
    }

    /// An acquire has ended, one way or the other.
    pub(crate) fn ends_to_wait(&self, event: Event, waited: Duration, group: &Arc<str>) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.count(event, group);
        match event {
            Event::Acquired | Event::PassedOn => record(&self.wait, waited),
            Event::Reentered => {}
            _ => record(&self.wait_in_vain, waited),
        }
        #[cfg(feature = "metrics")]
        {
            metrics::gauge!(metric::WAITING, "backend" => self.backend).decrement(1);
            metric::waited(event, waited, self.backend, group);
        }
    }

    /// A task has a lock from now on.
    #[cfg_attr(
        not(feature = "metrics"),
        allow(clippy::unused_self, reason = "only metrics have the gauge")
    )]
    pub(crate) fn begins_to_hold(&self) {
        #[cfg(feature = "metrics")]
        metrics::gauge!(metric::HELD, "backend" => self.backend).increment(1);
    }

    /// A hold has ended, or passes on to the next task.
    /// `None` when it was passed on to a task that never knew.
    pub(crate) fn held(&self, time: Option<Duration>) {
        #[cfg(feature = "metrics")]
        metrics::gauge!(metric::HELD, "backend" => self.backend).decrement(1);
        let Some(time) = time else {
            return;
        };
        record(&self.hold, time);
        #[cfg(feature = "metrics")]
        metrics::histogram!(metric::HOLD_SECONDS, "backend" => self.backend).record(time);
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let read = |event: Event| {
            self.counters
                .get(event as usize)
                .map_or(0, |counter| counter.load(Ordering::Relaxed))
        };
        Stats {
            acquired: read(Event::Acquired),
            passed_on: read(Event::PassedOn),
            reentered: read(Event::Reentered),
            busy: read(Event::Busy),
            gave_up: read(Event::GaveUp),
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
            waiting: self.waiting.load(Ordering::Relaxed),
            in_doubt: 0,
            wait: summary(&self.wait),
            wait_in_vain: summary(&self.wait_in_vain),
            hold: summary(&self.hold),
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
        let group = Arc::default();
        for micros in 1..=100 {
            recorder.begins_to_wait();
            recorder.ends_to_wait(Event::Acquired, Duration::from_micros(micros), &group);
        }
        recorder.begins_to_wait();
        recorder.ends_to_wait(Event::GaveUp, Duration::from_secs(1), &group);
        recorder.begins_to_wait();
        recorder.count(LossReason::Gone.into(), &group);
        recorder.count(LossReason::MaxHold.into(), &group);
        let stats = recorder.snapshot();
        assert_eq!(stats.wait.count, 100);
        assert_eq!(stats.wait.p50, Duration::from_micros(50));
        assert_eq!(stats.wait.max, Duration::from_micros(100));
        assert_eq!(stats.losses.total(), 2);
        assert_eq!(stats.hold, Times::default());
        assert_eq!((stats.gave_up, stats.wait_in_vain.count), (1, 1));
        assert_eq!(stats.waiting, 1);
    }
}
