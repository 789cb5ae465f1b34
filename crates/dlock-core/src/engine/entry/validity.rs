//! Until when a hold is good, as everybody may read it at any moment ([C7](crate::contract#c7), [C8](crate::contract#c8)).

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{Ending, Entry};
use crate::{Clock, Moment};

/// Timers have a grain of a millisecond and fire late: losses are declared this much before the end, so that the signal
/// fires no later than `valid_until` ([C8](crate::contract#c8)).
const TIMER_GRAIN: Duration = Duration::from_millis(2);

/// The validity of what is not held, or was seen to have passed. It is never raised again ([C9](crate::contract#c9)).
pub(super) const OVER: u64 = 0;

impl Entry {
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Right at every moment, also when no task gets to run: it reads the clock ([C8](crate::contract#c8)). Once it was false it stays false: whoever
    /// sees that the time has passed takes it away from a renewal that comes back late.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        let mut until = self.valid_until.load(Ordering::Acquire);
        loop {
            if until == OVER {
                return false;
            }
            if now.as_nanos() < until {
                return true;
            }
            match self.valid_until.compare_exchange(
                until,
                OVER,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return false,
                Err(renewed) => until = renewed,
            }
        }
    }

    /// The store counts the lease anew from `sent`. `false` when the hold was over before.
    pub(in crate::engine) fn extend(&self, sent: Moment, ends_at: Moment, now: Moment) -> bool {
        let Some(validity) = self.settings.validity else {
            return self.is_held(now);
        };
        let renewed = (sent + validity).min(ends_at).as_nanos();
        let mut until = self.valid_until.load(Ordering::Acquire);
        loop {
            if until == OVER || now.as_nanos() >= until {
                return false;
            }
            if renewed <= until {
                return true;
            }
            match self.valid_until.compare_exchange(
                until,
                renewed,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(other) => until = other,
            }
        }
    }

    pub(in crate::engine) fn begins(&self, until: Moment) {
        self.valid_until.store(until.as_nanos(), Ordering::Release);
    }

    /// Another stay begins, which may last until `until`. `false` when the hold was over before.
    pub(in crate::engine) fn begins_again(&self, until: Moment, now: Moment) -> bool {
        let mut valid = self.valid_until.load(Ordering::Acquire);
        loop {
            if valid == OVER || now.as_nanos() >= valid {
                return false;
            }
            match self.valid_until.compare_exchange(
                valid,
                until.as_nanos(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(other) => valid = other,
            }
        }
    }

    /// When the loss has to be declared, if nothing happens before.
    pub(crate) fn loss_at(&self) -> Moment {
        self.valid_until().earlier(TIMER_GRAIN)
    }

    /// Resolves when the stay has ended or its time is up; the caller looks which.
    ///
    /// Outside of a runtime there are no timers: then whoever looks after the client's holds declares the loss.
    pub(crate) async fn ended(&self, ending: impl Fn() -> Ending, clock: &dyn Clock) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let at = self.loss_at();
            if ending() != Ending::NotYet || clock.now() >= at {
                return;
            }
            if Handle::try_current().is_err() {
                changed.await;
                continue;
            }
            tokio::select! {
                biased;
                () = changed => {}
                // The lease may have been renewed meanwhile: look again.
                () = clock.sleep_until(at) => {}
            }
        }
    }
}
