//! The only wait loop for stores that cannot wait by themselves.

use std::time::Duration;

pub(crate) use super::texts::no_answer;
use crate::Result;
use crate::backend::{Backoff, Busy, Outcome, Request};

const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// Asks with `try_once` until the lock is held or the request's deadline has passed, with randomised pauses that grow up to `longest`.
///
/// This is what [`Backend::acquire`](crate::backend::Backend::acquire) does by itself, with `try_acquire` and the longest pause of
/// [`Capabilities::wake_up`](crate::Capabilities::wake_up). A backend calls it where only some of its locks have no queue, or where a waiter asks another
/// question than a `try_acquire` does. Each question has the request's trip time-out, a grant counts from before it was sent
/// ([C7](crate::contract#c7)), and a `Busy` that says when to ask again is heeded.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), dlock_core::Error> {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use dlock_core::backend::{Outcome, Busy, Lease, Request};
/// use dlock_core::{Mode, Name, TokioClock, kit};
///
/// let request = Request::new(Name::new("stock:42")?, Mode::Exclusive, Arc::new(TokioClock::new()));
/// let mut asked = 0;
/// let outcome = kit::poll(&request, Duration::from_millis(100), || {
///     asked += 1;
///     let is_free = asked == 3; // somebody holds it before
///     let request = &request;
///     async move {
///         Ok(if is_free { Outcome::Held(Lease::new(request, request.now())) } else { Outcome::Busy(Busy::default()) })
///     }
/// })
/// .await?;
/// assert!(matches!(outcome, Outcome::Held(_)));
/// assert_eq!(asked, 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The first error of `try_once`, or [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when it did not answer in time.
///
/// # Cancel safety
///
/// As `try_once`, whose future is dropped with this one.
pub async fn poll<F, A>(request: &Request, longest: Duration, mut try_once: F) -> Result<Outcome>
where
    F: FnMut() -> A,
    A: Future<Output = Result<Outcome>>,
{
    let mut backoff = Backoff::new(SHORTEST_PAUSE.min(longest), longest);
    loop {
        let busy = match within_a_trip(request, try_once()).await? {
            Outcome::Held(lease) => return Ok(Outcome::Held(lease)),
            Outcome::Busy(busy) => busy,
        };
        request.mark_contended();
        let pause = next_pause(&mut backoff, busy);
        let until = request.now() + pause;
        match request.deadline() {
            Some(deadline) if deadline <= until => {
                request.clock().sleep_until(deadline).await;
                return Ok(Outcome::Busy(busy));
            }
            _ => request.clock().sleep_until(until).await,
        }
    }
}

/// One question to the store, within the trip time-out, whose lease counts from before it was sent ([C7](crate::contract#c7)).
pub(crate) async fn within_a_trip(
    request: &Request,
    attempt: impl Future<Output = Result<Outcome>>,
) -> Result<Outcome> {
    let sent = request.now();
    let limit = sent + request.trip_timeout();
    tokio::select! {
        biased;
        answer = attempt => Ok(match answer? {
            Outcome::Held(lease) => Outcome::Held(lease.no_later_than(sent)),
            busy => busy,
        }),
        () = request.clock().sleep_until(limit) => Err(no_answer(request.trip_timeout())),
    }
}

fn next_pause(backoff: &mut Backoff, busy: Busy) -> Duration {
    let pause = backoff.pause();
    busy.retry_after
        .map_or(pause, |hint| pause.min(hint.max(SHORTEST_PAUSE)))
}
