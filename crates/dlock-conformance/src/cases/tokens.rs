//! [C11](dlock_core::contract#c11): fencing tokens.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::backend::Outcome;
use dlock_core::{Capability, Guard, Mode, Released, Result};

use crate::case::case_list;
use crate::process::JobMode;
use crate::{Need, World};

const FENCING: Need = Need::Can(Capability::Fencing);

case_list! {
    C11 tokens_increase_from_holder_to_holder [FENCING];
    C11 tokens_increase_under_contention [FENCING];
    C11 tokens_increase_with_many_clients_and_hundreds_of_holds [FENCING]
        "numbers are handed out in blocks to each client or connection (the cache of a sequence), or before the lock is taken";
    C11 tokens_increase_in_quick_succession [FENCING]
        "the token is a time, and two holds fell into one tick of it";
    C11 token_that_is_shown_is_the_holders [FENCING, Need::Can(Capability::Inspect)]
        "`inspect` shows the counter as it is now, not the number that the hold was given";
    C11 tokens_increase_after_expiry [FENCING, Need::EndHold];
    C11 tokens_increase_after_a_break [FENCING, Need::Can(Capability::Break)];
    C11 tokens_increase_after_a_client_restart [FENCING];
    C11 tokens_increase_after_a_crash [FENCING, Need::Worker];
    C11 tokens_increase_for_readers [FENCING, Need::Can(Capability::Shared)];
    C11 tokens_increase_for_permits [FENCING, Need::Can(Capability::Permits)];
    C11 tokens_increase_over_failed_and_cancelled_attempts [FENCING];
}

/// Remembers the highest token, and refuses lower ones, as a resource does.
#[derive(Default)]
struct Fence(u64);

impl Fence {
    fn pass(&mut self, guard: &Guard) {
        let token = guard.token().expect("the store promises tokens").get();
        assert!(token > self.0, "token {token} after {}", self.0);
        self.0 = token;
    }
}

async fn tokens_increase_from_holder_to_holder(world: World) -> Result<()> {
    let name = world.name();
    let clients = world.clients(3).await?;
    let mut fence = Fence::default();
    for turn in 0..9 {
        let mutex = clients[turn % 3].mutex(&name)?;
        let guard = if turn % 2 == 0 {
            mutex.lock().await?
        } else {
            mutex.try_lock().await?.expect("it is free")
        };
        fence.pass(&guard);
        world.freed(guard).await?;
    }
    Ok(())
}

async fn tokens_increase_under_contention(world: World) -> Result<()> {
    let name = world.name();
    let fence = Arc::<Mutex<Fence>>::default();
    let mut running = Vec::new();
    for locks in world.clients(4).await? {
        for _ in 0..2 {
            let (mutex, fence) = (locks.mutex(&name)?, fence.clone());
            running.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = mutex.lock().await?;
                    fence.lock().expect("no panic").pass(&guard);
                    let _ = guard.release().await?;
                }
                Ok(())
            }));
        }
    }
    for task in running {
        task.await.expect("a task panicked")?;
    }
    Ok(())
}

async fn tokens_increase_with_many_clients_and_hundreds_of_holds(world: World) -> Result<()> {
    const HOLDS: usize = 300;
    // A store that is asked again and again takes its time: then there are fewer.
    const LONGEST: Duration = Duration::from_secs(15);
    let name = world.name();
    let fence = Arc::<Mutex<Fence>>::default();
    let holds = Arc::new(AtomicUsize::new(0));
    let clients = world.clients(8).await?;
    // In turn first: where many want a lock at once, one of them may get it again and again.
    for locks in [&clients; 3].into_iter().flatten() {
        let guard = locks.mutex(&name)?.lock().await?;
        fence.lock().expect("no panic").pass(&guard);
        let _ = guard.release().await?;
    }
    let end = Instant::now() + LONGEST;
    let mut running = Vec::new();
    for (index, locks) in clients.into_iter().enumerate() {
        let (mutex, fence, holds) = (locks.mutex(&name)?, fence.clone(), holds.clone());
        running.push(tokio::spawn(async move {
            while holds.load(Ordering::SeqCst) < HOLDS && Instant::now() < end {
                // Some stand in the queue, some come by and try.
                let guard = if index % 4 == 3 {
                    let guard = mutex.try_lock().await?;
                    tokio::task::yield_now().await;
                    guard
                } else {
                    Some(mutex.lock().await?)
                };
                let Some(guard) = guard else { continue };
                holds.fetch_add(1, Ordering::SeqCst);
                fence.lock().expect("no panic").pass(&guard);
                let _ = guard.release().await?;
            }
            Ok(())
        }));
    }
    for task in running {
        task.await.expect("a task panicked")?;
    }
    Ok(())
}

async fn tokens_increase_in_quick_succession(world: World) -> Result<()> {
    let name = world.name();
    let backends = [world.backend().await?, world.backend().await?];
    let mut highest = 0;
    for turn in 0..100 {
        let backend = &backends[turn % 2];
        let request = world.request(&name, Mode::Exclusive);
        let Outcome::Held(lease) = backend.try_acquire(&request).await? else {
            panic!("a lock that was released is busy");
        };
        let token = lease.token().expect("the store promises tokens").get();
        assert!(
            token > highest,
            "in turn {turn} expected a token above {highest}; came: {token}"
        );
        highest = token;
        assert_eq!(backend.release(&lease).await?, Released::Freed);
    }
    Ok(())
}

