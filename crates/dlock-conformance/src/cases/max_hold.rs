//! [C20](dlock_core::contract#c20): the longest hold.

use std::time::Duration;

use dlock_core::{Capability, LossReason, Released, Result};

use crate::case::case_list;
use crate::{Need, World};

case_list! {
    C20 max_hold_ends_a_forgotten_hold;
    C20 max_hold_is_a_loss_with_its_reason;
    C20 max_hold_ends_a_reader [Need::Can(Capability::Shared)];
    C20 max_hold_ends_a_permit [Need::Can(Capability::Permits)];
    C20 max_hold_does_not_end_a_hold_that_was_released;
}

const MAX_HOLD: Duration = Duration::from_millis(200);

async fn max_hold_ends_a_forgotten_hold(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.long().max_hold(MAX_HOLD)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    std::mem::forget(guard);
    world
        .expect_free_within(MAX_HOLD + world.timings.settle, &name)
        .await?;
    world.expect_quiet(&locks).await?;
    assert_eq!(locks.stats().losses.max_hold, 1);
    Ok(())
}

async fn max_hold_is_a_loss_with_its_reason(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short().max_hold(MAX_HOLD)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let reason = world.within(MAX_HOLD, "the end", guard.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    assert!(!guard.is_held());
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    world.expect_free(&name).await
}

async fn max_hold_ends_a_reader(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.long().max_hold(MAX_HOLD)).await?;
    std::mem::forget(locks.rw_lock(&name)?.read().await?);
    let limit = MAX_HOLD + world.timings.settle;
    world.expect_free_within(limit, &name).await?;
    world.expect_quiet(&locks).await
}

async fn max_hold_ends_a_permit(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.long().max_hold(MAX_HOLD)).await?;
    std::mem::forget(locks.semaphore(&name, 2)?.acquire().await?);
    let limit = MAX_HOLD + world.timings.settle;
    world.expect_free_within(limit, &name).await?;
    world.expect_quiet(&locks).await
}

async fn max_hold_does_not_end_a_hold_that_was_released(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.long().max_hold(MAX_HOLD)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let signal = guard.loss_signal();
    world.freed(guard).await?;
    // Held by another when the first one's time is up.
    let next = world.client().await?.mutex(&name)?.lock().await?;
    tokio::time::sleep(MAX_HOLD * 2).await;
    assert_eq!(signal.wait().await, None);
    assert_eq!(locks.stats().losses.total(), 0);
    world.expect_held(&name, &next).await?;
    world.freed(next).await
}
