//! A clock that runs faster or slower than the machine's.

use dlocks::{Clock, Moment, SystemClock};
use futures::future::BoxFuture;

use super::now;

/// What a client takes for the time: the same as the machine's when it is made, and from then on so much faster.
#[derive(Debug)]
pub(super) struct Rate {
    began: u64,
    rate: f64,
}

impl Rate {
    pub(super) fn new(rate: f64) -> Self {
        Self { began: now(), rate }
    }

    /// The moment on the machine's clock at which this one shows that.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "nanoseconds of a run: exact to less than one, and what is too large for a moment is never"
    )]
    pub(super) fn real(&self, shown: u64) -> u64 {
        let passed = shown.saturating_sub(self.began) as f64;
        self.began.saturating_add((passed / self.rate) as u64)
    }
}

impl Clock for Rate {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "nanoseconds of a run: exact to less than one"
    )]
    fn now(&self) -> Moment {
        let passed = now().saturating_sub(self.began) as f64;
        Moment::from_nanos(self.began.saturating_add((passed * self.rate) as u64))
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(Moment::from_nanos(self.real(until.as_nanos())))
    }

    fn is_the_same_in_every_runtime(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_shows_is_turned_back_into_real_time() {
        let second = 1_000_000_000;
        let slow = Rate {
            began: 10 * second,
            rate: 0.5,
        };
        assert_eq!(slow.real(11 * second), 12 * second);
        assert_eq!(Moment::from_nanos(slow.real(u64::MAX)), Moment::NEVER);
        let begun = Rate::new(0.5);
        std::thread::sleep(std::time::Duration::from_millis(40));
        let (shown, real) = (begun.now().as_nanos() - begun.began, now() - begun.began);
        assert!(
            shown < real * 6 / 10 && shown > 10_000_000,
            "{shown} {real}"
        );
    }
}
