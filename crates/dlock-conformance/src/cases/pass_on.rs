//! [C21](dlock_core::contract#c21): holds that the tasks of one client pass on to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::{Capability, Guard, Locks, Mutex, Released, Result, Settings};
use tokio::task::JoinHandle;

use crate::case::case_list;
use crate::{Ability, Need, World};

const PASS_ON: Need = Need::Can(Capability::PassOn);

case_list! {
    C21 hold_is_passed_on_without_the_store [PASS_ON, Need::Able(Ability::Cut)];
    C21 hold_that_is_passed_on_keeps_others_out [PASS_ON];
    C21 all_tokens_of_a_grant_are_below_the_next_one [PASS_ON, Need::Can(Capability::Fencing)];
    C21 others_wait_for_no_more_than_the_turns [PASS_ON, Need::Can(Capability::Fair)];
    C21 hold_that_is_passed_on_outlives_its_lease [PASS_ON, Need::Deadline];
    C21 cancelled_heirs_leave_nothing [PASS_ON];
    C21 loss_after_passing_on_is_told [PASS_ON, Need::EndHold, Need::Deadline];
    C21 readers_who_join_keep_writers_out_to_the_last [Need::Can(Capability::Shared)];
}

/// Time enough for as many turns as there are.
fn slowly(settings: Settings) -> Settings {
    settings.local_turns(u32::MAX).local_time(Duration::MAX)
}

/// A task that waits for the lock, in line when this returns.
async fn waits(world: &World, locks: &Locks, mutex: &Mutex) -> JoinHandle<Result<Guard>> {
    let mutex = mutex.clone();
    let before = locks.stats().waiting;
    let task = tokio::spawn(async move { mutex.lock().await });
    in_line(world, locks, before + 1).await;
    task
}

/// Waits until so many tasks of a client stand in line.
async fn in_line(world: &World, locks: &Locks, tasks: u64) {
    let settle = world.timings.settle;
    let counted = world.until(settle, "tasks wait", async || {
        Ok(locks.stats().waiting >= tasks)
    });
    counted.await.expect("statistics cannot fail");
    // It counts a moment before it stands there.
    tokio::time::sleep(Duration::from_millis(2)).await;
}

async fn hold_is_passed_on_without_the_store(world: World) -> Result<()> {
    let name = world.name();
    let (locks, fault) = world.faulty(slowly(world.long())).await?;
    let mutex = locks.mutex(&name)?;
    let first = mutex.lock().await?;
    let next = waits(&world, &locks, &mutex).await;
    fault.cut().await;
    assert_eq!(first.release().await?, Released::Freed);
    let next = world.soon("the next task", next).await.expect("no panic")?;
    assert!(next.is_held());
    fault.heal().await;
    drop(next);
    world
        .expect_free_within(world.lease() + world.timings.settle, &name)
        .await
}

async fn hold_that_is_passed_on_keeps_others_out(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(slowly(world.long())).await?;
    let other = world.client().await?.mutex(&name)?;
    let mutex = locks.mutex(&name)?;
    let mut guard = mutex.lock().await?;
    for _ in 0..10 {
        let next = waits(&world, &locks, &mutex).await;
        world.freed(guard).await?;
        guard = world.soon("the next task", next).await.expect("no panic")?;
        assert!(other.try_lock().await?.is_none(), "another client got in");
    }
    assert_eq!(locks.stats().passed_on, 10);
    world.freed(guard).await?;
    world.expect_free(&name).await
}

/// The store has set the tokens of all turns aside.
async fn all_tokens_of_a_grant_are_below_the_next_one(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(slowly(world.long())).await?;
    let mutex = locks.mutex(&name)?;
    let other = world.client().await?.mutex(&name)?;
    let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |guard: &Guard, tokens: &std::sync::Mutex<Vec<u64>>| {
        let token = guard.token().expect("the store promises tokens").get();
        tokens.lock().expect("no panic").push(token);
    };
    for _ in 0..2 {
        let first = mutex.lock().await?;
        note(&first, &tokens);
        // One more than there are turns: the last is asked of the store.
        let turns = world.capabilities.turns.min(200);
        let tasks: Vec<_> = (0..turns)
            .map(|_| {
                let (mutex, tokens) = (mutex.clone(), tokens.clone());
                tokio::spawn(async move {
                    let guard = mutex.lock().await?;
                    note(&guard, &tokens);
                    guard.release().await
                })
            })
            .collect();
        in_line(&world, &locks, u64::from(turns)).await;
        let _ = first.release().await?;
        for task in tasks {
            let _ = world.soon("every task", task).await.expect("no panic")?;
        }
        let theirs = other.lock().await?;
        note(&theirs, &tokens);
        world.freed(theirs).await?;
    }
    let tokens = tokens.lock().expect("no panic").clone();
    let increase = tokens.is_sorted_by(|one, next| one < next);
    assert!(increase, "tokens in the order of their holders: {tokens:?}");
    assert!(locks.stats().passed_on > 0);
    Ok(())
}

