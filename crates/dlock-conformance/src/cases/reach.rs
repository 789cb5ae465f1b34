//! [C5](dlock_core::contract#c5): a store that cannot be reached.

use std::time::Duration;

use dlock_core::{Capability, Error, ErrorKind, HeldNow, Locks, Released, Result};

use crate::case::case_list;
use crate::{Ability, Need, World};

case_list! {
    C5 cut_store_is_an_error_not_busy [Need::Able(Ability::Cut)];
    C5 hung_store_is_an_error_not_busy [Need::Able(Ability::Hang)];
    C5 cut_store_is_an_error_for_readers [Need::Able(Ability::Cut), Need::Can(Capability::Shared)];
    C5 cut_store_is_an_error_for_permits [Need::Able(Ability::Cut), Need::Can(Capability::Permits)];
    C5 cut_store_is_an_error_for_several_locks [Need::Able(Ability::Cut)];
    C5 waiter_is_told_when_the_store_goes_away [Need::Able(Ability::Cut)];
    C5 waiter_behind_the_own_client_is_told_too [Need::Able(Ability::Hang)];
    C5 waiter_outlasts_a_short_outage [Need::Able(Ability::Cut)];
    C5 client_works_again_after_an_outage [Need::Able(Ability::Cut)];
    C5 release_while_cut_is_unknown_and_done_later [Need::Able(Ability::Cut)];
    C5 queries_of_a_cut_store_are_errors [Need::Able(Ability::Cut), Need::Can(Capability::Inspect)];
}

const LIMIT: Duration = Duration::from_millis(500);

fn expect_unreachable(error: &Error) {
    assert!(
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
        "of the wrong kind: {error}"
    );
    assert_ne!(error.held_now(), HeldNow::Yes, "{error}");
    assert!(error.is_retryable(), "{error}");
}

/// Free or held, with or without a limit: never busy.
async fn expect_errors(locks: &Locks, names: [&str; 2]) -> Result<()> {
    for name in names {
        let mutex = locks.mutex(name)?;
        let error = mutex.try_lock().await.expect_err("try_lock");
        expect_unreachable(&error);
        let error = mutex.lock_within(LIMIT).await.expect_err("lock_within");
        expect_unreachable(&error);
        let error = mutex.lock().await.expect_err("lock");
        expect_unreachable(&error);
    }
    Ok(())
}

async fn cut_store_is_an_error_not_busy(world: World) -> Result<()> {
    let (free, held) = (world.name(), world.name());
    let settings = world
        .long()
        .retry_unreachable_for(Duration::ZERO)
        .trip_timeout(LIMIT);
    let (locks, fault) = world.faulty(settings).await?;
    let guard = world.client().await?.mutex(&held)?.lock().await?;
    fault.cut().await;
    expect_errors(&locks, [&free, &held]).await?;
    fault.heal().await;
    world.expect_free(&free).await?;
    world.freed(guard).await?;
    world.expect_free(&held).await
}

async fn hung_store_is_an_error_not_busy(world: World) -> Result<()> {
    let (free, held) = (world.name(), world.name());
    let settings = world
        .long()
        .retry_unreachable_for(Duration::ZERO)
        .trip_timeout(LIMIT)
        .wait_at_most(LIMIT);
    let (locks, fault) = world.faulty(settings).await?;
    let guard = world.client().await?.mutex(&held)?.lock().await?;
    fault.hang().await;
    expect_errors(&locks, [&free, &held]).await?;
    fault.heal().await;
    world.expect_free(&free).await?;
    world.freed(guard).await?;
    world.expect_free(&held).await
}

/// A client that is cut off and says so at once.
async fn cut_off(world: &World) -> Result<Locks> {
    let settings = world
        .long()
        .retry_unreachable_for(Duration::ZERO)
        .trip_timeout(LIMIT);
    let (locks, fault) = world.faulty(settings).await?;
    fault.cut().await;
    Ok(locks)
}

