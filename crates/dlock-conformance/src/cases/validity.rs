//! [C7](dlock_core::contract#c7): until when a hold is valid. Exact, not timed: a reply that took at least `DELAY` was asked for at least that long ago.

use std::time::Duration;

use dlock_core::backend::Outcome;
use dlock_core::{Guard, Mode, Result};

use crate::case::case_list;
use crate::{Ability, Need, World};

const SLOW: Need = Need::Able(Ability::DelayReplies);

case_list! {
    C7 validity_counts_from_the_request_for_a_try [SLOW, Need::Deadline];
    C7 validity_counts_from_the_request_for_a_free_lock [SLOW, Need::Deadline];
    C7 validity_counts_from_the_grant_for_a_waiter [SLOW, Need::Deadline];
    C7 lease_counts_from_before_the_backend_was_asked [SLOW, Need::Deadline];
    C7 validity_counts_from_the_sending_of_a_renewal [SLOW, Need::Deadline];
    C7 validity_leaves_room_for_drift [Need::Deadline];
    C7 grant_that_comes_too_late_is_an_error_and_undone [SLOW, Need::Lease];
    C7 grant_that_comes_too_late_for_a_waiter_is_an_error_and_undone [SLOW, Need::Lease];
    C7 renewals_that_answer_too_late_do_not_extend [SLOW, Need::Lease];
}

/// How much later than the store's word a reply comes: less than the time between two renewals.
fn delay(world: &World) -> Duration {
    world.lease() / 8
}

/// A guard that came back just now, by replies that were `late`, cannot be valid for longer than this.
fn expect_counted_from_the_request(world: &World, guard: &Guard, late: Duration) {
    let valid_until = guard.valid_until().expect("a deadline");
    let latest = world.now().earlier(late) + world.validity();
    assert!(
        valid_until <= latest,
        "valid for {:?} too long: the time of the reply counts",
        valid_until.since(latest)
    );
}

async fn validity_counts_from_the_request_for_a_try(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    fault.delay_replies(delay(&world)).await;
    let guard = locks.mutex(world.name())?.try_lock().await?;
    let guard = guard.expect("it is free");
    expect_counted_from_the_request(&world, &guard, delay(&world));
    fault.heal().await;
    world.freed(guard).await
}

async fn validity_counts_from_the_request_for_a_free_lock(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    fault.delay_replies(delay(&world)).await;
    let guard = locks.mutex(world.name())?.lock().await?;
    expect_counted_from_the_request(&world, &guard, delay(&world));
    fault.heal().await;
    world.freed(guard).await
}

async fn validity_counts_from_the_grant_for_a_waiter(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?.mutex(&name)?.lock().await?;
    let (locks, fault) = world.faulty(world.short()).await?;
    let waits = locks.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    fault.delay_replies(delay(&world)).await;
    world.freed(holder).await?;
    let guard = world.soon("the waiter gets it", waits).await;
    let guard = guard.expect("no panic")?;
    expect_counted_from_the_request(&world, &guard, delay(&world));
    fault.heal().await;
    world.freed(guard).await
}

async fn lease_counts_from_before_the_backend_was_asked(world: World) -> Result<()> {
    let (backend, fault) = world.faulty_backend().await?;
    fault.delay_replies(delay(&world)).await;
    for waits in [false, true] {
        let request = world.short_request(&world.name(), Mode::Exclusive);
        let attempt = if waits {
            backend.acquire(&request).await?
        } else {
            backend.try_acquire(&request).await?
        };
        let Outcome::Held(lease) = attempt else {
            panic!("a free lock is busy");
        };
        let latest = world.now().earlier(delay(&world));
        assert!(
            lease.counted_from() <= latest,
            "the lease counts from {:?} after the request was sent",
            lease.counted_from().since(latest)
        );
        backend.abandon(&request).await?;
    }
    Ok(())
}

async fn validity_counts_from_the_sending_of_a_renewal(world: World) -> Result<()> {
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    fault.delay_replies(delay(&world)).await;
    // A renewal may have been answered just before the delay began.
    let mut seen = guard.valid_until();
    for renewal in 0..3 {
        world
            .until(world.lease(), "a renewal", async || {
                Ok(guard.valid_until() != seen)
            })
            .await?;
        seen = guard.valid_until();
        if renewal > 0 {
            expect_counted_from_the_request(&world, &guard, delay(&world));
        }
    }
    assert!(guard.is_held());
    fault.heal().await;
    world.freed(guard).await
}

async fn validity_leaves_room_for_drift(world: World) -> Result<()> {
    let locks = world.client_with(world.short()).await?;
    let guard = locks.mutex(world.name())?.lock().await?;
    expect_counted_from_the_request(&world, &guard, Duration::ZERO);
    assert!(guard.remaining().expect("a deadline") <= world.validity());
    world.freed(guard).await
}

async fn grant_that_comes_too_late_is_an_error_and_undone(world: World) -> Result<()> {
    let (locks, fault) = world
        .faulty(world.short().retry_unreachable_for(Duration::ZERO))
        .await?;
    let late = world.lease() * 3 / 2;
    for waits in [false, true] {
        let name = world.name();
        let mutex = locks.mutex(&name)?;
        fault.delay_replies(late).await;
        let outcome = if waits {
            mutex.lock_within(late * 3).await
        } else {
            mutex.try_lock().await
        };
        let error = outcome.expect_err("a grant that was over when it came");
        assert!(error.is_retryable(), "{error}");
        fault.heal().await;
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn grant_that_comes_too_late_for_a_waiter_is_an_error_and_undone(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?.mutex(&name)?.lock().await?;
    let (locks, fault) = world
        .faulty(world.short().retry_unreachable_for(Duration::ZERO))
        .await?;
    let waits = locks.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    let late = world.lease() * 3 / 2;
    fault.delay_replies(late).await;
    world.freed(holder).await?;
    // A store may need a word that wakes, a look and two steps to take it, and two to undo it; and one look more may be under way when the lock is freed.
    let outcome = world.within(late * 7, "the waiter is told", waits).await;
    let error = outcome
        .expect("no panic")
        .expect_err("a grant that was over when it came");
    assert!(error.is_retryable(), "{error}");
    fault.heal().await;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}

async fn renewals_that_answer_too_late_do_not_extend(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.short()).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.delay_replies(world.lease() * 2).await;
    world
        .within(world.lease() * 2, "the loss is told", guard.lost())
        .await;
    assert!(!guard.is_held());
    fault.heal().await;
    world
        .expect_free_within(world.lease() + Duration::from_secs(1), &name)
        .await
}