async fn token_that_is_shown_is_the_holders(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    for _ in 0..2 {
        let guard = locks.mutex(&name)?.lock().await?;
        let waits = world.client().await?.mutex(&name)?;
        let waits = tokio::spawn(async move { waits.lock().await });
        world.expect_waiting(&name, 1).await?;
        let info = world.probe().await?.inspect(&name).await?;
        let shown: Vec<_> = info.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(shown, [guard.token()], "the tokens that `inspect` shows");
        world.freed(guard).await?;
        let next = world.soon("the waiter", waits).await.expect("no panic")?;
        world.freed(next).await?;
    }
    Ok(())
}

async fn tokens_increase_after_expiry(world: World) -> Result<()> {
    let name = world.name();
    let mut fence = Fence::default();
    for _ in 0..2 {
        let guard = world
            .client_with(world.short().renewal(false))
            .await?
            .mutex(&name)?
            .lock()
            .await?;
        fence.pass(&guard);
        // As if its holder had died.
        std::mem::forget(guard);
        world.end_hold(&name).await?;
    }
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    fence.pass(&guard);
    world.freed(guard).await
}

async fn tokens_increase_after_a_break(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let mut fence = Fence::default();
    let mut guards = Vec::new();
    for _ in 0..3 {
        let guard = world.client().await?.mutex(&name)?.lock().await?;
        fence.pass(&guard);
        guards.push(guard);
        assert!(locks.break_lock(&name).await?);
    }
    let guard = locks.mutex(&name)?.lock().await?;
    fence.pass(&guard);
    world.freed(guard).await
}

async fn tokens_increase_after_a_client_restart(world: World) -> Result<()> {
    let name = world.name();
    let mut fence = Fence::default();
    for _ in 0..3 {
        let locks = world.client().await?;
        let guard = locks.mutex(&name)?.lock().await?;
        fence.pass(&guard);
        world.freed(guard).await?;
        // Now nobody uses the name, and the store may forget it.
        locks.close().await?;
    }
    Ok(())
}

async fn tokens_increase_after_a_crash(world: World) -> Result<()> {
    let name = world.name();
    let mut fence = Fence::default();
    let locks = world.client().await?;
    let mutex = locks.mutex(&name)?;
    let guard = mutex.lock().await?;
    fence.pass(&guard);
    let mut holder = world.holder(&name, JobMode::Exclusive);
    world.says(&mut holder, "asking").await;
    world.freed(guard).await?;
    world.says(&mut holder, "held").await;
    if world.has(Capability::Inspect) {
        let info = locks.inspect(&name).await?;
        let token = info.holders[0].token.expect("a token").get();
        assert!(token > fence.0, "token {token} after {}", fence.0);
        fence.0 = token;
    }
    holder.kill();
    let limit = world.lease() + std::time::Duration::from_secs(1);
    let guard = world.within(limit, "the lock", mutex.lock()).await?;
    fence.pass(&guard);
    world.freed(guard).await
}

async fn tokens_increase_for_readers(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let (a, b) = (a.rw_lock(&name)?, b.rw_lock(&name)?);
    let mut fence = Fence::default();
    let write = a.write().await?;
    fence.pass(&write);
    world.freed(write).await?;
    let first = a.read().await?;
    fence.pass(&first);
    let second = b.try_read().await?.expect("readers share");
    fence.pass(&second);
    world.freed(first).await?;
    let third = a.read().await?;
    fence.pass(&third);
    world.freed(second).await?;
    world.freed(third).await?;
    let write = b.write().await?;
    fence.pass(&write);
    world.freed(write).await
}

async fn tokens_increase_for_permits(world: World) -> Result<()> {
    let name = world.name();
    let semaphore = world.client().await?.semaphore(&name, 3)?;
    let mut fence = Fence::default();
    let mut held = std::collections::VecDeque::new();
    for turn in 0..9 {
        if turn >= 3 {
            let oldest: Guard = held.pop_front().expect("three are held");
            world.freed(oldest).await?;
        }
        let permit = semaphore.acquire().await?;
        fence.pass(&permit);
        held.push_back(permit);
    }
    Ok(())
}

async fn tokens_increase_over_failed_and_cancelled_attempts(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let mut fence = Fence::default();
    for _ in 0..3 {
        let guard = a.mutex(&name)?.lock().await?;
        fence.pass(&guard);
        assert!(b.mutex(&name)?.try_lock().await?.is_none());
        let waits = b.mutex(&name)?;
        let waits = tokio::spawn(async move { waits.lock().await });
        world.expect_waiting(&name, 1).await?;
        waits.abort();
        world.freed(guard).await?;
        // A task that was running when it was aborted may have got the lock: its guard goes with its result.
        drop(waits.await);
        let guard = b.mutex(&name)?.lock().await?;
        fence.pass(&guard);
        world.freed(guard).await?;
    }
    Ok(())
}
