//! The only wait loop for stores that cannot wait by themselves.

use std::time::Duration;

use crate::backend::Backoff;
use crate::backend::{Attempt, Backend, Busy, Request};
use crate::{Error, ErrorKind, Result, WakeUp};

const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// Tries until held or the deadline has passed, with randomised pauses.
pub(crate) async fn poll<B: Backend + ?Sized>(backend: &B, request: &Request) -> Result<Attempt> {
    let longest = match backend.capabilities().wake_up {
        WakeUp::Poll { longest } => longest,
        WakeUp::Push { bound } => bound,
    };
    let mut backoff = Backoff::new(SHORTEST_PAUSE.min(longest), longest);
    loop {
        let busy = match one_trip(backend, request).await? {
            Attempt::Held(lease) => return Ok(Attempt::Held(lease)),
            Attempt::Busy(busy) => busy,
        };
        request.mark_contended();
        let pause = next_pause(&mut backoff, busy);
        let until = request.now() + pause;
        match request.deadline() {
            Some(deadline) if deadline <= until => {
                request.clock().sleep_until(deadline).await;
                return Ok(Attempt::Busy(busy));
            }
            _ => request.clock().sleep_until(until).await,
        }
    }
}

/// One `try_acquire`, within the trip time-out, whose lease counts from before it was sent (C7).
pub(crate) async fn one_trip<B: Backend + ?Sized>(
    backend: &B,
    request: &Request,
) -> Result<Attempt> {
    let sent = request.now();
    let limit = sent + request.trip_timeout();
    tokio::select! {
        biased;
        answer = backend.try_acquire(request) => Ok(match answer? {
            Attempt::Held(lease) => Attempt::Held(lease.no_later_than(sent)),
            busy => busy,
        }),
        () = request.clock().sleep_until(limit) => Err(no_answer(request.trip_timeout())),
    }
}

pub(crate) fn no_answer(limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!("no answer within {limit:?}: is the store alive and reachable?"),
    )
}

fn next_pause(backoff: &mut Backoff, busy: Busy) -> Duration {
    let pause = backoff.pause();
    busy.retry_after
        .map_or(pause, |hint| pause.min(hint.max(SHORTEST_PAUSE)))
}
