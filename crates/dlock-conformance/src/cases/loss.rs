//! [C8](dlock_core::contract#c8), [C9](dlock_core::contract#c9) and [C10](dlock_core::contract#c10): when a hold is lost, and when it is not.

use std::time::Duration;

use dlock_core::{Capability, ErrorKind, LossReason, Released, Result};

use crate::case::case_list;
use crate::process::JobMode;
use crate::world::runtime;
use crate::{Ability, Need, World};

const CUT: Need = Need::Able(Ability::Cut);
const HANG: Need = Need::Able(Ability::Hang);

case_list! {
    C8 loss_is_told_when_the_store_is_cut_off [CUT, Need::Deadline];
    C8 loss_is_told_when_the_connection_is_half_open [HANG, Need::Deadline];
    C8 holder_that_is_cut_off_knows_before_the_next_one_holds [CUT, Need::Deadline];
    C8 holder_whose_connection_hangs_knows_before_the_next_one_holds [HANG, Need::Deadline];
    C8 is_held_is_right_while_the_runtime_is_blocked [Need::Deadline];
    C8 paused_holder_finds_its_hold_gone [Need::Worker, Need::Deadline];
    C8 work_is_cancelled_when_the_hold_is_lost [CUT, Need::Deadline];
    C8 hold_without_renewal_ends_with_its_lease [Need::Lease];
    C9 release_is_not_a_loss;
    C9 drop_is_not_a_loss;
    C9 release_while_being_watched_is_not_a_loss;
    C9 loss_is_sticky_and_has_a_reason [CUT, Need::Deadline];
    C9 loss_at_the_store_is_told_with_the_next_renewal [Need::Able(Ability::Expire), Need::Deadline];
    C9 loss_that_nobody_watched_is_told_later [Need::EndHold, Need::Deadline];
    C9 loss_by_force_is_told [Need::Can(Capability::Break), Need::Deadline];
    C9 other_holds_survive_the_loss_of_one [Need::Lease];
    C10 hold_outlives_many_leases_while_it_is_renewed [Need::Deadline];
    C10 outage_shorter_than_the_lease_is_not_a_loss [CUT, Need::Deadline];
    C10 silence_shorter_than_the_lease_is_not_a_loss [HANG, Need::Lease];
    C10 renewal_ends_with_the_release [Need::Deadline];
}

async fn loss_is_told_when_the_store_is_cut_off(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    fault.cut().await;
    let told = world.within(world.lease(), "the loss is told", guard.lost());
    assert!(matches!(
        told.await,
        LossReason::Expired | LossReason::SessionEnded
    ));
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
    assert_eq!(locks.stats().losses.total(), 1);
    Ok(())
}

async fn loss_is_told_when_the_connection_is_half_open(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    fault.hang().await;
    let told = world.within(world.lease(), "the loss is told", guard.lost());
    assert!(matches!(
        told.await,
        LossReason::Expired | LossReason::SessionEnded
    ));
    assert!(!guard.is_held());
    Ok(())
}

async fn holder_that_is_cut_off_knows_before_the_next_one_holds(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.cut().await;
    expect_handed_over(&world, &name, &guard).await
}

async fn holder_whose_connection_hangs_knows_before_the_next_one_holds(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.hang().await;
    expect_handed_over(&world, &name, &guard).await
}

async fn expect_handed_over(world: &World, name: &str, guard: &dlock_core::Guard) -> Result<()> {
    let mutex = world.probe().await?.mutex(name)?;
    let limit = world.lease() + Duration::from_secs(1);
    let next = world.within(limit, "the next one", mutex.lock()).await?;
    assert!(!guard.is_held(), "two holders believe to hold");
    world.freed(next).await
}

