//! [C15](dlock_core::contract#c15): the store did the work, and the answer was lost. Whichever reply it was, the outcome must be true and nothing may leak.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::Outcome;
use dlock_core::{Capability, Guard, Mode, Released, Result};

use super::exclusion::Resource;
use crate::case::case_list;
use crate::{Ability, Need, World};

const LOSE: Need = Need::Able(Ability::LoseReply);

case_list! {
    C15 same_attempt_twice_is_one_hold;
    C15 same_attempt_twice_takes_one_permit [Need::Can(Capability::Permits)];
    C15 same_reader_twice_is_one_reader [Need::Can(Capability::Shared)];
    C15 lost_reply_to_a_try_neither_leaks_nor_lies [LOSE];
    C15 lost_reply_to_an_acquire_is_made_good [LOSE];
    C15 lost_reply_to_a_waiter_is_made_good [LOSE];
    C15 lost_reply_to_a_renewal_is_not_a_loss [LOSE, Need::Deadline];
    C15 lost_reply_to_a_release_neither_leaks_nor_lies [LOSE];
    C15 lost_reply_to_the_release_of_a_dropped_guard_does_not_leak [LOSE];
    C15 lost_reply_to_an_abandon_does_not_leak [LOSE];
    C15 lost_reply_to_a_downgrade_does_not_leak [LOSE, Need::Can(Capability::Downgrade)];
    C15 lost_replies_to_a_reader_do_not_leak [LOSE, Need::Can(Capability::Shared)];
    C15 lost_replies_to_a_permit_do_not_leak [LOSE, Need::Can(Capability::Permits)];
    C15 counter_loses_no_update_when_replies_are_lost [LOSE];
}

async fn same_attempt_twice_is_one_hold(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Exclusive);
    let mut tokens = Vec::new();
    let mut held = None;
    for turn in 0..3 {
        let attempt = if turn == 2 {
            backend.acquire(&request).await?
        } else {
            backend.try_acquire(&request).await?
        };
        match attempt {
            Outcome::Held(lease) => {
                tokens.push(lease.token());
                held = Some(lease);
            }
            Outcome::Busy(_) => panic!("the attempt that holds finds the lock busy"),
        }
    }
    assert!(
        tokens.iter().all(|token| *token == tokens[0]),
        "one hold, several tokens: {tokens:?}"
    );
    let lease = held.expect("it is held");
    assert_eq!(backend.release(&lease).await?, Released::Freed);
    world.expect_free(&name).await
}

async fn same_attempt_twice_takes_one_permit(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let mode = Mode::Permit { limit: 2 };
    let first = world.request(&name, mode);
    for _ in 0..3 {
        assert!(matches!(
            backend.try_acquire(&first).await?,
            Outcome::Held(_)
        ));
    }
    let second = world.request(&name, mode);
    assert!(
        matches!(backend.try_acquire(&second).await?, Outcome::Held(_)),
        "one attempt took both permits"
    );
    let third = world.request(&name, mode);
    assert!(matches!(
        backend.try_acquire(&third).await?,
        Outcome::Busy(_)
    ));
    backend.abandon(&first).await?;
    backend.abandon(&second).await?;
    world.expect_free(&name).await
}

async fn same_reader_twice_is_one_reader(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Shared);
    let mut held = None;
    for _ in 0..3 {
        if let Outcome::Held(lease) = backend.try_acquire(&request).await? {
            held = Some(lease);
        }
    }
    let lease = held.expect("a free lock is busy");
    assert_eq!(backend.release(&lease).await?, Released::Freed);
    world.expect_free(&name).await
}

/// A guard that the store knows about.
async fn expect_true(world: &World, guard: Guard) -> Result<()> {
    let name = guard.name();
    assert!(guard.is_held());
    if world.has(Capability::Inspect) {
        let info = world.probe().await?.inspect(&name).await?;
        let ours = info.holders.iter().any(|h| h.owner == guard.owner_id());
        assert!(ours, "the store does not know the holder: {info:?}");
    }
    world.freed(guard).await
}

