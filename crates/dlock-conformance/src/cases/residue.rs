//! [C16](dlock_core::contract#c16): what is left.

use std::time::Duration;

use dlock_core::{Capability, ErrorKind, Locks, LossReason, Released, Result};

use crate::case::case_list;
use crate::{Ability, Need, World};

case_list! {
    C16 nothing_is_left_in_the_store [Need::Able(Ability::Residue), Need::Alone];
    C16 names_that_were_used_are_unused;
    C16 background_tasks_end_with_their_client;
    C16 close_gives_everything_back;
    C16 closed_client_refuses_and_ends_waiters;
    C16 close_waits_for_releases_in_doubt [Need::Able(Ability::Cut)];
}

/// Everything a client can do with a lock, several times, on names of its own. Tells the names.
async fn work_out(world: &World, a: &Locks, b: &Locks) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut name = || {
        names.push(world.name());
        names.last().cloned().expect("one was pushed")
    };
    for _ in 0..10 {
        let name = name();
        // A plain cycle, a try in vain, a wait in vain, a cancelled wait, a hand-over, a drop.
        let guard = a.mutex(&name)?.lock().await?;
        assert!(b.mutex(&name)?.try_lock().await?.is_none());
        let waits = b.mutex(&name)?;
        world.expect_in_vain(waits.lock_within(Duration::from_millis(5)).await)?;
        let cancelled = b.mutex(&name)?;
        let cancelled = tokio::time::timeout(Duration::from_millis(5), cancelled.lock()).await;
        assert!(cancelled.is_err());
        let next = b.mutex(&name)?;
        let next = tokio::spawn(async move { next.lock().await });
        world.freed(guard).await?;
        drop(next.await.expect("no panic")?);
    }
    if world.has(Capability::Shared) {
        let name = name();
        let first = a.rw_lock(&name)?.read().await?;
        let second = b.rw_lock(&name)?.read().await?;
        world.freed(first).await?;
        drop(second);
    }
    if world.has(Capability::Permits) {
        let name = name();
        let first = a.semaphore(&name, 2)?.acquire().await?;
        let second = b.semaphore(&name, 2)?.acquire().await?;
        world.freed(first).await?;
        drop(second);
    }
    if world.has(Capability::Break) {
        let name = name();
        let guard = a.mutex(&name)?.lock().await?;
        assert!(b.break_lock(&name).await?);
        assert_eq!(guard.release().await?, Released::AlreadyLost);
    }
    if world.has(Capability::Inspect) {
        // A look at what nobody has used, and a list of nothing.
        let name = name();
        assert!(!a.inspect(&name).await?.is_locked());
        assert!(b.list(&name).await?.is_empty());
    }
    let forgotten = a.with(world.long().max_hold(Duration::from_millis(50)))?;
    let guard = forgotten.mutex(name())?.lock().await?;
    let reason = world.soon("the end of a hold", guard.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    drop(guard);
    Ok(names)
}

/// What is in the store, once that does not become less any more.
async fn settled(world: &World) -> Result<crate::Residue> {
    /// Longer than stores take to notice that a connection has ended.
    const QUIET: Duration = Duration::from_millis(1500);
    let end = tokio::time::Instant::now() + world.lease() + world.timings.settle;
    let mut seen = world.residue().await?;
    let mut since = tokio::time::Instant::now();
    while since.elapsed() < QUIET && tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = world.residue().await?;
        if now != seen {
            (seen, since) = (now, tokio::time::Instant::now());
        }
    }
    Ok(seen)
}

async fn nothing_is_left_in_the_store(world: World) -> Result<()> {
    // What other cases have left must not go away meanwhile, and hide what this one leaves.
    let start = settled(&world).await?;
    for _ in 0..3 {
        let (a, b) = (world.client().await?, world.client().await?);
        work_out(&world, &a, &b).await?;
        a.close().await?;
        b.close().await?;
    }
    // Some stores notice the end of a connection or a session late.
    let limit = world.lease() + world.timings.settle;
    let left = async || -> Result<Vec<String>> {
        let now = world.residue().await?;
        let more = now.into_iter().filter_map(|(what, count)| {
            let before = start.get(&what).copied().unwrap_or_default();
            (count > before).then(|| format!("{what}: {before} became {count}"))
        });
        Ok(more.collect())
    };
    let clean = tokio::time::timeout(limit + world.timings.tolerance, async {
        while !left().await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    });
    match clean.await {
        Ok(looked) => looked,
        Err(_) => panic!("left in the store: {}", left().await?.join(", ")),
    }
}

async fn names_that_were_used_are_unused(world: World) -> Result<()> {
    let (a, b) = (world.client().await?, world.client().await?);
    let names = work_out(&world, &a, &b).await?;
    world.expect_quiet(&a).await?;
    world.expect_quiet(&b).await?;
    for name in &names {
        world.expect_unused(name).await?;
        world.expect_free(name).await?;
        if world.has(Capability::Inspect) {
            let listed = world.probe().await?.list(name).await?;
            assert!(listed.is_empty(), "still listed: {listed:?}");
        }
    }
    Ok(())
}

async fn background_tasks_end_with_their_client(world: World) -> Result<()> {
    let metrics = tokio::runtime::Handle::current().metrics();
    let start = metrics.num_alive_tasks();
    let (a, b) = (world.client().await?, world.client().await?);
    work_out(&world, &a, &b).await?;
    a.close().await?;
    drop(a);
    // The other one is dropped without a word, when it has nothing more to do.
    world.expect_quiet(&b).await?;
    drop(b);
    world
        .until(world.timings.settle, "all tasks have ended", async || {
            Ok(metrics.num_alive_tasks() <= start)
        })
        .await
}

async fn close_gives_everything_back(world: World) -> Result<()> {
    let (kept, dropped) = (world.name(), world.name());
    let locks = world.client().await?;
    let guard = locks.mutex(&kept)?.lock().await?;
    drop(locks.mutex(&dropped)?.lock().await?);
    world.soon("the close", locks.close()).await?;
    // At once: closing waits for the releases.
    for name in [&kept, &dropped] {
        let free = world.probe().await?.mutex(name)?.try_lock().await?;
        world.freed(free.expect("it was given back")).await?;
    }
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await, LossReason::Closed);
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    let stats = locks.stats();
    assert_eq!((stats.held, stats.in_doubt), (0, 0));
    locks.close().await
}

async fn closed_client_refuses_and_ends_waiters(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let locks = world.client().await?;
    let waits: Vec<_> = [locks.mutex(&name)?, locks.mutex(&name)?]
        .into_iter()
        .map(|mutex| tokio::spawn(async move { mutex.lock().await }))
        .collect();
    world.expect_waiting(&name, 1).await?;
    world.soon("the close", locks.close()).await?;
    for waiter in waits {
        let outcome = world.soon("the waiter ends", waiter).await;
        let error = outcome.expect("no panic").expect_err("it was closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    let error = locks.mutex(&name)?.try_lock().await;
    assert_eq!(error.expect_err("closed").kind(), ErrorKind::Closed);
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn close_waits_for_releases_in_doubt(world: World) -> Result<()> {
    let name = world.name();
    let settings = world.long().trip_timeout(Duration::from_millis(500));
    let (locks, fault) = world.faulty(settings).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.cut().await;
    drop(guard);
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    fault.heal().await;
    world.soon("the close", closing).await.expect("no panic")?;
    let free = world.probe().await?.mutex(&name)?.try_lock().await?;
    world.freed(free.expect("closing waits for it")).await
}