async fn cut_store_is_an_error_for_readers(world: World) -> Result<()> {
    let lock = cut_off(&world).await?.rw_lock(world.name())?;
    expect_unreachable(&lock.try_read().await.expect_err("try_read"));
    expect_unreachable(&lock.try_write().await.expect_err("try_write"));
    expect_unreachable(&lock.read().await.expect_err("read"));
    expect_unreachable(&lock.write().await.expect_err("write"));
    Ok(())
}

async fn cut_store_is_an_error_for_permits(world: World) -> Result<()> {
    let semaphore = cut_off(&world).await?.semaphore(world.name(), 2)?;
    expect_unreachable(&semaphore.try_acquire().await.expect_err("try_acquire"));
    expect_unreachable(&semaphore.acquire().await.expect_err("acquire"));
    Ok(())
}

async fn cut_store_is_an_error_for_several_locks(world: World) -> Result<()> {
    let multi = cut_off(&world).await?.multi([world.name(), world.name()])?;
    expect_unreachable(&multi.try_lock().await.expect_err("try_lock"));
    expect_unreachable(&multi.lock().await.expect_err("lock"));
    expect_unreachable(&multi.lock_within(LIMIT).await.expect_err("lock_within"));
    Ok(())
}

async fn waiter_is_told_when_the_store_goes_away(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (locks, fault) = world
        .faulty(world.long().retry_unreachable_for(Duration::ZERO))
        .await?;
    let waits = locks.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    fault.cut().await;
    // Its own trip time-out may pass before it knows.
    let limit = Duration::from_secs(5) + world.timings.settle;
    let outcome = world.within(limit, "the waiter is told", waits).await;
    let error = outcome.expect("no panic").expect_err("the store is gone");
    expect_unreachable(&error);
    fault.heal().await;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn waiter_behind_the_own_client_is_told_too(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    fault.hang().await;
    let mutex = locks.mutex(&name)?;
    let (first, second, third) = tokio::join!(
        mutex.lock_within(LIMIT * 2),
        mutex.lock_within(LIMIT),
        mutex.lock_within(LIMIT),
    );
    for outcome in [first, second, third] {
        expect_unreachable(&outcome.expect_err("nobody answered"));
    }
    fault.heal().await;
    world.expect_free(&name).await
}

async fn waiter_outlasts_a_short_outage(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (locks, fault) = world.faulty(world.long()).await?;
    let waits = locks.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    fault.cut().await;
    tokio::time::sleep(LIMIT).await;
    fault.heal().await;
    world.freed(guard).await?;
    let next = world.soon("the waiter gets the lock", waits).await;
    world.freed(next.expect("no panic")?).await?;
    world.expect_free(&name).await
}

async fn client_works_again_after_an_outage(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long().trip_timeout(LIMIT)).await?;
    let mutex = locks.mutex(&name)?;
    for _ in 0..3 {
        let guard = world.soon("the lock", mutex.lock()).await?;
        world.freed(guard).await?;
        fault.cut().await;
        expect_unreachable(&mutex.try_lock().await.expect_err("it is cut off"));
        fault.heal().await;
    }
    let guard = world.soon("the lock", mutex.lock()).await?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn release_while_cut_is_unknown_and_done_later(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long().trip_timeout(LIMIT)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.cut().await;
    assert_eq!(guard.release().await?, Released::Unknown);
    fault.heal().await;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await?;
    assert_eq!(locks.stats().losses.total(), 0);
    Ok(())
}

async fn queries_of_a_cut_store_are_errors(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.long().trip_timeout(LIMIT)).await?;
    let name = world.name();
    fault.cut().await;
    expect_unreachable(&locks.inspect(&name).await.expect_err("inspect"));
    expect_unreachable(&locks.list(&name).await.expect_err("list"));
    if world.has(Capability::Break) {
        expect_unreachable(&locks.break_lock(&name).await.expect_err("break_lock"));
    }
    fault.heal().await;
    Ok(())
}
