//! What the store does for those who watch, wait, or lose a lock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Outcome, Released, Renewal, Request};
use dlock_core::{Clock, LossReason, Mode, Name, TokioClock};
use dlock_memory::MemoryBackend;

fn name() -> Name {
    Name::new("x").unwrap()
}

fn world() -> (Arc<dyn Clock>, MemoryBackend) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    (clock.clone(), MemoryBackend::with_clock(clock))
}

fn request(clock: &Arc<dyn Clock>) -> Request {
    Request::new(name(), Mode::Exclusive, clock.clone()).with_lease(Duration::from_secs(3))
}

async fn hold(store: &MemoryBackend, request: &Request) -> Arc<dlock_core::backend::Lease> {
    match store.try_acquire(request).await.unwrap() {
        Outcome::Held(lease) => Arc::new(lease),
        Outcome::Busy(_) => unreachable!("it is free"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_taken_away_only_where_there_is_one() {
    let (clock, store) = world();
    let control = store.control();
    assert!(!control.lose("x"));
    let lease = hold(&store, &request(&clock)).await;
    assert!(control.lose("x"));
    assert!(!control.lose("x"), "it is gone");
    let renewed = store.renew(&[lease]).await;
    assert!(matches!(
        renewed.as_slice(),
        [Renewal::Lost(LossReason::Gone)]
    ));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_comes_late_hears_that_the_lease_has_expired() {
    let (clock, store) = world();
    let lease = hold(&store, &request(&clock)).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let renewed = store.renew(&[lease]).await;
    assert!(matches!(
        renewed.as_slice(),
        [Renewal::Lost(LossReason::Expired)]
    ));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_abandoned_takes_no_other_along() {
    let (clock, store) = world();
    let holder = request(&clock);
    let lease = hold(&store, &holder).await;
    let (gives_up, stays) = (request(&clock), request(&clock));
    let mut first = Box::pin(store.acquire(&gives_up));
    let mut second = Box::pin(store.acquire(&stays));
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert!(futures::poll!(second.as_mut()).is_pending());
    drop(first);
    store.abandon(&gives_up).await.unwrap();
    assert_eq!(store.inspect(&name()).await.unwrap().waiters.len(), 1);
    assert_eq!(store.release(&lease).await.unwrap(), Released::Freed);
    assert!(matches!(second.await, Ok(Outcome::Held(_))));
}

#[tokio::test(start_paused = true)]
async fn whoever_watches_is_told_of_another_holder_and_of_nothing_else() {
    let (clock, store) = world();
    let holder = request(&clock);
    let lease = hold(&store, &holder).await;
    let owner = store.inspect(&name()).await.unwrap().holders[0]
        .owner
        .clone();
    let name = name();
    let mut changed = Box::pin(store.changed(&name, Some(&owner)));
    assert!(futures::poll!(changed.as_mut()).is_pending(), "as it was");
    let another = store.changed(&name, None);
    assert!(futures::poll!(Box::pin(another)).is_ready(), "it was free");
    assert_eq!(store.release(&lease).await.unwrap(), Released::Freed);
    changed.await;
    let mut changed = Box::pin(store.changed(&name, None));
    assert!(futures::poll!(changed.as_mut()).is_pending());
    let reads = Request::new(name.clone(), Mode::Shared, clock.clone());
    let lease = hold(&store, &reads).await;
    assert!(futures::poll!(changed.as_mut()).is_pending(), "a reader");
    assert_eq!(store.release(&lease).await.unwrap(), Released::Freed);
    hold(&store, &request(&clock)).await;
    changed.await;
}
