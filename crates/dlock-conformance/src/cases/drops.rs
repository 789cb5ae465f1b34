//! [C14](dlock_core::contract#c14): guards that are dropped, wherever that may be.

use std::time::{Duration, Instant};

use dlock_core::Result;

use crate::case::case_list;
use crate::run::ON_PURPOSE;
use crate::world::runtime;
use crate::{Ability, Need, World};

case_list! {
    C14 guard_dropped_in_a_task_frees;
    C14 guard_dropped_outside_of_a_runtime_frees;
    C14 guard_dropped_while_unwinding_frees;
    C14 guard_dropped_after_its_runtime_ended_frees_by_its_lease [Need::Deadline];
    C14 guard_dropped_with_its_runtime_frees_by_its_lease [Need::Deadline];
    C14 guard_and_client_dropped_together_free;
    C14 many_guards_dropped_at_once_free;
    C14 guard_dropped_while_the_store_hangs_does_not_block [Need::Able(Ability::Hang)];
}

/// Drops something, and fails if that blocks.
fn drop_quickly<T>(world: &World, value: T) {
    let started = Instant::now();
    drop(value);
    let took = started.elapsed();
    assert!(took <= world.timings.tolerance, "the drop took {took:?}");
}

async fn guard_dropped_in_a_task_frees(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    for _ in 0..3 {
        let guard = locks.mutex(&name)?.lock().await?;
        drop_quickly(&world, guard);
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn guard_dropped_outside_of_a_runtime_frees(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    for _ in 0..2 {
        let guard = locks.mutex(&name)?.lock().await?;
        let inner = world.clone();
        world.outside(move || drop_quickly(&inner, guard)).await;
        // The runtime that took it lives.
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn guard_dropped_while_unwinding_frees(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let task = tokio::spawn(async move {
        let _guard = guard;
        panic!("{ON_PURPOSE}");
    });
    assert!(task.await.expect_err("it panics").is_panic());
    world.expect_free(&name).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let caught = world
        .outside(move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _guard = guard;
                panic!("{ON_PURPOSE}");
            }))
            .is_err()
        })
        .await;
    assert!(caught);
    world.expect_free(&name).await
}

async fn guard_dropped_after_its_runtime_ended_frees_by_its_lease(world: World) -> Result<()> {
    let name = world.name();
    let (inner, of) = (world.clone(), name.clone());
    world
        .outside(move || {
            let runtime = runtime();
            let guard = runtime.block_on(async {
                let locks = inner.client_with(inner.short()).await?;
                locks.mutex(&of)?.lock().await
            })?;
            drop(runtime);
            drop_quickly(&inner, guard);
            Ok::<(), dlock_core::Error>(())
        })
        .await?;
    let limit = world.lease() + Duration::from_secs(1);
    world.expect_free_within(limit, &name).await
}

async fn guard_dropped_with_its_runtime_frees_by_its_lease(world: World) -> Result<()> {
    let name = world.name();
    let (inner, of) = (world.clone(), name.clone());
    world
        .outside(move || {
            let runtime = runtime();
            runtime.block_on(async {
                let locks = inner.client_with(inner.short()).await?;
                let guard = locks.mutex(&of)?.lock().await?;
                // Its task is dropped by the runtime, with the guard in it.
                tokio::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
                tokio::task::yield_now().await;
                Ok::<(), dlock_core::Error>(())
            })?;
            drop_quickly(&inner, runtime);
            Ok::<(), dlock_core::Error>(())
        })
        .await?;
    let limit = world.lease() + Duration::from_secs(1);
    world.expect_free_within(limit, &name).await
}

async fn guard_and_client_dropped_together_free(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let mutex = locks.mutex(&name)?;
    let guard = mutex.lock().await?;
    drop(mutex);
    drop(locks);
    world.expect_held(&name, &guard).await?;
    drop_quickly(&world, guard);
    world.expect_free(&name).await
}

async fn many_guards_dropped_at_once_free(world: World) -> Result<()> {
    let locks = world.client().await?;
    let names: Vec<String> = (0..50).map(|_| world.name()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(locks.mutex(name)?.lock().await?);
    }
    drop_quickly(&world, guards);
    world.expect_quiet(&locks).await?;
    for name in &names {
        world.expect_free(name).await?;
    }
    let stats = locks.stats();
    assert_eq!((stats.released, stats.losses.total()), (50, 0));
    Ok(())
}

async fn guard_dropped_while_the_store_hangs_does_not_block(world: World) -> Result<()> {
    let name = world.name();
    let settings = world.long().trip_timeout(Duration::from_millis(500));
    let (locks, fault) = world.faulty(settings).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.hang().await;
    drop_quickly(&world, guard);
    tokio::time::sleep(Duration::from_millis(100)).await;
    fault.heal().await;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}
