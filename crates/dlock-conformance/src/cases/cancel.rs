//! [C13](dlock_core::contract#c13): futures that are dropped. Each is dropped after its first poll, its second, and so on, until it completes.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Capability, Guard, Locks, Released, Result};

use super::exclusion::Resource;
use crate::case::case_list;
use crate::polls::{Ended, polled};
use crate::{Need, World};

case_list! {
    C13 cancelled_lock_leaves_nothing_when_free;
    C13 cancelled_try_leaves_nothing;
    C13 cancelled_lock_leaves_nothing_while_others_hold;
    C13 cancelled_lock_leaves_nothing_at_the_moment_of_the_grant;
    C13 cancelled_reader_leaves_nothing [Need::Can(Capability::Shared)];
    C13 cancelled_permit_leaves_nothing [Need::Can(Capability::Permits)];
    C13 cancelled_release_still_frees;
    C13 cancelled_work_frees;
    C13 cancelled_multi_lock_leaves_nothing;
    C13 cancelled_waiters_do_not_stall_the_queue;
    C13 storm_of_cancelled_tasks_leaves_nothing;
    C13 client_answers_right_after_cancelled_calls;
}

/// Nothing wakes a future for this long: it waits for others.
const IDLE: Duration = Duration::from_millis(100);
/// Where a future is woken for ever, as a poller's is.
const ENOUGH: usize = 16;

