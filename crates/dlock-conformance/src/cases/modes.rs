//! [C19](dlock_core::contract#c19): readers and writers, and permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use dlock_core::{Capability, ErrorKind, Mode, Released, Result};
use tokio::sync::Barrier;

use crate::case::case_list;
use crate::{Need, World};

const SHARED: Need = Need::Can(Capability::Shared);
const PERMITS: Need = Need::Can(Capability::Permits);
const FAIR: Need = Need::Can(Capability::Fair);

case_list! {
    C19 readers_share [SHARED];
    C19 writers_exclude_readers_and_writers [SHARED];
    C19 mutex_and_writer_of_one_name_exclude_each_other [SHARED];
    C19 one_name_is_one_lock_whatever_its_mode [PERMITS];
    C19 readers_and_writers_never_overlap [SHARED];
    C19 waiting_writer_keeps_new_readers_out [SHARED, FAIR];
    C19 waiting_writer_is_not_starved_by_readers [SHARED, FAIR];
    C19 waiting_readers_enter_together [SHARED];
    C19 downgrade_lets_readers_in_and_no_writer [Need::Can(Capability::Downgrade)];
    C19 all_permits_can_be_held_and_no_more [PERMITS];
    C19 permits_never_exceed_the_limit_under_load [PERMITS];
    C19 first_use_of_a_name_in_any_mode_makes_no_second_holder [SHARED, PERMITS];
    C19 permit_that_comes_back_goes_to_a_waiter [PERMITS];
    C19 another_limit_is_a_conflict [PERMITS];
}

async fn readers_share(world: World) -> Result<()> {
    let name = world.name();
    let mut guards = Vec::new();
    for locks in world.clients(3).await? {
        let lock = locks.rw_lock(&name)?;
        guards.push(lock.try_read().await?.expect("readers share"));
        guards.push(world.soon("readers share", lock.read()).await?);
    }
    for guard in guards {
        assert!(guard.is_held());
        assert_eq!(guard.mode(), Mode::Shared);
        world.expect_held(&name, &guard).await?;
        world.freed(guard).await?;
    }
    world.expect_free(&name).await
}

async fn writers_exclude_readers_and_writers(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let (a, b) = (a.rw_lock(&name)?, b.rw_lock(&name)?);
    let limit = Duration::from_millis(50);
    let write = a.write().await?;
    for lock in [&a, &b] {
        assert!(lock.try_read().await?.is_none());
        assert!(lock.try_write().await?.is_none());
        world.expect_in_vain(lock.read_within(limit).await)?;
        world.expect_in_vain(lock.write_within(limit).await)?;
    }
    world.freed(write).await?;
    let read = b.try_read().await?.expect("it is free");
    assert!(a.try_write().await?.is_none());
    world.expect_in_vain(b.write_within(limit).await)?;
    world.freed(read).await?;
    world.expect_free(&name).await
}

async fn mutex_and_writer_of_one_name_exclude_each_other(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let guard = a.mutex(&name)?.lock().await?;
    assert!(b.rw_lock(&name)?.try_read().await?.is_none());
    assert!(b.rw_lock(&name)?.try_write().await?.is_none());
    world.freed(guard).await?;
    let read = b.rw_lock(&name)?.read().await?;
    assert!(a.mutex(&name)?.try_lock().await?.is_none());
    let waits = a.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    world.freed(read).await?;
    let guard = world.soon("the mutex", waits).await.expect("no panic")?;
    world.freed(guard).await
}

async fn one_name_is_one_lock_whatever_its_mode(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let semaphore = b.semaphore(&name, 2)?;
    let guard = a.mutex(&name)?.lock().await?;
    assert!(semaphore.try_acquire().await?.is_none());
    world.freed(guard).await?;
    let permit = semaphore.acquire().await?;
    assert!(a.mutex(&name)?.try_lock().await?.is_none());
    if world.has(Capability::Shared) {
        assert!(a.rw_lock(&name)?.try_read().await?.is_none());
    }
    world.freed(permit).await?;
    if world.has(Capability::Shared) {
        let read = a.rw_lock(&name)?.read().await?;
        assert!(semaphore.try_acquire().await?.is_none());
        world.freed(read).await?;
    }
    world.expect_free(&name).await
}

/// Positive: readers; -1: a writer.
#[derive(Default)]
struct Room(AtomicI64);

