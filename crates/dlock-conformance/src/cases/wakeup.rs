//! [C17](dlock_core::contract#c17): how waiters wake.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dlock_core::{Capability, Result, WakeUp};

use crate::case::case_list;
use crate::polls::Counted;
use crate::{Need, World};

case_list! {
    C17 waiter_wakes_in_time_after_a_release;
    C17 waiter_wakes_in_time_after_a_drop;
    C17 waiter_wakes_when_the_one_before_it_gives_up;
    C17 no_wake_up_is_missed_when_release_and_wait_meet;
    C17 release_wakes_only_the_next_waiter [Need::Can(Capability::Push), Need::Alone];
}

fn bound(world: &World) -> Duration {
    match world.capabilities.wake_up {
        WakeUp::Push { bound } => bound,
        WakeUp::Poll { longest } => longest,
        _ => Duration::ZERO,
    }
}

async fn waiter_wakes_in_time_after_a_release(world: World) -> Result<()> {
    wakes_in_time(&world, false).await
}

async fn waiter_wakes_in_time_after_a_drop(world: World) -> Result<()> {
    wakes_in_time(&world, true).await
}

async fn wakes_in_time(world: &World, by_drop: bool) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?.mutex(&name)?;
    let waiter = world.client().await?.mutex(&name)?;
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let guard = holder.lock().await?;
        let waits = waiter.clone();
        let waits = tokio::spawn(async move {
            let guard = waits.lock().await?;
            Ok((guard, Instant::now()))
        });
        world.expect_waiting(&name, 1).await?;
        let released = if by_drop {
            let now = Instant::now();
            drop(guard);
            now
        } else {
            world.freed(guard).await?;
            Instant::now()
        };
        let outcome: Result<_> = world.soon("the waiter", waits).await.expect("no panic");
        let (guard, woke) = outcome?;
        let took = woke.saturating_duration_since(released);
        let most = bound(world) + world.timings.tolerance;
        assert!(took <= most, "it took {took:?}, at most {most:?}");
        quickest = quickest.min(took);
        world.freed(guard).await?;
    }
    // A stalled machine delays one of them, and not all.
    let most = bound(world) + world.timings.tolerance / 5;
    assert!(
        quickest <= most,
        "the quickest of five took {quickest:?}, at most {most:?}"
    );
    Ok(())
}

async fn waiter_wakes_when_the_one_before_it_gives_up(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (first, second) = (world.client().await?, world.client().await?);
    let first = first.mutex(&name)?;
    let first = tokio::spawn(async move { first.lock().await });
    world.expect_waiting(&name, 1).await?;
    let second = second.mutex(&name)?;
    let second = tokio::spawn(async move { second.lock().await });
    world.expect_waiting(&name, 2).await?;
    world.freed(guard).await?;
    first.abort();
    // The first may have got it before it ended; then its guard was dropped.
    if let Ok(Ok(guard)) = first.await {
        drop(guard);
    }
    let guard = world.soon("the second", second).await.expect("no panic")?;
    world.freed(guard).await
}

async fn no_wake_up_is_missed_when_release_and_wait_meet(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let (a, b) = (a.mutex(&name)?, b.mutex(&name)?);
    for turn in 0..40 {
        let guard = a.lock().await?;
        let waits = b.clone();
        let waits = tokio::spawn(async move { waits.lock().await });
        for _ in 0..turn % 8 {
            tokio::task::yield_now().await;
        }
        world.freed(guard).await?;
        let guard = world.soon("the waiter", waits).await.expect("no panic")?;
        world.freed(guard).await?;
    }
    Ok(())
}

/// A herd shows as waiters that are polled at a hand-over which was not theirs. Heartbeats may wake a few.
async fn release_wakes_only_the_next_waiter(world: World) -> Result<()> {
    const WAITERS: usize = 8;
    let name = world.name();
    let mut guard = world.client().await?.mutex(&name)?.lock().await?;
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let mut polls = Vec::new();
    for (index, locks) in world.clients(WAITERS).await?.into_iter().enumerate() {
        let mutex = locks.mutex(&name)?;
        let (future, count) = Counted::new(async move { mutex.lock().await });
        let granted = granted.clone();
        tokio::spawn(async move {
            let _ = granted.send((index, future.await));
        });
        polls.push(count);
        world.expect_waiting(&name, index + 1).await?;
    }
    let mut waiting: Vec<usize> = (0..WAITERS).collect();
    let (mut disturbed, mut chances) = (0, 0);
    while !waiting.is_empty() {
        let count = |index: usize| polls[index].load(Ordering::SeqCst);
        let before: Vec<usize> = waiting.iter().map(|index| count(*index)).collect();
        world.freed(guard).await?;
        let next = world.soon("the next waiter", grants.recv()).await;
        let (index, outcome) = next.expect("the waiters live");
        guard = outcome?;
        // Time for a herd to arrive.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for (waiter, before) in waiting.iter().zip(before) {
            if *waiter != index {
                chances += 1;
                disturbed += usize::from(count(*waiter) != before);
            }
        }
        waiting.retain(|waiter| *waiter != index);
    }
    assert!(
        disturbed * 2 <= chances,
        "{disturbed} of {chances} times a waiter was woken when it was another's turn"
    );
    world.freed(guard).await
}
