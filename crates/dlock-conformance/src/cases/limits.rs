//! [C4](dlock_core::contract#c4): tries and time limits.

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Result};

use crate::case::case_list;
use crate::{Ability, Need, World};

case_list! {
    C4 try_lock_never_waits_for_a_holder;
    C4 lock_within_zero_is_a_try;
    C4 time_limit_is_kept_while_others_hold;
    C4 time_limit_is_kept_behind_the_own_client;
    C4 time_limit_is_kept_while_the_store_hangs [Need::Able(Ability::Hang)];
    C4 try_lock_ends_while_the_store_hangs [Need::Able(Ability::Hang)];
    C4 release_ends_while_the_store_hangs [Need::Able(Ability::Hang)];
    C4 waiter_that_gave_up_is_not_granted_later;
    C4 lock_with_a_limit_fails_as_busy;
}

const LIMIT: Duration = Duration::from_millis(500);

/// Fails when something took longer than its limit and the tolerance.
fn in_time(world: &World, started: Instant, limit: Duration) {
    let took = started.elapsed();
    let most = limit + world.timings.tolerance;
    assert!(
        took <= most,
        "it took {took:?}, the limit was {limit:?} (tolerance included: {most:?})"
    );
}

async fn try_lock_never_waits_for_a_holder(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let guard = a.mutex(&name)?.lock().await?;
    let mutex = b.mutex(&name)?;
    for _ in 0..5 {
        let started = Instant::now();
        assert!(mutex.try_lock().await?.is_none());
        in_time(&world, started, Duration::ZERO);
    }
    assert_eq!(b.stats().busy, 5);
    world.freed(guard).await?;
    let guard = mutex.try_lock().await?.expect("it is free");
    world.freed(guard).await
}

async fn lock_within_zero_is_a_try(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let mutex = b.mutex(&name)?;
    let guard = a.mutex(&name)?.lock_within(Duration::ZERO).await?;
    let guard = guard.expect("it is free");
    let started = Instant::now();
    assert!(mutex.lock_within(Duration::ZERO).await?.is_none());
    in_time(&world, started, Duration::ZERO);
    world.freed(guard).await?;
    let guard = mutex.lock_within(Duration::ZERO).await?;
    world.freed(guard.expect("it is free")).await
}

async fn time_limit_is_kept_while_others_hold(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let guard = a.mutex(&name)?.lock().await?;
    let mutex = b.mutex(&name)?;
    let started = Instant::now();
    assert!(mutex.lock_within(LIMIT).await?.is_none());
    assert!(started.elapsed() >= LIMIT, "it gave up early");
    in_time(&world, started, LIMIT);
    assert_eq!(b.stats().gave_up, 1);
    world.freed(guard).await?;
    let guard = mutex.lock_within(LIMIT).await?.expect("it is free");
    world.freed(guard).await
}

async fn time_limit_is_kept_behind_the_own_client(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let mutex = locks.mutex(&name)?;
    let guard = mutex.lock().await?;
    let started = Instant::now();
    let (first, second) = tokio::join!(mutex.lock_within(LIMIT), mutex.lock_within(LIMIT));
    assert!(first?.is_none() && second?.is_none());
    in_time(&world, started, LIMIT);
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn time_limit_is_kept_while_the_store_hangs(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.long()).await?;
    let warm = locks.mutex(world.name())?.lock().await?;
    world.freed(warm).await?;
    let name = world.name();
    let mutex = locks.mutex(&name)?;
    fault.hang().await;
    let started = Instant::now();
    let error = mutex.lock_within(LIMIT).await.expect_err("nobody answers");
    in_time(&world, started, LIMIT);
    assert!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable),
        "{error}"
    );
    fault.heal().await;
    world.expect_free(&name).await
}

async fn try_lock_ends_while_the_store_hangs(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.long().trip_timeout(LIMIT)).await?;
    let name = world.name();
    let mutex = locks.mutex(&name)?;
    let warm = mutex.lock().await?;
    world.freed(warm).await?;
    fault.hang().await;
    let started = Instant::now();
    let error = mutex.try_lock().await.expect_err("nobody answers");
    in_time(&world, started, LIMIT);
    assert!(
        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable),
        "{error}"
    );
    fault.heal().await;
    world.expect_free(&name).await
}

async fn release_ends_while_the_store_hangs(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.long().trip_timeout(LIMIT)).await?;
    let name = world.name();
    let guard = locks.mutex(&name)?.lock().await?;
    fault.hang().await;
    let started = Instant::now();
    let released = guard.release().await?;
    in_time(&world, started, LIMIT);
    assert_eq!(released, dlock_core::Released::Unknown);
    fault.heal().await;
    world.expect_free(&name).await
}

async fn waiter_that_gave_up_is_not_granted_later(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let guard = a.mutex(&name)?.lock().await?;
    let waits = b.mutex(&name)?;
    world.expect_in_vain(waits.lock_within(Duration::from_millis(50)).await)?;
    world.freed(guard).await?;
    world.expect_free(&name).await?;
    world.expect_quiet(&b).await
}

async fn lock_with_a_limit_fails_as_busy(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?;
    let hasty = world.client_with(world.long().wait_at_most(LIMIT)).await?;
    let guard = holder.mutex(&name)?.lock().await?;
    let started = Instant::now();
    let error = hasty.mutex(&name)?.lock().await.expect_err("it is held");
    in_time(&world, started, LIMIT);
    assert_eq!(error.kind(), ErrorKind::Busy);
    world.freed(guard).await
}