impl Room {
    fn enter(&self, reads: bool) {
        if reads {
            let before = self.0.fetch_add(1, Ordering::SeqCst);
            assert!(before >= 0, "a reader beside a writer");
        } else {
            let before = self.0.swap(-1, Ordering::SeqCst);
            assert_eq!(before, 0, "a writer beside others");
        }
    }

    fn leave(&self, reads: bool) {
        if reads {
            self.0.fetch_sub(1, Ordering::SeqCst);
        } else {
            self.0.store(0, Ordering::SeqCst);
        }
    }
}

async fn readers_and_writers_never_overlap(world: World) -> Result<()> {
    let name = world.name();
    let room = Arc::<Room>::default();
    let mut running = Vec::new();
    for locks in world.clients(3).await? {
        for task in 0..4 {
            let (lock, room) = (locks.rw_lock(&name)?, room.clone());
            running.push(tokio::spawn(async move {
                for turn in 0..5 {
                    let reads = (task + turn) % 3 != 0;
                    let guard = if reads {
                        lock.read().await?
                    } else {
                        lock.write().await?
                    };
                    room.enter(reads);
                    tokio::task::yield_now().await;
                    room.leave(reads);
                    assert_eq!(guard.release().await?, Released::Freed);
                }
                Ok(())
            }));
        }
    }
    for task in running {
        let outcome: Result<()> = task.await.expect("a task panicked");
        outcome?;
    }
    world.expect_free(&name).await
}

async fn waiting_writer_keeps_new_readers_out(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let read = a.rw_lock(&name)?.read().await?;
    let writer = b.rw_lock(&name)?;
    let writer = tokio::spawn(async move { writer.write().await });
    world.expect_waiting(&name, 1).await?;
    let late = world.client().await?.rw_lock(&name)?;
    assert!(
        late.try_read().await?.is_none(),
        "a reader overtook a writer"
    );
    world.expect_in_vain(late.read_within(Duration::from_millis(100)).await)?;
    world.freed(read).await?;
    let write = world.soon("the writer", writer).await.expect("no panic")?;
    world.freed(write).await?;
    world.expect_free(&name).await
}

async fn waiting_writer_is_not_starved_by_readers(world: World) -> Result<()> {
    let name = world.name();
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for locks in world.clients(4).await? {
        let (lock, stop) = (locks.rw_lock(&name)?, stop.clone());
        readers.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                // The next one before the last one goes: there is always a reader.
                let first = lock.read().await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
                let _ = first.release().await?;
            }
            Ok(())
        }));
        // Apart, so that they overlap.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let writer = world.client().await?.rw_lock(&name)?;
    let limit = world.timings.settle + world.timings.tolerance;
    let write = writer.write_within(limit).await?;
    stop.store(true, Ordering::Relaxed);
    let write = write.expect("the writer starved");
    world.freed(write).await?;
    for reader in readers {
        let outcome: Result<()> = world.soon("the reader", reader).await.expect("no panic");
        outcome?;
    }
    world.expect_free(&name).await
}

async fn waiting_readers_enter_together(world: World) -> Result<()> {
    let name = world.name();
    let write = world.client().await?.rw_lock(&name)?.write().await?;
    let mut waiting = Vec::new();
    for (index, locks) in world.clients(3).await?.into_iter().enumerate() {
        let lock = locks.rw_lock(&name)?;
        waiting.push(tokio::spawn(async move { lock.read().await }));
        world.expect_waiting(&name, index + 1).await?;
    }
    world.freed(write).await?;
    let mut guards = Vec::new();
    for waits in waiting {
        // None of them is released before all are in.
        guards.push(world.soon("a reader", waits).await.expect("no panic")?);
    }
    for guard in guards {
        world.freed(guard).await?;
    }
    world.expect_free(&name).await
}

async fn downgrade_lets_readers_in_and_no_writer(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let (a, b) = (a.rw_lock(&name)?, b.rw_lock(&name)?);
    let guard = a.write().await?;
    let token = guard.token();
    guard.downgrade().await?;
    guard.downgrade().await?;
    assert_eq!((guard.mode(), guard.token()), (Mode::Shared, token));
    let read = b.try_read().await?.expect("readers share");
    assert!(b.try_write().await?.is_none());
    world.freed(read).await?;
    world.freed(guard).await?;
    // With a writer in the queue: it must not slip in between.
    let guard = a.write().await?;
    let writer = tokio::spawn({
        let b = b.clone();
        async move { b.write().await }
    });
    world.expect_waiting(&name, 1).await?;
    guard.downgrade().await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writer.is_finished(), "a writer got in beside a reader");
    assert!(guard.is_held());
    world.freed(guard).await?;
    let write = world.soon("the writer", writer).await.expect("no panic")?;
    world.freed(write).await?;
    world.expect_free(&name).await
}

