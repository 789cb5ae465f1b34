//! The store answers, and refuses: rights were taken away, or it takes no writes.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, HeldNow, Released, Result};

use crate::case::case_list;
use crate::{Ability, Need, World};

const DENY: Need = Need::Able(Ability::Deny);

case_list! {
    C5 refused_client_is_told_so [DENY]
        "the store's refusal is taken for \"busy\", or for an outage: map its codes to `ErrorKind::Denied`, and the rest to `ErrorKind::Store`";
    C22 refused_attempt_holds_nothing [DENY]
        "the attempt answers before the write is confirmed, or ignores the error of a part of it";
    C10 refused_renewal_is_no_loss_while_the_lease_lasts [DENY, Need::Deadline]
        "every answer that is not `extended` is taken for a loss: a refusal says nothing about the hold, so it is `Renewal::Failed`";
    C8 loss_is_told_when_renewals_are_refused [DENY, Need::Deadline]
        "a refused renewal is taken for a good one, as when only the connection's life is looked at";
    C5 refused_release_is_done_later [DENY]
        "the release says `Freed` or `AlreadyLost` although the store has refused it";
    C5 refused_waiter_is_told [DENY]
        "the wait loop takes every error for \"not yet\", and asks again for ever";
}

const LIMIT: Duration = Duration::from_millis(500);

fn expect_refusal(error: &Error) {
    expect_refusal_kind(error);
    assert_ne!(error.held_now(), HeldNow::Yes, "{error}");
}

fn expect_refusal_kind(error: &Error) {
    assert!(
        matches!(error.kind(), ErrorKind::Denied | ErrorKind::Store),
        "expected `Denied` (or `Store`), since the store has answered and refused; came: {error}"
    );
}

async fn refused_client_is_told_so(world: World) -> Result<()> {
    let (held, free) = (world.name(), world.name());
    let guard = world.client().await?.mutex(&held)?.lock().await?;
    let (locks, fault) = world
        .faulty(world.long().retry_unreachable_for(LIMIT))
        .await?;
    fault.deny().await;
    for name in [&held, &free] {
        let mutex = locks.mutex(name)?;
        expect_refusal(&mutex.try_lock().await.expect_err("try_lock"));
        expect_refusal(&mutex.lock_within(LIMIT * 4).await.expect_err("lock_within"));
    }
    fault.heal().await;
    let again = world.soon("the lock", locks.mutex(&free)?.lock()).await?;
    world.freed(again).await?;
    world.freed(guard).await
}

async fn refused_attempt_holds_nothing(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    fault.deny().await;
    let outcome = locks.mutex(&name)?.try_lock().await;
    assert!(outcome.is_err(), "a refused client got the lock");
    // Also while it is refused, and has nothing undone.
    world.expect_free(&name).await?;
    fault.heal().await;
    world.expect_quiet(&locks).await
}

async fn refused_renewal_is_no_loss_while_the_lease_lasts(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.leased(world.lease() * 3)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.deny().await;
    world
        .until(locks.lease(), "a refused renewal", async || {
            Ok(locks.stats().renewals_failed > 0 || locks.stats().losses.total() > 0)
        })
        .await?;
    let renewals = locks.stats().renewals;
    fault.heal().await;
    let renewed = world.until(locks.lease(), "a good renewal", async || {
        Ok(locks.stats().renewals > renewals)
    });
    tokio::select! {
        reason = guard.lost() => panic!("expected no loss within the lease; it was told as: {reason}"),
        renewed = renewed => renewed?,
    }
    world.expect_held(&name, &guard).await?;
    world.freed(guard).await
}

async fn loss_is_told_when_renewals_are_refused(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.deny().await;
    world
        .within(
            world.lease(),
            "the loss of a hold that is renewed no more",
            guard.lost(),
        )
        .await;
    assert!(!guard.is_held());
    let limit = world.lease() + Duration::from_secs(1);
    world.expect_free_within(limit, &name).await?;
    fault.heal().await;
    world.expect_quiet(&locks).await
}

async fn refused_release_is_done_later(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long().trip_timeout(LIMIT)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.deny().await;
    match guard.release().await {
        Ok(Released::Unknown) => {}
        Ok(other) => panic!("expected `Unknown` of a release that was refused; came: {other:?}"),
        // It may well say that the lock is still held.
        Err(error) => expect_refusal_kind(&error),
    }
    fault.heal().await;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}

async fn refused_waiter_is_told(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (locks, fault) = world
        .faulty(world.long().retry_unreachable_for(LIMIT))
        .await?;
    fault.deny().await;
    let mutex = locks.mutex(&name)?;
    let error = world.soon("a refused waiter is told", mutex.lock()).await;
    expect_refusal(&error.expect_err("the store refuses"));
    fault.heal().await;
    world.freed(guard).await
}
