//! The two posts at which a client's background room is kept (see `room`).

use std::time::Duration;

use super::entry::Entry;
use crate::Moment;

/// How much later the standby looks than home; less where renewals are frequent.
pub(super) const LAG: Duration = Duration::from_millis(50);

/// Which of the two rooms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Post {
    Home,
    Standby,
}

impl Post {
    /// How long after `due` this room looks. A loss is declared in time by whoever lives.
    pub(crate) fn lag(self, entry: &Entry, due: Moment) -> Duration {
        match (self, entry.settings.renew_every) {
            (Self::Home, _) => Duration::ZERO,
            (Self::Standby, _) if due >= entry.loss_at() && entry.valid_until() > due => {
                Duration::ZERO
            }
            (Self::Standby, Some(interval)) => LAG.min(interval / 4),
            (Self::Standby, None) => LAG,
        }
    }
}
