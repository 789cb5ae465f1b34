//! Rooms that only one may be in, and who goes in and out of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dlock_core::{Locks, Released};

/// What a name protects: who is inside, and the last token.
#[derive(Default)]
pub(crate) struct Room {
    taken: AtomicBool,
    last: AtomicU64,
}

impl Room {
    /// Fails when somebody is inside, or was inside with a later token.
    fn enter(&self, token: u64) {
        assert!(!self.taken.swap(true, Ordering::SeqCst), "two at once (C1)");
        let last = self.last.swap(token, Ordering::SeqCst);
        assert!(last < token, "token {token} after {last} (C11)");
    }

    fn leave(&self) {
        self.taken.store(false, Ordering::SeqCst);
    }
}

pub(crate) fn rooms(count: usize) -> Arc<Vec<Room>> {
    Arc::new((0..count).map(|_| Room::default()).collect())
}

/// Takes and frees locks again and again; what fails is tried again.
pub(crate) async fn work(locks: Locks, rooms: Arc<Vec<Room>>, task: u64, rounds: u64) -> u64 {
    let mut freed = 0;
    for round in 0..rounds {
        let number = ((task + round * 7) % rooms.len() as u64) as usize;
        let room = rooms.get(number).expect("a room");
        let mutex = locks.mutex(format!("room:{number}")).expect("a name");
        let Ok(guard) = mutex.lock().await else {
            continue;
        };
        room.enter(guard.token().expect("fencing").get());
        tokio::task::yield_now().await;
        // A hold that was lost meanwhile has let somebody else in.
        assert!(guard.is_held(), "a lease of 30 s is over");
        room.leave();
        if guard
            .release()
            .await
            .is_ok_and(|end| end == Released::Freed)
        {
            freed += 1;
        }
    }
    freed
}
