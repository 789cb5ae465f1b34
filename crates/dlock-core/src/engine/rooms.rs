//! Which background rooms of a client are open. What they do is in `room`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::runtime::Handle;

#[derive(Debug, Default)]
pub(crate) struct Rooms {
    /// The runtime that the user chose for home.
    pub(super) chosen: Option<Handle>,
    /// Whether there shall be a standby.
    pub(super) with_standby: bool,
    /// The number of the home that counts; 0 when there is none.
    pub(super) home: AtomicU64,
    pub(super) last_home: AtomicU64,
    pub(super) standby: AtomicBool,
}

impl Rooms {
    pub(crate) fn new(chosen: Option<Handle>, with_standby: bool) -> Self {
        Self {
            chosen,
            with_standby,
            ..Self::default()
        }
    }

    /// Whether somebody can finish what is begun now.
    pub(crate) fn can_finish(&self) -> bool {
        self.standby.load(Ordering::Acquire) || self.home.load(Ordering::Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_can_finish_while_a_room_is_open() {
        let rooms = Rooms::new(None, true);
        assert!(!rooms.can_finish());
        rooms.home.store(2, Ordering::Release);
        assert!(rooms.can_finish());
        rooms.home.store(0, Ordering::Release);
        rooms.standby.store(true, Ordering::Release);
        assert!(rooms.can_finish());
    }
}
