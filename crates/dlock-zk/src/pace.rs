//! The times that follow from the session's, and the rules between them.
//!
//! ```text
//! |-- renewal --|-- renewal --|-- renewal --|            |<- early end ->| session over
//!               | server falls silent
//!               |-- silence --|- pause -|- answer, and the hold is renewed
//! ```
//!
//! A server that falls silent right after a renewal must cost no hold: until it is noticed (`silence`), another connection is made (`pause`) and
//! the next renewal is answered, the hold has to be good. So `renewal + silence + 2 pauses < session - early end`, with a renewal every
//! third of what is left of the session without its early end. The test below holds the rule for every session that a user may ask for.

use std::time::Duration;

/// The times that follow from the session's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace(Duration);

impl Pace {
    pub(crate) fn of(session: Duration) -> Self {
        Self(session)
    }

    /// A server that says nothing for this long is left for another one.
    pub(crate) fn silence(self) -> Duration {
        (self.0 / 4).min(Duration::from_secs(4))
    }

    /// After this long without a request, a heartbeat is sent. Two of them get lost before the server counts as silent.
    pub(crate) fn heartbeat(self) -> Duration {
        self.silence() * 3 / 8
    }

    /// The longest pause between two rounds of trying to connect again.
    pub(crate) fn pause(self) -> Duration {
        (self.0 / 20).min(Duration::from_secs(1))
    }

    /// After this long without a word from any server, the session counts as ended. Longer than it lasts at the server: holds have ended
    /// by then, by their own deadline, and a session that a restarted ensemble still knows can be taken up.
    pub(crate) fn gives_up(self) -> Duration {
        self.0 * 7 / 5
    }

    /// How much sooner than expected a session can end.
    ///
    /// A renewal proves that the leader knows the session, not that it has just heard of it: followers report signs of life every half
    /// tick, and one that is cut off together with its client reports none of those since. A session is at least two ticks long,
    /// so half a tick is at most a quarter of it; and the sign of life before the lost ones is one heartbeat of the client older.
    pub(crate) fn early_expiry(self) -> Duration {
        self.0 / 4 + self.heartbeat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_server_costs_no_hold_whatever_the_session() {
        for session in [100, 400, 1_000, 2_000, 6_000, 30_000, 600_000, 86_400_000] {
            let session = Duration::from_millis(session);
            let pace = Pace::of(session);
            // Core takes one per cent and two milliseconds off, for clocks that drift.
            let valid = session * 99 / 100 - Duration::from_millis(2) - pace.early_expiry();
            let renewed = valid / 3 + pace.silence() + 2 * pace.pause();
            assert!(renewed < valid, "{session:?}: {renewed:?} of {valid:?}");
            assert!(2 * pace.heartbeat() < pace.silence());
            assert!(pace.gives_up() > session);
        }
    }

    #[test]
    fn hold_ends_half_a_tick_and_a_heartbeat_early() {
        let ms = Duration::from_millis;
        for (session, early) in [(3_200, 1_100), (30_000, 9_000)] {
            assert_eq!(Pace::of(ms(session)).early_expiry(), ms(early), "{session}");
        }
    }
}