async fn all_permits_can_be_held_and_no_more(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let (a, b) = (a.semaphore(&name, 3)?, b.semaphore(&name, 3)?);
    let first = a.try_acquire().await?.expect("a permit");
    let second = b.acquire().await?;
    let third = a.acquire().await?;
    for semaphore in [&a, &b] {
        assert!(semaphore.try_acquire().await?.is_none());
        let waited = semaphore.acquire_within(Duration::from_millis(50)).await;
        world.expect_in_vain(waited)?;
    }
    world.freed(second).await?;
    let fourth = b.try_acquire().await?.expect("a permit came back");
    assert!(a.try_acquire().await?.is_none());
    for permit in [first, third, fourth] {
        world.freed(permit).await?;
    }
    world.expect_free(&name).await
}

/// A store that makes a record at the first use of a name has nothing to lock before it is made.
async fn first_use_of_a_name_in_any_mode_makes_no_second_holder(world: World) -> Result<()> {
    let clients = world.clients(6).await?;
    for round in 0..40 {
        let name = world.name();
        let barrier = Arc::new(Barrier::new(clients.len()));
        let tries = clients.iter().enumerate().map(|(number, locks)| {
            let (locks, name, barrier) = (locks.clone(), name.clone(), barrier.clone());
            tokio::spawn(async move {
                let (lock, semaphore) = (locks.rw_lock(&name)?, locks.semaphore(&name, 1)?);
                barrier.wait().await;
                match (round % 2, number % 2) {
                    (0, _) => semaphore.try_acquire().await,
                    (_, 0) => lock.try_read().await,
                    _ => lock.try_write().await,
                }
            })
        });
        let mut held = Vec::new();
        for attempt in tries.collect::<Vec<_>>() {
            held.extend(attempt.await.expect("a task panicked")?);
        }
        let readers = held.iter().filter(|guard| guard.mode() == Mode::Shared);
        assert!(
            held.len() <= 1 || readers.count() == held.len(),
            "{} hold at once, of whom each is alone or a reader",
            held.len()
        );
        for guard in held {
            world.freed(guard).await?;
        }
    }
    Ok(())
}

async fn permits_never_exceed_the_limit_under_load(world: World) -> Result<()> {
    const LIMIT: u32 = 3;
    let name = world.name();
    let inside = Arc::new(AtomicI64::new(0));
    let mut running = Vec::new();
    for locks in world.clients(4).await? {
        for _ in 0..4 {
            let (semaphore, inside) = (locks.semaphore(&name, LIMIT)?, inside.clone());
            running.push(tokio::spawn(async move {
                for _ in 0..3 {
                    let permit = semaphore.acquire().await?;
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= i64::from(LIMIT), "{now} permits of {LIMIT}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(permit.release().await?, Released::Freed);
                }
                Ok(())
            }));
        }
    }
    for task in running {
        let outcome: Result<()> = task.await.expect("a task panicked");
        outcome?;
    }
    world.expect_free(&name).await
}

async fn permit_that_comes_back_goes_to_a_waiter(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let first = a.semaphore(&name, 2)?.acquire().await?;
    let second = a.semaphore(&name, 2)?.acquire().await?;
    let waits = b.semaphore(&name, 2)?;
    let waits = tokio::spawn(async move { waits.acquire().await });
    world.expect_waiting(&name, 1).await?;
    drop(second);
    let third = world.soon("the waiter", waits).await.expect("no panic")?;
    world.freed(first).await?;
    world.freed(third).await?;
    world.expect_free(&name).await
}

async fn another_limit_is_a_conflict(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let permit = a.semaphore(&name, 2)?.acquire().await?;
    let other = b.semaphore(&name, 3)?;
    let error = other.try_acquire().await.expect_err("another limit");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = other.acquire().await.expect_err("another limit");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    world.freed(permit).await?;
    // Nobody uses it: the limit can be chosen anew.
    let permit = world.soon("a permit", other.acquire()).await?;
    world.freed(permit).await?;
    world.expect_free(&name).await
}