async fn is_held_is_right_while_the_runtime_is_blocked(world: World) -> Result<()> {
    let inner = world.clone();
    world
        .outside(move || {
            runtime().block_on(async {
                let locks = inner.mortal_client(inner.short()).await?;
                let guard = locks.mutex(inner.name())?.lock().await?;
                assert!(guard.is_held());
                let signal = guard.loss_signal();
                std::thread::sleep(inner.lease());
                // The first look after the pause; no task of this client has run.
                assert!(!guard.is_held(), "the lease has passed");
                let told = inner.soon("the loss is told", signal.reason()).await;
                assert!(matches!(
                    told,
                    LossReason::Expired | LossReason::SessionEnded
                ));
                assert_eq!(guard.release().await?, Released::AlreadyLost);
                Ok(())
            })
        })
        .await
}

async fn paused_holder_finds_its_hold_gone(world: World) -> Result<()> {
    let name = world.name();
    let mut holder = world.holder(&name, JobMode::Exclusive);
    world.says(&mut holder, "asking").await;
    world.says(&mut holder, "held").await;
    holder.tell("check");
    world.says(&mut holder, "is_held true").await;
    holder.pause();
    let mutex = world.probe().await?.mutex(&name)?;
    let limit = world.lease() + Duration::from_secs(1);
    let next = world.within(limit, "the next one", mutex.lock()).await?;
    holder.tell("check");
    holder.resume();
    world.says(&mut holder, "is_held false").await;
    assert!(next.is_held());
    world.freed(next).await
}

async fn work_is_cancelled_when_the_hold_is_lost(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    let mutex = locks.mutex(world.name())?;
    let run = mutex.run(async |guard| {
        assert!(guard.is_held());
        fault.cut().await;
        std::future::pending::<()>().await;
    });
    let error = world
        .within(world.lease(), "the work is cancelled", run)
        .await
        .expect_err("the hold was lost");
    assert_eq!(error.kind(), ErrorKind::Lost);
    Ok(())
}

async fn hold_without_renewal_ends_with_its_lease(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short().renewal(false)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let told = world.within(world.lease(), "the loss is told", guard.lost());
    assert_eq!(told.await, LossReason::Expired);
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    world.expect_free(&name).await
}

async fn release_is_not_a_loss(world: World) -> Result<()> {
    let locks = world.client().await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    let signal = guard.loss_signal();
    let copy = signal.clone();
    world.freed(guard).await?;
    assert_eq!(world.soon("the signal ends", signal.wait()).await, None);
    assert_eq!(world.soon("the copy ends", copy.wait()).await, None);
    let stats = locks.stats();
    assert_eq!((stats.losses.total(), stats.released), (0, 1));
    Ok(())
}

async fn drop_is_not_a_loss(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let signal = guard.loss_signal();
    drop(guard);
    assert_eq!(world.soon("the signal ends", signal.wait()).await, None);
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await?;
    let stats = locks.stats();
    assert_eq!((stats.losses.total(), stats.released), (0, 1));
    Ok(())
}

async fn release_while_being_watched_is_not_a_loss(world: World) -> Result<()> {
    let locks = world.client_with(world.short()).await?;
    for _ in 0..10 {
        let guard = locks.mutex(world.name())?.lock().await?;
        let signal = guard.loss_signal();
        let watch = tokio::spawn(async move { signal.wait().await });
        tokio::task::yield_now().await;
        world.freed(guard).await?;
        let told = world.soon("the watcher ends", watch).await;
        assert_eq!(told.expect("no panic"), None);
    }
    assert_eq!(locks.stats().losses.total(), 0);
    Ok(())
}

async fn loss_is_sticky_and_has_a_reason(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    let signal = guard.loss_signal();
    fault.cut().await;
    let reason = world
        .within(world.lease(), "the loss is told", guard.lost())
        .await;
    fault.heal().await;
    // Time for a renewal that must not come.
    tokio::time::sleep(world.lease() / 2).await;
    assert!(!guard.is_held(), "a lost hold came back");
    for _ in 0..2 {
        assert_eq!(world.soon("it is told again", guard.lost()).await, reason);
        assert_eq!(signal.wait().await, Some(reason));
    }
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    assert_eq!(signal.wait().await, Some(reason));
    assert_eq!(locks.stats().losses.total(), 1);
    Ok(())
}

