//! One connection for all, made by one caller and replaced when it fails.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use super::texts::{closed, no_connection};
use crate::Error;

/// A connection that the calls of a client share: at most one is being made at a time, whoever comes meanwhile waits for it, and one that failed is replaced
/// once, however many calls have seen it fail.
///
/// `E` is the backend's own type of [trouble](crate::trouble!), which those who waited are told as well: an attempt that began after they came has failed for them
/// too, so that a server that is down costs each of them one time-out and not one after the other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// use std::time::Duration;
/// use dlock_core::Error;
/// use dlock_core::kit::Connected;
///
/// let connected = Connected::<&str, Error>::default();
/// let limit = Duration::from_secs(2);
/// let (connection, number) = connected.get_or_make(limit, async { Ok("first") }).await?;
/// let (same, _) = connected.get_or_make(limit, async { Ok("second") }).await?;
/// assert_eq!((connection, same), ("first", "first"));
/// connected.give_up(number); // it broke
/// let (next, _) = connected.get_or_make(limit, async { Ok("second") }).await?;
/// assert_eq!(next, "second");
/// # Ok(())
/// # }
/// ```
pub struct Connected<T, E> {
    current: Mutex<Option<(T, u64)>>,
    /// Held while one caller connects for all; the number of the last attempt that failed, and why.
    making: tokio::sync::Mutex<Option<(u64, E)>>,
    attempts: AtomicU64,
    closed: AtomicBool,
}

impl<T: Clone, E: Clone + From<Error>> Connected<T, E> {
    /// The connection in use and its number, if there is one. A later connection has a higher number.
    pub fn get(&self) -> Option<(T, u64)> {
        self.current().clone()
    }

    /// What `read` takes of the connection in use and its number, if there is one.
    pub fn look<R>(&self, read: impl FnOnce(&T, u64) -> R) -> Option<R> {
        let current = self.current();
        let (connection, number) = current.as_ref()?;
        Some(read(connection, *number))
    }

    /// The connection in use, or a new one, made within `limit` by `make`, which is not begun when there is one.
    ///
    /// # Errors
    ///
    /// What `make` says, [`no_connection`] when it takes longer, and [`closed`] after [`close`](Connected::close). Nothing was sent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it connects, the next caller begins anew.
    pub async fn get_or_make(
        &self,
        limit: Duration,
        make: impl Future<Output = Result<T, E>>,
    ) -> Result<(T, u64), E> {
        if let Some(current) = self.get() {
            return Ok(current);
        }
        if self.is_closed() {
            return Err(closed().into());
        }
        let too_slow = |_| E::from(no_connection(limit));
        let seen = self.attempts.load(Ordering::Acquire);
        let mut last = timeout(limit, self.making.lock()).await.map_err(too_slow)?;
        if let Some(current) = self.get() {
            return Ok(current);
        }
        if let Some((attempt, trouble)) = last.as_ref()
            && *attempt > seen
        {
            return Err(trouble.clone());
        }
        let number = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let made = timeout(limit, make).await.map_err(too_slow).flatten();
        match made {
            Ok(connection) => {
                *last = None;
                let mut current = self.current();
                // `close` was called while it was made: it is dropped, which ends it, and nobody gets it.
                if self.is_closed() {
                    return Err(closed().into());
                }
                *current = Some((connection.clone(), number));
                Ok((connection, number))
            }
            Err(trouble) => {
                *last = Some((number, trouble.clone()));
                Err(trouble)
            }
        }
    }

    /// The connection of this number is of no more use: the next caller makes a new one, unless somebody else has noticed before.
    pub fn give_up(&self, number: u64) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|(_, now)| *now == number) {
            *current = None;
        }
    }

    /// Ends it for good, and gives out the connection.
    pub fn close(&self) -> Option<T> {
        let mut current = self.current();
        self.closed.store(true, Ordering::Release);
        current.take().map(|(connection, _)| connection)
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn current(&self) -> MutexGuard<'_, Option<(T, u64)>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, E> Default for Connected<T, E> {
    fn default() -> Self {
        Self {
            current: Mutex::new(None),
            making: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }
}

impl<T, E> fmt::Debug for Connected<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Connected")
            .field("number", &current.as_ref().map(|(_, number)| number))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::join_all;

    use super::*;
    use crate::{ErrorKind, HeldNow};

    const LIMIT: Duration = Duration::from_secs(2);

    type One = Connected<u32, Error>;

    #[tokio::test]
    async fn many_callers_make_one_connection() {
        let (one, made) = (One::default(), AtomicU64::new(0));
        let make = || async {
            made.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(7)
        };
        let all = join_all((0..10).map(|_| one.get_or_make(LIMIT, make()))).await;
        assert!(all.into_iter().all(|got| matches!(got, Ok((7, 1)))));
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn who_waited_for_an_attempt_that_failed_is_told_and_who_comes_later_tries_again() {
        let (one, made) = (One::default(), AtomicU64::new(0));
        let make = || async {
            made.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err(Error::new(ErrorKind::Denied, "wrong password"))
        };
        let all = join_all((0..10).map(|_| one.get_or_make(LIMIT, make()))).await;
        assert!(all.into_iter().all(|got| got.is_err()));
        // The first attempt had begun before the other nine came; the second is for all of them.
        assert_eq!(made.load(Ordering::Relaxed), 2);
        let later = one.get_or_make(LIMIT, async { Ok(1) }).await;
        assert_eq!(later.expect("a new attempt"), (1, 3));
    }

    #[tokio::test]
    async fn a_failure_that_many_have_seen_replaces_one_connection() {
        let one = One::default();
        let (_, first) = one.get_or_make(LIMIT, async { Ok(1) }).await.expect("made");
        one.give_up(first);
        assert!(one.get().is_none());
        let (_, second) = one.get_or_make(LIMIT, async { Ok(2) }).await.expect("made");
        one.give_up(first);
        assert_eq!(one.get(), Some((2, second)), "the new one did not fail");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_not_made_in_time_is_an_error_and_the_next_may_succeed() {
        let one = One::default();
        let slow = std::future::pending();
        let error = one.get_or_make(LIMIT, slow).await.expect_err("too slow");
        assert_eq!(
            (error.kind(), error.held_now()),
            (ErrorKind::TimedOut, HeldNow::No)
        );
        assert!(one.get_or_make(LIMIT, async { Ok(1) }).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_closed_stays_so_also_for_a_connection_under_way() {
        let one = Arc::new(One::default());
        let closing = one.clone();
        let make = async move {
            closing.close();
            Ok(1)
        };
        let error = one.get_or_make(LIMIT, make).await.expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(one.get().is_none() && one.is_closed());
        assert!(one.get_or_make(LIMIT, async { Ok(2) }).await.is_err());
    }
}
