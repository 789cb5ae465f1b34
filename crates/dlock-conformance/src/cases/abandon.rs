//! [C13](dlock_core::contract#c13), told to the backend directly: the undo of an attempt.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Outcome, Renewal};
use dlock_core::{Capability, Mode, Released, Result};

use crate::World;
use crate::case::case_list;
use crate::polls::{Ended, polled};

case_list! {
    C13 attempt_that_arrives_after_its_abandon_holds_nothing;
    C13 attempt_that_arrives_seconds_after_its_abandon_holds_nothing
        "the mark of an abandoned attempt is too short-lived, or goes away when others use the lock: keep it for as long as a request may be under way";
    C13 abandoned_waiter_leaves_the_queue;
    C13 abandoned_hold_is_free;
}

/// Time for an attempt to take effect that must not.
const A_WHILE: Duration = Duration::from_millis(100);

async fn attempt_that_arrives_after_its_abandon_holds_nothing(world: World) -> Result<()> {
    let mut modes = vec![Mode::Exclusive];
    if world.has(Capability::Shared) {
        modes.push(Mode::Shared);
    }
    if world.has(Capability::Permits) {
        modes.push(Mode::Permit { limit: 2 });
    }
    for mode in modes {
        let name = world.name();
        let backend = world.backend().await?;
        let request = world.request(&name, mode);
        backend.abandon(&request).await?;
        if let Ok(Outcome::Held(_)) = backend.try_acquire(&request).await {
            panic!("an abandoned attempt got the lock ({mode})");
        }
        let waits = backend.acquire(&request);
        if let Ended::Done(Ok(Outcome::Held(_))) = polled(waits, usize::MAX, A_WHILE).await {
            panic!("an abandoned attempt waited and got the lock ({mode})");
        }
        backend.abandon(&request).await?;
        world.expect_free(&name).await?;
    }
    Ok(())
}

/// As a proxy or a kernel that held a packet back would deliver it.
async fn attempt_that_arrives_seconds_after_its_abandon_holds_nothing(world: World) -> Result<()> {
    const LATE: Duration = Duration::from_secs(4);
    let each = super::leases::modes(&world).into_iter().map(async |mode| {
        let name = world.name();
        let backend = world.backend().await?;
        // One that nothing was known of, one that had the lock, and one that others followed.
        let (never, held) = (world.request(&name, mode), world.request(&name, mode));
        backend.abandon(&never).await?;
        let Outcome::Held(_) = backend.try_acquire(&held).await? else {
            panic!("a free lock is busy ({mode})");
        };
        backend.abandon(&held).await?;
        let next = world.probe().await?.mutex(&name)?.lock().await?;
        world.freed(next).await?;
        tokio::time::sleep(LATE).await;
        for (request, which) in [(&never, "never known"), (&held, "held before")] {
            let answer = backend.try_acquire(request).await;
            assert!(
                !matches!(answer, Ok(Outcome::Held(_))),
                "{LATE:?} after its abandon an attempt ({mode}, {which}) was expected to be refused; it got the lock"
            );
        }
        world.expect_free(&name).await
    });
    futures::future::try_join_all(each).await?;
    Ok(())
}

async fn abandoned_waiter_leaves_the_queue(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Exclusive);
    let contended = world.until(
        world.timings.settle,
        "the backend says that others hold (Request::mark_contended)",
        async || Ok(request.is_contended()),
    );
    tokio::select! {
        answer = backend.acquire(&request) => panic!("the lock was held: {answer:?}"),
        told = contended => told?,
    }
    world.soon("the abandon", backend.abandon(&request)).await?;
    if world.has(Capability::Inspect) {
        let info = world.probe().await?.inspect(&name).await?;
        assert!(info.waiters.is_empty(), "left in the queue: {info:?}");
    }
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn abandoned_hold_is_free(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Exclusive);
    let Outcome::Held(lease) = backend.try_acquire(&request).await? else {
        panic!("a free lock is busy");
    };
    backend.abandon(&request).await?;
    world.expect_free(&name).await?;
    let answers = backend.renew(&[Arc::new(lease.clone())]).await;
    assert!(matches!(answers[..], [Renewal::Lost(_)]), "{answers:?}");
    assert_eq!(backend.release(&lease).await?, Released::AlreadyLost);
    Ok(())
}