async fn others_wait_for_no_more_than_the_turns(world: World) -> Result<()> {
    const TURNS: u32 = 4;
    let name = world.name();
    let settings = slowly(world.long()).local_turns(TURNS);
    let locks = world.client_with(settings).await?;
    let mutex = locks.mutex(&name)?;
    let first = mutex.lock().await?;
    let (other, turns) = (
        world.client().await?.mutex(&name)?,
        Arc::new(AtomicU32::new(1)),
    );
    let theirs = tokio::spawn({
        let turns = turns.clone();
        async move {
            let guard = other.lock().await?;
            let before = turns.load(Ordering::SeqCst);
            let _ = guard.release().await?;
            Ok::<_, dlock_core::Error>(before)
        }
    });
    world.expect_waiting(&name, 1).await?;
    let ours: Vec<_> = (0..20)
        .map(|_| {
            let (mutex, turns) = (mutex.clone(), turns.clone());
            tokio::spawn(async move {
                let guard = mutex.lock().await?;
                turns.fetch_add(1, Ordering::SeqCst);
                guard.release().await
            })
        })
        .collect();
    in_line(&world, &locks, 20).await;
    world.freed(first).await?;
    let before = world
        .soon("another client", theirs)
        .await
        .expect("no panic")?;
    assert!(before <= TURNS, "{before} turns before another client's");
    for task in ours {
        assert_eq!(task.await.expect("no panic")?, Released::Freed);
    }
    world.expect_free(&name).await
}

/// It is renewed whoever is in it.
async fn hold_that_is_passed_on_outlives_its_lease(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(slowly(world.short())).await?;
    let mutex = locks.mutex(&name)?;
    let mut guard = mutex.lock().await?;
    for _ in 0..20 {
        let next = waits(&world, &locks, &mutex).await;
        tokio::time::sleep(world.lease() / 8).await;
        assert_eq!(guard.release().await?, Released::Freed);
        guard = world.soon("the next task", next).await.expect("no panic")?;
        assert!(guard.is_held());
    }
    assert_eq!(locks.stats().losses.total(), 0);
    world.freed(guard).await
}

async fn cancelled_heirs_leave_nothing(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(slowly(world.long())).await?;
    let mutex = locks.mutex(&name)?;
    for _ in 0..10 {
        let first = mutex.lock().await?;
        let mut heirs = Vec::new();
        for _ in 0..3 {
            heirs.push(waits(&world, &locks, &mutex).await);
        }
        drop(first);
        for heir in &heirs {
            heir.abort();
        }
        for heir in heirs {
            // It may have got the lock before it was cut off.
            drop(heir.await);
        }
        world.expect_free(&name).await?;
    }
    world.expect_quiet(&locks).await
}

async fn loss_after_passing_on_is_told(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(slowly(world.short())).await?;
    let mutex = locks.mutex(&name)?;
    let first = mutex.lock().await?;
    let signal = first.loss_signal();
    let next = waits(&world, &locks, &mutex).await;
    world.freed(first).await?;
    let next = world.soon("the next task", next).await.expect("no panic")?;
    assert_eq!(world.soon("the release", signal.wait()).await, None);
    world.end_hold(&name).await?;
    let limit = world.lease() + world.timings.settle;
    world.within(limit, "the loss", next.lost()).await;
    assert!(!next.is_held());
    assert_eq!(next.release().await?, Released::AlreadyLost);
    Ok(())
}

async fn readers_who_join_keep_writers_out_to_the_last(world: World) -> Result<()> {
    let name = world.name();
    let joined = world.long().readers_join(true).local_time(Duration::MAX);
    let locks = world.client_with(joined).await?;
    let lock = locks.rw_lock(&name)?;
    let other = world.client().await?.rw_lock(&name)?;
    let first = lock.read().await?;
    let second = lock.read().await?;
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.passed_on), (1, 1));
    world.freed(first).await?;
    assert!(
        other.try_write().await?.is_none(),
        "a writer got in beside a reader"
    );
    assert!(second.is_held());
    world.freed(second).await?;
    world.expect_free(&name).await
}