async fn loss_at_the_store_is_told_with_the_next_renewal(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    world.end_hold(&name).await?;
    let told = world.within(world.lease(), "the loss is told", guard.lost());
    assert_ne!(told.await, LossReason::MaxHold);
    assert!(!guard.is_held());
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    world.expect_free(&name).await
}

async fn loss_that_nobody_watched_is_told_later(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short().renewal(false)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    world.end_hold(&name).await?;
    world
        .until(world.lease(), "the loss is seen", async || {
            Ok(!guard.is_held())
        })
        .await?;
    let signal = guard.loss_signal();
    let reason = world.soon("at once", guard.lost()).await;
    assert_eq!(signal.wait().await, Some(reason));
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    Ok(())
}

async fn loss_by_force_is_told(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    assert!(world.probe().await?.break_lock(&name).await?);
    world
        .within(world.lease(), "the loss is told", guard.lost())
        .await;
    assert!(!guard.is_held());
    world.expect_free(&name).await
}

async fn other_holds_survive_the_loss_of_one(world: World) -> Result<()> {
    let (lost, kept) = (world.name(), world.name());
    let locks = world.client_with(world.short()).await?;
    let renewed = locks.with(world.short())?.mutex(&kept)?.lock().await?;
    let unrenewed = locks.with(world.short().renewal(false))?;
    let guard = unrenewed.mutex(&lost)?.lock().await?;
    world
        .within(world.lease(), "the loss is told", guard.lost())
        .await;
    assert!(renewed.is_held());
    world.expect_held(&kept, &renewed).await?;
    world.freed(renewed).await
}

async fn hold_outlives_many_leases_while_it_is_renewed(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let token = guard.token();
    // At a third of a lease each.
    world
        .until(world.lease() * 4, "seven renewals", async || {
            Ok(locks.stats().renewals >= 7)
        })
        .await?;
    assert!(guard.is_held());
    world.expect_held(&name, &guard).await?;
    assert_eq!(guard.token(), token, "a renewal keeps the token");
    assert_eq!(locks.stats().losses.total(), 0);
    world.freed(guard).await
}

async fn outage_shorter_than_the_lease_is_not_a_loss(world: World) -> Result<()> {
    let name = world.name();
    // Three times as long, so that a third of it is time enough to connect again.
    let (locks, fault) = world.faulty(world.leased(world.lease() * 3)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.cut().await;
    world
        .until(locks.lease() / 2, "a renewal fails", async || {
            Ok(locks.stats().renewals_failed > 0)
        })
        .await?;
    assert!(guard.is_held(), "one failed renewal is not a loss");
    fault.heal().await;
    let before = locks.stats().renewals;
    world
        .until(locks.lease(), "two renewals", async || {
            Ok(locks.stats().renewals >= before + 2)
        })
        .await?;
    assert!(guard.is_held());
    world.expect_held(&name, &guard).await?;
    assert_eq!(locks.stats().losses.total(), 0);
    world.freed(guard).await
}

async fn silence_shorter_than_the_lease_is_not_a_loss(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.leased(world.lease() * 3)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.hang().await;
    // Over the first renewal.
    tokio::time::sleep(locks.lease() / 2).await;
    assert!(guard.is_held());
    fault.heal().await;
    let before = locks.stats().renewals;
    world
        .until(locks.lease(), "two renewals", async || {
            Ok(locks.stats().renewals >= before + 2)
        })
        .await?;
    assert!(guard.is_held());
    world.expect_held(&name, &guard).await?;
    world.freed(guard).await
}

async fn renewal_ends_with_the_release(world: World) -> Result<()> {
    let locks = world.client_with(world.short()).await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    world
        .until(world.lease(), "a renewal", async || {
            Ok(locks.stats().renewals > 0)
        })
        .await?;
    world.freed(guard).await?;
    let stats = locks.stats();
    tokio::time::sleep(world.lease()).await;
    let later = locks.stats();
    // One may have been under way.
    let more = later.renewals + later.renewals_failed - stats.renewals - stats.renewals_failed;
    assert!(more <= 1, "{more} renewals after the release");
    assert_eq!(later.losses.total(), 0);
    Ok(())
}