/// Drops the future after each number of polls, until it completes, and checks each time that nothing is left.
async fn cancel_everywhere<F>(world: &World, name: &str, make: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<Option<Guard>>>,
{
    for polls in 0..200 {
        match polled(make(), polls, IDLE + world.timings.settle).await {
            Ended::Done(outcome) => {
                let guard = outcome?.expect("a free lock was busy");
                world.freed(guard).await?;
                return world.expect_free(name).await;
            }
            Ended::Dropped => world.expect_free(name).await?,
            Ended::Idle => panic!("nothing wakes an acquire of a free lock after {polls} polls"),
        }
    }
    panic!("an acquire of a free lock does not end");
}

async fn cancelled_lock_leaves_nothing_when_free(world: World) -> Result<()> {
    let name = world.name();
    for locks in [world.client().await?, world.slow().await?] {
        let mutex = locks.mutex(&name)?;
        cancel_everywhere(&world, &name, async || mutex.lock().await.map(Some)).await?;
        let limit = Duration::from_secs(20);
        cancel_everywhere(&world, &name, || mutex.lock_within(limit)).await?;
        world.expect_quiet(&locks).await?;
    }
    Ok(())
}

async fn cancelled_try_leaves_nothing(world: World) -> Result<()> {
    let name = world.name();
    for locks in [world.client().await?, world.slow().await?] {
        let mutex = locks.mutex(&name)?;
        cancel_everywhere(&world, &name, || mutex.try_lock()).await?;
        world.expect_quiet(&locks).await?;
    }
    Ok(())
}

async fn cancelled_lock_leaves_nothing_while_others_hold(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?;
    for locks in [world.client().await?, world.slow().await?] {
        let guard = holder.mutex(&name)?.lock().await?;
        let mutex = locks.mutex(&name)?;
        for polls in 0..ENOUGH {
            match polled(mutex.lock(), polls, IDLE).await {
                Ended::Done(_) => panic!("the lock was held"),
                Ended::Dropped => {}
                Ended::Idle => break,
            }
        }
        world.expect_quiet(&locks).await?;
        if world.has(Capability::Inspect) {
            let info = world.probe().await?.inspect(&name).await?;
            assert!(info.waiters.is_empty(), "left in the queue: {info:?}");
        }
        world.freed(guard).await?;
        world.expect_free(&name).await?;
    }
    Ok(())
}

async fn cancelled_lock_leaves_nothing_at_the_moment_of_the_grant(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client().await?.mutex(&name)?;
    let locks = world.slow().await?;
    let mutex = locks.mutex(&name)?;
    for polls in 0..ENOUGH {
        let guard = holder.lock().await?;
        let mut waits = Box::pin(mutex.lock());
        let early = tokio::time::timeout(IDLE / 4, &mut waits).await;
        assert!(early.is_err(), "the lock was held");
        let release = tokio::spawn(guard.release());
        let ended = polled(waits, polls, world.timings.settle).await;
        let released = release.await.expect("no panic")?;
        assert_eq!(released, Released::Freed);
        match ended {
            Ended::Done(guard) => {
                world.freed(guard?).await?;
                break;
            }
            Ended::Dropped => world.expect_free(&name).await?,
            Ended::Idle => panic!("the waiter is not woken"),
        }
    }
    world.expect_quiet(&locks).await
}

async fn cancelled_reader_leaves_nothing(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.slow().await?;
    let lock = locks.rw_lock(&name)?;
    cancel_everywhere(&world, &name, async || lock.read().await.map(Some)).await?;
    cancel_everywhere(&world, &name, || lock.try_write()).await?;
    // Beside a reader, and then a writer, of another client.
    let other = world.client().await?.rw_lock(&name)?;
    let guard = other.read().await?;
    for polls in 0..ENOUGH {
        match polled(lock.read(), polls, world.timings.settle).await {
            Ended::Done(guard) => {
                world.freed(guard?).await?;
                break;
            }
            Ended::Dropped => {}
            Ended::Idle => panic!("readers share"),
        }
    }
    for polls in 0..ENOUGH {
        match polled(lock.write(), polls, IDLE).await {
            Ended::Done(_) => panic!("a writer got in beside a reader"),
            Ended::Dropped => {}
            Ended::Idle => break,
        }
    }
    // The writers that gave up do not keep readers out.
    let reader = world.probe().await?.rw_lock(&name)?;
    let limit = world.timings.settle + world.timings.tolerance;
    let another = reader.read_within(limit).await?;
    world.freed(another.expect("readers share")).await?;
    world.freed(guard).await?;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}

async fn cancelled_permit_leaves_nothing(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.slow().await?;
    let semaphore = locks.semaphore(&name, 2)?;
    for polls in 0..ENOUGH {
        match polled(semaphore.acquire(), polls, world.timings.settle).await {
            Ended::Done(permit) => {
                world.freed(permit?).await?;
                break;
            }
            Ended::Dropped => {}
            Ended::Idle => panic!("nothing wakes an acquire of a free permit"),
        }
    }
    world.expect_quiet(&locks).await?;
    // Both permits are there.
    let other = world.client().await?.semaphore(&name, 2)?;
    let limit = world.timings.settle + world.timings.tolerance;
    let first = other.acquire_within(limit).await?.expect("a permit");
    let second = other.acquire_within(limit).await?.expect("a permit");
    for polls in 0..ENOUGH {
        match polled(semaphore.acquire(), polls, IDLE).await {
            Ended::Done(_) => panic!("a third permit of two"),
            Ended::Dropped => {}
            Ended::Idle => break,
        }
    }
    world.freed(first).await?;
    world.freed(second).await?;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}

async fn cancelled_release_still_frees(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.slow().await?;
    let mutex = locks.mutex(&name)?;
    for polls in 0..200 {
        let guard = mutex.lock().await?;
        let ended = polled(guard.release(), polls, world.timings.settle).await;
        world.expect_free(&name).await?;
        match ended {
            Ended::Done(released) => {
                assert_eq!(released?, Released::Freed);
                world.expect_quiet(&locks).await?;
                assert_eq!(locks.stats().losses.total(), 0);
                return Ok(());
            }
            Ended::Dropped => {}
            Ended::Idle => panic!("nothing wakes a release"),
        }
    }
    panic!("a release does not end");
}

async fn cancelled_work_frees(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let mutex = locks.mutex(&name)?;
    let work = mutex.run(async |_| std::future::pending::<()>().await);
    let stopped = tokio::time::timeout(IDLE, work).await;
    assert!(stopped.is_err());
    world.expect_free(&name).await?;
    let aborted = tokio::spawn({
        let mutex = mutex.clone();
        async move {
            mutex
                .run(async |_| std::future::pending::<()>().await)
                .await
        }
    });
    tokio::time::sleep(IDLE).await;
    aborted.abort();
    drop(aborted.await);
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}

async fn cancelled_multi_lock_leaves_nothing(world: World) -> Result<()> {
    let names = [world.name(), world.name()];
    let locks = world.slow().await?;
    let multi = locks.multi(&names)?;
    for polls in 0..200 {
        let ended = polled(multi.lock(), polls, world.timings.settle).await;
        let done = match ended {
            Ended::Done(guard) => {
                world.freed(guard?).await?;
                true
            }
            Ended::Dropped => false,
            Ended::Idle => panic!("nothing wakes an acquire of free locks"),
        };
        for name in &names {
            world.expect_free(name).await?;
        }
        if done {
            return world.expect_quiet(&locks).await;
        }
    }
    panic!("an acquire of free locks does not end");
}

async fn cancelled_waiters_do_not_stall_the_queue(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let mut waiting = Vec::new();
    // The first, the middle and the last go; two of them wait behind their own client.
    for (index, locks) in world.clients(5).await?.into_iter().enumerate() {
        for task in 0..=index % 2 {
            let mutex = locks.mutex(&name)?;
            let stays = index == 1 && task == 0 || index == 3;
            waiting.push((
                stays,
                tokio::spawn(async move {
                    let guard = mutex.lock().await?;
                    guard.release().await
                }),
            ));
        }
        world.expect_waiting(&name, index + 1).await?;
    }
    for (_, waits) in waiting.iter().filter(|(stays, _)| !stays) {
        waits.abort();
    }
    world.freed(guard).await?;
    for (stays, waits) in waiting {
        if stays {
            let released = world.soon("the next of those who stay", waits).await;
            assert_eq!(released.expect("no panic")?, Released::Freed);
        }
    }
    world.expect_free(&name).await
}

async fn storm_of_cancelled_tasks_leaves_nothing(world: World) -> Result<()> {
    let name = world.name();
    let resource = Arc::<Resource>::default();
    let clients: Vec<Locks> = world.clients(3).await?;
    let mut running = Vec::new();
    for task in 0_u64..60 {
        let mutex = clients[task as usize % 3].mutex(&name)?;
        let resource = resource.clone();
        // Scattered, and the same in every run.
        let patience = Duration::from_millis(task * 7 % 31);
        running.push(tokio::spawn(async move {
            let Ok(guard) = tokio::time::timeout(patience, mutex.lock()).await else {
                return Ok(0);
            };
            let guard = guard?;
            resource.visit().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            if task % 2 == 0 {
                drop(guard);
            } else {
                assert_eq!(guard.release().await?, Released::Freed);
            }
            Ok(1)
        }));
    }
    let mut visits = 0;
    for task in running {
        let visited: Result<u64> = task.await.expect("a task panicked");
        visits += visited?;
    }
    assert_eq!(resource.visits(), visits);
    world.expect_free(&name).await?;
    for locks in &clients {
        world.expect_quiet(locks).await?;
    }
    Ok(())
}

/// A connection with half-read replies would answer with those of the call before.
async fn client_answers_right_after_cancelled_calls(world: World) -> Result<()> {
    let locks = world.slow().await?;
    let (held, free) = (world.name(), world.name());
    let guard = world.client().await?.mutex(&held)?.lock().await?;
    for polls in 0..ENOUGH {
        let idle = world.timings.settle;
        let mutex = locks.mutex(&free)?;
        let taken = polled(mutex.try_lock(), polls, idle).await;
        let mut done = matches!(taken, Ended::Done(_));
        drop(taken);
        if world.has(Capability::Inspect) {
            let looked = polled(locks.inspect(&free), polls, idle).await;
            done &= matches!(looked, Ended::Done(_));
            let info = locks.inspect(&held).await?;
            assert_eq!(info.name.as_str(), held);
            let owners: Vec<_> = info.holders.iter().map(|h| h.owner.clone()).collect();
            assert_eq!(owners, [guard.owner_id()], "the answer to another question");
        }
        assert!(locks.mutex(&held)?.try_lock().await?.is_none());
        let own = world.name();
        let fresh = locks.mutex(&own)?.try_lock().await?;
        world.freed(fresh.expect("it is free")).await?;
        if done {
            break;
        }
    }
    world.freed(guard).await?;
    world.expect_free(&held).await?;
    world.expect_free(&free).await?;
    world.expect_quiet(&locks).await
}
