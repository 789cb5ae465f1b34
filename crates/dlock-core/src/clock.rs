//! Time as the rules of the contract see it: a clock that counts suspended time, and that a test can replace.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::time::Duration;

use futures::future::BoxFuture;

/// A point on a [`Clock`]: nanoseconds since an origin that means nothing outside this process.
///
/// One more than the nanoseconds is stored, so that an `Option<Moment>` is no larger than a moment: a client may hold
/// 100,000 locks with several of them each.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::{Clock, SystemClock};
///
/// let now = SystemClock.now();
/// let deadline = now + Duration::from_secs(2);
/// assert_eq!(deadline.since(now), Duration::from_secs(2));
/// assert_eq!(now.since(deadline), Duration::ZERO); // never negative
/// assert!(deadline.earlier(Duration::from_secs(3)) < now);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(NonZeroU64);

impl Moment {
    /// Later than every other moment.
    pub const NEVER: Self = Self(NonZeroU64::MAX);

    /// The moment this many nanoseconds after the clock's origin; [`NEVER`](Self::NEVER) from 584 years on.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// The time from `earlier` to `self`; zero when `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }

    /// `self` less `by`, but not before the clock's origin.
    #[must_use]
    pub fn earlier(self, by: Duration) -> Self {
        match self {
            Self::NEVER => self,
            _ => Self::from_nanos(self.as_nanos().saturating_sub(nanos_of(by))),
        }
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NEVER => f.write_str("Moment(never)"),
            moment => write!(f, "Moment({} ns)", moment.as_nanos()),
        }
    }
}

/// Saturates at [`Moment::NEVER`].
impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos_of(by)))
    }
}

fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Where the rules for validity read the time.
///
/// The default is [`SystemClock`]. A test that needs exact timing uses [`TokioClock`] in a runtime whose time is paused.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now. Never goes back.
    fn now(&self) -> Moment;

    /// Resolves at `until` or a little later. Called inside a tokio runtime only.
    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()>;

    /// Whether it shows the same time in every runtime of the process. Then a thread of dlock's own can look after holds whose
    /// runtime has ended, is blocked or is not driven. Not so for a clock that a test can pause, which is the default.
    fn is_the_same_in_every_runtime(&self) -> bool {
        false
    }
}

/// The machine's clock, which counts the time a suspended machine sleeps ([C7](crate::contract#c7): `CLOCK_BOOTTIME` on Linux).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn read() -> Moment {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
        Moment::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// Elsewhere the standard library's clock: on macOS and Windows it may stand still during a suspend.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn read() -> Moment {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        Moment::from_nanos(nanos_of(ORIGIN.get_or_init(Instant::now).elapsed()))
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Self::read()
    }

    fn is_the_same_in_every_runtime(&self) -> bool {
        true
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        // Timers stand still while the machine is suspended; short slices notice a resume within one of them (C8).
        const SLICE: Duration = Duration::from_secs(1);
        Box::pin(async move {
            loop {
                let left = until.since(Self::read());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(SLICE)).await;
            }
        })
    }
}

/// tokio's clock, which a test can pause and advance.
///
/// It does not count suspended time: for tests only.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::{Clock, TokioClock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let clock = TokioClock::new();
/// let before = clock.now();
/// clock.sleep_until(before + Duration::from_secs(3600)).await; // returns at once: the paused clock jumps
/// assert_eq!(clock.now().since(before), Duration::from_secs(3600));
/// # });
/// ```
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self {
            origin: tokio::time::Instant::now(),
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        // Not zero, so that `earlier` has room in tests that start at the origin.
        Moment::from_nanos(nanos_of(self.origin.elapsed()).saturating_add(1_000_000_000))
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let left = until.since(self.now());
        Box::pin(async move {
            if !left.is_zero() {
                tokio::time::sleep(left).await;
            }
        })
    }
}

/// What a lease loses to clock drift between the store and us: 1 % and 2 ms ([C7](crate::contract#c7)).
pub(crate) fn drift_margin(lease: Duration) -> Duration {
    (lease / 100).saturating_add(Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate() {
        let start = Moment::from_nanos(5);
        assert_eq!(start + Duration::MAX, Moment::NEVER);
        assert_eq!(start.earlier(Duration::from_secs(1)), Moment::from_nanos(0));
        assert_eq!(Moment::NEVER.earlier(Duration::from_secs(1)), Moment::NEVER);
        assert_eq!(start.since(Moment::NEVER), Duration::ZERO);
        assert_eq!(Moment::from_nanos(u64::MAX), Moment::NEVER);
        assert_eq!(Moment::from_nanos(Moment::NEVER.as_nanos()), Moment::NEVER);
        assert_eq!(Moment::from_nanos(0).as_nanos(), 0);
    }

    #[test]
    fn moment_that_may_be_missing_is_no_larger() {
        assert_eq!(size_of::<Option<Moment>>(), size_of::<u64>());
    }

    #[test]
    fn system_clock_moves_forward() {
        let first = SystemClock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(SystemClock.now().since(first) >= Duration::from_millis(2));
    }

    #[test]
    fn margin_is_one_percent_and_two_milliseconds() {
        assert_eq!(
            drift_margin(Duration::from_secs(30)),
            Duration::from_millis(302)
        );
    }
}
