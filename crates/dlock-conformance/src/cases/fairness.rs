//! [C18](dlock_core::contract#c18): who is next.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Capability, Locks, Order, Result};
use tokio::task::JoinHandle;

use crate::case::case_list;
use crate::process::JobMode;
use crate::world::runtime;
use crate::{Need, World};

const FAIR: Need = Need::Can(Capability::Fair);

case_list! {
    C18 clients_are_served_in_order_of_arrival [FAIR];
    C18 tasks_of_one_client_are_served_in_order_of_arrival;
    C18 strict_order_holds_across_clients_and_tasks [FAIR, Need::Can(Capability::Inspect)];
    C18 busy_client_lets_others_have_their_turn [FAIR];
    C18 waiter_that_gave_up_keeps_the_order_of_the_others [FAIR];
    C18 killed_waiter_does_not_stall_the_queue [Need::Worker];
    C18 waiter_whose_runtime_ended_does_not_stall_the_queue;
    C18 readers_and_writers_are_served_in_order [FAIR, Need::Can(Capability::Shared)];
}

/// Notes who got the lock, in order.
#[derive(Default, Clone)]
struct Served(Arc<Mutex<Vec<String>>>);

impl Served {
    fn wait(&self, locks: &Locks, name: &str, who: &str) -> Result<JoinHandle<Result<()>>> {
        let (mutex, served, who) = (locks.mutex(name)?, self.clone(), who.to_owned());
        Ok(tokio::spawn(async move {
            let guard = mutex.lock().await?;
            served.note(who);
            let _ = guard.release().await?;
            Ok(())
        }))
    }

    fn note(&self, who: String) {
        self.0.lock().expect("no panic").push(who);
    }

