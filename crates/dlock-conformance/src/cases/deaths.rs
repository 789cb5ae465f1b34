//! [C12](dlock_core::contract#c12): holders that die.

use std::time::Duration;

use dlock_core::{Capability, Result};

use crate::case::case_list;
use crate::process::JobMode;
use crate::worker::Worker;
use crate::world::runtime;
use crate::{Need, World};

case_list! {
    C12 holder_killed_frees_lock_within_lease [Need::Worker];
    C12 holder_that_exits_without_a_word_frees_lock_within_lease [Need::Worker];
    C12 holder_whose_runtime_ends_frees_lock_within_lease [Need::Deadline];
    C12 reader_killed_lets_a_writer_in_within_lease [Need::Worker, Need::Can(Capability::Shared)];
    C12 permit_of_a_killed_process_comes_back_within_lease [Need::Worker, Need::Can(Capability::Permits)];
    C12 killed_reader_does_not_end_the_hold_of_another [Need::Worker, Need::Can(Capability::Shared)];
}

fn bound(world: &World) -> Duration {
    world.lease() + Duration::from_secs(1)
}

async fn holding(world: &World, name: &str, mode: JobMode) -> Worker {
    let mut holder = world.holder(name, mode);
    world.says(&mut holder, "asking").await;
    world.says(&mut holder, "held").await;
    holder
}

async fn holder_killed_frees_lock_within_lease(world: World) -> Result<()> {
    let name = world.name();
    let holder = holding(&world, &name, JobMode::Exclusive).await;
    let mutex = world.client().await?.mutex(&name)?;
    let waits = tokio::spawn(async move { mutex.lock().await });
    world.expect_waiting(&name, 1).await?;
    holder.kill();
    let guard = world.within(bound(&world), "the waiter gets it", waits);
    world.freed(guard.await.expect("no panic")?).await
}

async fn holder_that_exits_without_a_word_frees_lock_within_lease(world: World) -> Result<()> {
    let name = world.name();
    let mut holder = holding(&world, &name, JobMode::Exclusive).await;
    world.expect_taken(&name).await?;
    holder.tell("exit");
    let ended = world.soon("the process ends", holder.line()).await;
    assert_eq!(ended, None, "the helper said something");
    world.expect_free_within(bound(&world), &name).await
}

async fn holder_whose_runtime_ends_frees_lock_within_lease(world: World) -> Result<()> {
    let name = world.name();
    let (inner, of) = (world.clone(), name.clone());
    let guard = world
        .outside(move || {
            let runtime = runtime();
            let guard = runtime.block_on(async {
                let locks = inner.mortal_client(inner.short()).await?;
                locks.mutex(&of)?.lock().await
            });
            drop(runtime);
            guard
        })
        .await?;
    let mutex = world.probe().await?.mutex(&name)?;
    let next = world
        .within(bound(&world), "the next gets it", mutex.lock())
        .await?;
    assert!(!guard.is_held(), "two holders believe to hold");
    world.freed(next).await
}

async fn reader_killed_lets_a_writer_in_within_lease(world: World) -> Result<()> {
    let name = world.name();
    let holder = holding(&world, &name, JobMode::Shared).await;
    let lock = world.client().await?.rw_lock(&name)?;
    assert!(lock.try_write().await?.is_none());
    holder.kill();
    let write = world.within(bound(&world), "the writer", lock.write());
    world.freed(write.await?).await
}

async fn permit_of_a_killed_process_comes_back_within_lease(world: World) -> Result<()> {
    let name = world.name();
    let semaphore = world.client().await?.semaphore(&name, 2)?;
    let mine = semaphore.acquire().await?;
    let holder = holding(&world, &name, JobMode::Permit(2)).await;
    assert!(semaphore.try_acquire().await?.is_none());
    holder.kill();
    let other = world.within(bound(&world), "the permit", semaphore.acquire());
    world.freed(other.await?).await?;
    world.freed(mine).await
}

async fn killed_reader_does_not_end_the_hold_of_another(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let read = locks.rw_lock(&name)?.read().await?;
    let holder = holding(&world, &name, JobMode::Shared).await;
    holder.kill();
    let writer = world.client().await?.rw_lock(&name)?;
    let waited = writer.write_within(bound(&world)).await?;
    assert!(waited.is_none(), "a writer got in beside a reader");
    assert!(read.is_held());
    world.freed(read).await?;
    world.expect_free(&name).await
}