async fn lost_reply_to_a_try_neither_leaks_nor_lies(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    let mutex = locks.mutex(&name)?;
    for _ in 0..3 {
        fault.lose_reply().await;
        match mutex.try_lock().await {
            Ok(Some(guard)) => {
                world.expect_held(&name, &guard).await?;
                expect_true(&world, guard).await?;
            }
            Ok(None) => panic!("busy, and nobody holds it"),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        fault.heal().await;
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn lost_reply_to_an_acquire_is_made_good(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    let mutex = locks.mutex(&name)?;
    for _ in 0..3 {
        fault.lose_reply().await;
        // It must not wait for its own lost hold either.
        let guard = world.soon("the lock", mutex.lock()).await?;
        world.expect_held(&name, &guard).await?;
        fault.heal().await;
        expect_true(&world, guard).await?;
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn lost_reply_to_a_waiter_is_made_good(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?.mutex(&name)?;
    let (locks, fault) = world.faulty(world.long()).await?;
    for _ in 0..3 {
        let guard = holder.lock().await?;
        let waits = locks.mutex(&name)?;
        let waits = tokio::spawn(async move { waits.lock().await });
        world.expect_waiting(&name, 1).await?;
        fault.lose_reply().await;
        world.freed(guard).await?;
        let guard = world.soon("the lock", waits).await.expect("no panic")?;
        fault.heal().await;
        world.expect_held(&name, &guard).await?;
        expect_true(&world, guard).await?;
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn lost_reply_to_a_renewal_is_not_a_loss(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.leased(world.lease() * 2)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    for _ in 0..2 {
        let stats = locks.stats();
        fault.lose_reply().await;
        world
            .until(locks.lease(), "a renewal that fails or not", async || {
                let now = locks.stats();
                Ok(now.renewals > stats.renewals || now.renewals_failed > stats.renewals_failed)
            })
            .await?;
        let renewals = locks.stats().renewals;
        world
            .until(locks.lease(), "a good renewal", async || {
                Ok(locks.stats().renewals > renewals)
            })
            .await?;
        assert!(guard.is_held());
        world.expect_held(&name, &guard).await?;
    }
    fault.heal().await;
    assert_eq!(locks.stats().losses.total(), 0);
    world.freed(guard).await
}

async fn lost_reply_to_a_release_neither_leaks_nor_lies(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    for _ in 0..3 {
        let guard = locks.mutex(&name)?.lock().await?;
        fault.lose_reply().await;
        let released = guard.release().await?;
        assert!(
            matches!(released, Released::Freed | Released::Unknown),
            "the hold was good, and its release says {released:?}"
        );
        fault.heal().await;
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await?;
    assert_eq!(locks.stats().losses.total(), 0, "a loss that was none");
    Ok(())
}

async fn lost_reply_to_the_release_of_a_dropped_guard_does_not_leak(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    for _ in 0..3 {
        let guard = locks.mutex(&name)?.lock().await?;
        fault.lose_reply().await;
        drop(guard);
        world.expect_free(&name).await?;
        world.expect_quiet(&locks).await?;
        fault.heal().await;
    }
    Ok(())
}

async fn lost_reply_to_an_abandon_does_not_leak(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?.mutex(&name)?;
    let (locks, fault) = world.faulty(world.long()).await?;
    for _ in 0..3 {
        let guard = holder.lock().await?;
        let waits = locks.mutex(&name)?;
        let waits = tokio::spawn(async move { waits.lock().await });
        world.expect_waiting(&name, 1).await?;
        fault.lose_reply().await;
        waits.abort();
        let _ = waits.await;
        world.expect_quiet(&locks).await?;
        fault.heal().await;
        world.freed(guard).await?;
        world.expect_free(&name).await?;
    }
    Ok(())
}

async fn lost_reply_to_a_downgrade_does_not_leak(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    let guard = locks.rw_lock(&name)?.write().await?;
    fault.lose_reply().await;
    if let Err(error) = guard.downgrade().await {
        assert!(error.is_retryable(), "{error}");
        // Repeating it is harmless.
        fault.heal().await;
        world.soon("a downgrade", guard.downgrade()).await?;
    }
    fault.heal().await;
    assert_eq!(guard.mode(), Mode::Shared);
    let reader = world.client().await?.rw_lock(&name)?;
    let read = reader.try_read().await?.expect("readers share");
    world.expect_held(&name, &guard).await?;
    world.freed(guard).await?;
    world.freed(read).await?;
    world.expect_free(&name).await
}

async fn lost_replies_to_a_reader_do_not_leak(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    let lock = locks.rw_lock(&name)?;
    for _ in 0..2 {
        fault.lose_reply().await;
        let guard = world.soon("to read", lock.read()).await?;
        fault.lose_reply().await;
        assert_ne!(guard.release().await?, Released::AlreadyLost);
        world.expect_free(&name).await?;
    }
    fault.heal().await;
    world.expect_quiet(&locks).await
}

async fn lost_replies_to_a_permit_do_not_leak(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(world.long()).await?;
    let semaphore = locks.semaphore(&name, 1)?;
    for _ in 0..2 {
        fault.lose_reply().await;
        let permit = world.soon("a permit", semaphore.acquire()).await?;
        fault.lose_reply().await;
        assert_ne!(permit.release().await?, Released::AlreadyLost);
        world.expect_free(&name).await?;
    }
    fault.heal().await;
    world.expect_quiet(&locks).await
}

async fn counter_loses_no_update_when_replies_are_lost(world: World) -> Result<()> {
    const TIMES: u64 = 6;
    let name = world.name();
    let resource = Arc::<Resource>::default();
    let mut running = Vec::new();
    for _ in 0..3 {
        let (locks, fault) = world.faulty(world.long()).await?;
        let (mutex, resource) = (locks.mutex(&name)?, resource.clone());
        running.push(tokio::spawn(async move {
            for _ in 0..TIMES {
                fault.lose_reply().await;
                let guard = mutex.lock().await?;
                resource.visit().await;
                fault.lose_reply().await;
                assert_ne!(guard.release().await?, Released::AlreadyLost);
            }
            fault.heal().await;
            Ok(())
        }));
    }
    for task in running {
        let outcome: Result<()> = world
            .within(Duration::from_secs(40), "all visits", task)
            .await
            .expect("a task panicked");
        outcome?;
    }
    assert_eq!(resource.visits(), 3 * TIMES);
    world.expect_free(&name).await
}