    fn order(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

async fn all(world: &World, waiting: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    for waits in waiting {
        let limit = world.lease() + world.timings.settle;
        let outcome = world.within(limit, "every waiter is served", waits).await;
        outcome.expect("no panic")?;
    }
    Ok(())
}

async fn clients_are_served_in_order_of_arrival(world: World) -> Result<()> {
    for _ in 0..3 {
        let name = world.name();
        let guard = world.client().await?.mutex(&name)?.lock().await?;
        let served = Served::default();
        let mut waiting = Vec::new();
        for (index, locks) in world.clients(5).await?.iter().enumerate() {
            waiting.push(served.wait(locks, &name, &index.to_string())?);
            world.expect_waiting(&name, index + 1).await?;
        }
        world.freed(guard).await?;
        all(&world, waiting).await?;
        assert_eq!(served.order(), ["0", "1", "2", "3", "4"]);
    }
    Ok(())
}

async fn tasks_of_one_client_are_served_in_order_of_arrival(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let guard = locks.mutex(&name)?.lock().await?;
    let served = Served::default();
    let mut expected = Vec::new();
    let mut waiting = Vec::new();
    for index in 0..10 {
        let (mutex, served) = (locks.mutex(&name)?, served.clone());
        let mut waits = Box::pin(async move {
            let guard = mutex.lock().await?;
            served.note(index.to_string());
            let _ = guard.release().await?;
            Ok(())
        });
        // One poll, so that it stands in the line before the next one comes.
        let early = futures::poll!(&mut waits);
        assert!(early.is_pending());
        waiting.push(tokio::spawn(waits));
        expected.push(index.to_string());
    }
    world.freed(guard).await?;
    all(&world, waiting).await?;
    assert_eq!(served.order(), expected);
    Ok(())
}

async fn strict_order_holds_across_clients_and_tasks(world: World) -> Result<()> {
    let name = world.name();
    let strict = world.long().order(Order::Strict);
    let clients = [
        world.client_with(strict.clone()).await?,
        world.client_with(strict).await?,
    ];
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let served = Served::default();
    let mut expected = Vec::new();
    let mut waiting = Vec::new();
    // Two of the first client, one of the second, and so on.
    for index in 0..9 {
        let locks = &clients[usize::from(index % 3 == 2)];
        waiting.push(served.wait(locks, &name, &index.to_string())?);
        expected.push(index.to_string());
        world.expect_waiting(&name, index + 1).await?;
    }
    world.freed(guard).await?;
    all(&world, waiting).await?;
    assert_eq!(served.order(), expected);
    Ok(())
}

async fn busy_client_lets_others_have_their_turn(world: World) -> Result<()> {
    const TURNS: u32 = 4;
    let name = world.name();
    let busy = world.client_with(world.long().local_turns(TURNS)).await?;
    let other = world.client().await?;
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let served = Served::default();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(served.wait(&busy, &name, "busy")?);
    }
    world.expect_waiting(&name, 1).await?;
    waiting.push(served.wait(&other, &name, "other")?);
    world.expect_waiting(&name, 2).await?;
    world.freed(guard).await?;
    all(&world, waiting).await?;
    let order = served.order();
    let turn = order.iter().position(|who| who == "other");
    let turn = turn.expect("it was served");
    assert!(turn <= TURNS as usize, "turn {turn} of {}", order.len());
    Ok(())
}

async fn waiter_that_gave_up_keeps_the_order_of_the_others(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let served = Served::default();
    let mut waiting = Vec::new();
    for (index, locks) in world.clients(5).await?.iter().enumerate() {
        waiting.push(served.wait(locks, &name, &index.to_string())?);
        world.expect_waiting(&name, index + 1).await?;
    }
    for index in [3, 1, 0] {
        let gave_up = waiting.remove(index);
        gave_up.abort();
        let _ = gave_up.await;
    }
    world.expect_waiting(&name, 2).await?;
    world.freed(guard).await?;
    all(&world, waiting).await?;
    assert_eq!(served.order(), ["2", "4"]);
    Ok(())
}

async fn killed_waiter_does_not_stall_the_queue(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let mut dead = world.holder(&name, JobMode::Exclusive);
    world.says(&mut dead, "asking").await;
    world.expect_waiting(&name, 1).await?;
    let served = Served::default();
    let alive = served.wait(&world.client().await?, &name, "alive")?;
    world.expect_waiting(&name, 2).await?;
    dead.kill();
    world.freed(guard).await?;
    expect_not_stalled(&world, alive).await
}

async fn waiter_whose_runtime_ended_does_not_stall_the_queue(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (inner, of) = (world.clone(), name.clone());
    world
        .outside(move || {
            let runtime = runtime();
            runtime.block_on(async {
                let locks = inner.client_with(inner.short()).await?;
                let mutex = locks.mutex(&of)?;
                let waits = tokio::spawn(async move { mutex.lock().await });
                // Time to get into the queue.
                let early = tokio::time::timeout(Duration::from_millis(200), waits).await;
                assert!(early.is_err(), "the lock was held");
                Ok::<(), dlock_core::Error>(())
            })
        })
        .await?;
    let served = Served::default();
    let alive = served.wait(&world.client().await?, &name, "alive")?;
    world.freed(guard).await?;
    expect_not_stalled(&world, alive).await
}

async fn expect_not_stalled(world: &World, alive: JoinHandle<Result<()>>) -> Result<()> {
    let limit = world.lease() + Duration::from_secs(1);
    let outcome = world
        .within(limit, "the living waiter gets it", alive)
        .await;
    outcome.expect("no panic")
}

async fn readers_and_writers_are_served_in_order(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let served = Served::default();
    let mut waiting = Vec::new();
    for (index, locks) in world.clients(4).await?.into_iter().enumerate() {
        let (lock, served) = (locks.rw_lock(&name)?, served.clone());
        waiting.push(tokio::spawn(async move {
            let reads = index % 2 == 0;
            let guard = if reads {
                lock.read().await?
            } else {
                lock.write().await?
            };
            served.note(index.to_string());
            let _ = guard.release().await?;
            Ok(())
        }));
        world.expect_waiting(&name, index + 1).await?;
    }
    world.freed(guard).await?;
    all(&world, waiting).await?;
    assert_eq!(served.order(), ["0", "1", "2", "3"]);
    Ok(())
}
