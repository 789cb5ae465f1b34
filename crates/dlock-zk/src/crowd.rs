//! How many tasks of a client may ask for a place at the same time.
//!
//! Who asks for a place sends a change and wants to see the queue behind it, and all of a client share one connection. Thousands who
//! come at once would stand behind each other's requests for longer than an answer may take, be given up, be undone, and come
//! again. So the others wait here, where nothing was sent yet and no time-out runs, as long as those inside are answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::backend::Request;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Few enough for a slow server to answer all of them in time; many enough to share a read of the queue, which grows with it.
const AT_ONCE: usize = 128;

#[derive(Debug)]
pub(crate) struct Crowd {
    room: Semaphore,
    /// How many have got an answer.
    answered: AtomicU64,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            room: Semaphore::new(AT_ONCE),
            answered: AtomicU64::new(0),
        }
    }
}

/// The right to ask, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    crowd: &'a Crowd,
    _room: Option<SemaphorePermit<'a>>,
}

impl Admitted<'_> {
    /// The server has answered: whoever still waits to be admitted has reason to wait on.
    pub(crate) fn was_answered(self) {
        self.crowd.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Crowd {
    /// Waits for room; first come, first served. `None`: for as long as `limit` nobody was answered, so the server is silent.
    pub(crate) async fn admit(&self, request: &Request, limit: Duration) -> Option<Admitted<'_>> {
        let admitted = |room| Admitted {
            crowd: self,
            _room: room,
        };
        if let Ok(room) = self.room.try_acquire() {
            return Some(admitted(Some(room)));
        }
        let mut room = std::pin::pin!(self.room.acquire());
        loop {
            let answered = self.answered.load(Ordering::Relaxed);
            tokio::select! {
                biased;
                // It is never closed.
                room = &mut room => return Some(admitted(room.ok())),
                () = request.clock().sleep_until(request.now() + limit) => {
                    if self.answered.load(Ordering::Relaxed) == answered {
                        return None;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dlock_core::{Mode, Name, TokioClock};
    use futures::FutureExt;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn request() -> Request {
        let name = Name::new("a").expect("a name");
        Request::new(name, Mode::Exclusive, Arc::new(TokioClock::new()))
    }

    /// A crowd with no room left, and those inside.
    fn full<'a>(crowd: &'a Crowd, request: &Request) -> Vec<Admitted<'a>> {
        let admit = |_| crowd.admit(request, LIMIT).now_or_never().flatten();
        (0..AT_ONCE).map(|n| admit(n).expect("let in")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_later_is_let_in_when_somebody_leaves() {
        let (crowd, request) = (Crowd::default(), request());
        let mut inside = full(&crowd, &request);
        let mut next = Box::pin(crowd.admit(&request, LIMIT));
        assert!((&mut next).now_or_never().is_none(), "too many");
        inside.pop();
        assert!(next.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gives_up_when_nobody_was_answered_and_not_before() {
        let (crowd, request) = (Crowd::default(), request());
        let mut inside = full(&crowd, &request);
        let began = tokio::time::Instant::now();
        // One who came earlier is still in line, and gets the room that is made below.
        let before = crowd.admit(&request, 10 * LIMIT);
        let answered = async {
            tokio::time::sleep(LIMIT / 2).await;
            inside.pop().expect("one").was_answered();
        };
        let (kept, told, ()) = tokio::join!(before, crowd.admit(&request, LIMIT), answered);
        assert!(kept.is_some());
        assert!(told.is_none());
        assert_eq!(began.elapsed().as_secs(), 2 * LIMIT.as_secs());
    }
}
