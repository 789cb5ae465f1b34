//! [C1](dlock_core::contract#c1) and [C2](dlock_core::contract#c2): who gets in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::backend::Outcome;
use dlock_core::{
    Capability, ErrorKind, Fairness, Locks, LossReason, Mode, MultiLock, Order, Owner, Released,
    Result,
};
use futures::future::try_join_all;
use tokio::sync::Barrier;

use crate::case::case_list;
use crate::{Need, World};

case_list! {
    C1 counter_loses_no_update_with_many_tasks;
    C1 counter_loses_no_update_with_several_processes [Need::Worker];
    C1 hundred_tasks_of_one_client_take_turns;
    C1 first_use_of_a_name_by_many_clients_at_once_goes_well;
    C1 of_many_tries_at_once_one_succeeds;
    C1 old_holder_is_invalid_before_the_next_one_holds [Need::Lease];
    C1 several_locks_are_all_or_nothing;
    C1 multi_locks_in_any_order_do_not_deadlock;
    C1 work_is_done_under_the_lock_which_is_freed_after_it;
    C1 an_election_has_one_leader [Need::Can(Capability::Inspect)];
    C2 one_client_excludes_itself;
    C2 attempts_through_one_backend_exclude_each_other;
    C2 tasks_in_strict_order_exclude_each_other;
    C2 owner_reenters_and_frees_with_the_last_guard;
    C2 owners_exclude_each_other;
}

/// A resource that loses updates and notices visitors if it is not protected.
#[derive(Default)]
pub(super) struct Resource {
    number: AtomicU64,
    busy: AtomicBool,
}

impl Resource {
    pub(super) async fn visit(&self) {
        assert!(
            !self.busy.swap(true, Ordering::SeqCst),
            "two holders at once"
        );
        let number = self.number.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.number.store(number + 1, Ordering::SeqCst);
        self.busy.store(false, Ordering::SeqCst);
    }

    pub(super) fn visits(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }
}

/// Runs `tasks` tasks on each client, which visit the resource `times` times each.
async fn visit_often(
    clients: &[Locks],
    name: &str,
    tasks: usize,
    times: usize,
) -> Result<Arc<Resource>> {
    let resource = Arc::<Resource>::default();
    let mut running = Vec::new();
    for locks in clients {
        for _ in 0..tasks {
            let (mutex, resource) = (locks.mutex(name)?, resource.clone());
            running.push(tokio::spawn(async move {
                for _ in 0..times {
                    let guard = mutex.lock().await?;
                    resource.visit().await;
                    assert_eq!(guard.release().await?, Released::Freed);
                }
                Ok(())
            }));
        }
    }
    for task in running {
        task.await.expect("a task panicked")?;
    }
    Ok(resource)
}

async fn counter_loses_no_update_with_many_tasks(world: World) -> Result<()> {
    let name = world.name();
    let clients = world.clients(4).await?;
    let resource = visit_often(&clients, &name, 8, 5).await?;
    assert_eq!(resource.visits(), 4 * 8 * 5);
    world.expect_free(&name).await
}

async fn counter_loses_no_update_with_several_processes(world: World) -> Result<()> {
    const PROCESSES: u32 = 3;
    const TIMES: u32 = 20;
    let name = world.name();
    let file = std::env::temp_dir().join(format!("dlock-conformance-{}", uuid::Uuid::new_v4()));
    std::fs::write(&file, "0").expect("a temporary file");
    let mut workers: Vec<_> = (0..PROCESSES)
        .map(|_| world.counter(&name, file.clone(), TIMES))
        .collect();
    for worker in &mut workers {
        world.says(worker, "done").await;
    }
    let total = std::fs::read_to_string(&file).expect("the counter");
    std::fs::remove_file(&file).expect("the counter can be removed");
    assert_eq!(total, (PROCESSES * TIMES).to_string(), "updates were lost");
    world.expect_free(&name).await
}

async fn hundred_tasks_of_one_client_take_turns(world: World) -> Result<()> {
    let name = world.name();
    let clients = world.clients(1).await?;
    let resource = visit_often(&clients, &name, 100, 1).await?;
    assert_eq!(resource.visits(), 100);
    let stats = clients[0].stats();
    assert_eq!(stats.acquired + stats.passed_on, 100);
    Ok(())
}

async fn first_use_of_a_name_by_many_clients_at_once_goes_well(world: World) -> Result<()> {
    let clients = world.clients(8).await?;
    for _ in 0..5 {
        let resource = visit_often(&clients, &world.name(), 1, 1).await?;
        assert_eq!(resource.visits(), 8);
    }
    Ok(())
}

async fn of_many_tries_at_once_one_succeeds(world: World) -> Result<()> {
    let clients = world.clients(6).await?;
    for _ in 0..10 {
        let name = world.name();
        let barrier = Arc::new(Barrier::new(clients.len()));
        let mut tries = Vec::new();
        for locks in &clients {
            let (mutex, barrier) = (locks.mutex(&name)?, barrier.clone());
            tries.push(tokio::spawn(async move {
                barrier.wait().await;
                mutex.try_lock().await
            }));
        }
        let mut held = Vec::new();
        for attempt in tries {
            held.extend(attempt.await.expect("a task panicked")?);
        }
        assert_eq!(held.len(), 1, "tries that succeeded at the same time");
    }
    Ok(())
}

async fn old_holder_is_invalid_before_the_next_one_holds(world: World) -> Result<()> {
    let name = world.name();
    let old = world.client_with(world.short().renewal(false)).await?;
    let new = world.client().await?;
    let guard = old.mutex(&name)?.lock().await?;
    assert!(guard.is_held());
    let mutex = new.mutex(&name)?;
    let next = world
        .within(
            world.lease() + Duration::from_secs(1),
            "the next gets it",
            mutex.lock(),
        )
        .await?;
    assert!(!guard.is_held(), "two holders believe to hold");
    assert!(next.is_held());
    assert_eq!(guard.lost().await, LossReason::Expired);
    world.freed(next).await
}

async fn several_locks_are_all_or_nothing(world: World) -> Result<()> {
    let (a, b) = (world.client().await?, world.client().await?);
    let names: Vec<String> = (0..3).map(|_| world.name()).collect();
    let multi = a.multi(&names)?;
    for blocked in &names {
        let blocker = b.mutex(blocked)?.lock().await?;
        assert!(multi.try_lock().await?.is_none());
        world.expect_in_vain(multi.lock_within(Duration::from_millis(50)).await)?;
        for name in names.iter().filter(|name| *name != blocked) {
            world.expect_free(name).await?;
        }
        world.freed(blocker).await?;
    }
    let guard = multi.lock().await?;
    for name in &names {
        world.expect_held(name, &guard).await?;
    }
    world.freed(guard).await?;
    for name in &names {
        world.expect_free(name).await?;
    }
    Ok(())
}

async fn multi_locks_in_any_order_do_not_deadlock(world: World) -> Result<()> {
    let names: Vec<String> = (0..3).map(|_| world.name()).collect();
    let resource = Arc::<Resource>::default();
    let mut running = Vec::new();
    for turn in 0..3 {
        let locks = world.client().await?;
        let mut order = names.clone();
        order.rotate_left(turn);
        let mutexes: Result<Vec<_>> = order.iter().map(|name| locks.mutex(name)).collect();
        let multi = MultiLock::new(mutexes?)?;
        let resource = resource.clone();
        running.push(async move {
            for _ in 0..5 {
                let guard = multi.lock().await?;
                resource.visit().await;
                assert_eq!(guard.release().await?, Released::Freed);
            }
            Ok(())
        });
    }
    let limit = Duration::from_secs(30);
    world
        .within(limit, "all get all locks", try_join_all(running))
        .await?;
    assert_eq!(resource.visits(), 15);
    Ok(())
}

async fn work_is_done_under_the_lock_which_is_freed_after_it(world: World) -> Result<()> {
    let name = world.name();
    let mutex = world.client().await?.mutex(&name)?;
    let done = mutex
        .run(async |guard| {
            assert!(guard.is_held());
            world.expect_held(&name, guard).await?;
            Ok::<_, dlock_core::Error>(guard.token())
        })
        .await?;
    assert_eq!(done?.is_some(), world.has(Capability::Fencing));
    let free = world.probe().await?.mutex(&name)?.try_lock().await?;
    world.freed(free.expect("it is free after the work")).await
}

async fn an_election_has_one_leader(world: World) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.client().await?, world.client().await?);
    let (a, b) = (a.election(&name)?, b.election(&name)?);
    assert_eq!(a.leader().await?, None);
    let first = a.campaign("ann: \"10.0.0.7\"").await?;
    let seen = b.leader().await?.expect("a leader");
    assert_eq!(seen.value, "ann: \"10.0.0.7\"");
    assert_eq!(seen.token, first.token());
    let second = tokio::spawn({
        let b = b.clone();
        async move { b.campaign("bob").await }
    });
    world.freed(first).await?;
    let second = world.soon("bob is elected", second).await.expect("bob")?;
    let seen = a.leader().await?.expect("a leader");
    assert_eq!(seen.value, "bob");
    world.freed(second).await?;
    assert_eq!(b.leader().await?, None);
    Ok(())
}

async fn one_client_excludes_itself(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let mutex = locks.mutex(&name)?;
    let guard = mutex.lock().await?;
    let handles = [
        mutex.clone(),
        locks.mutex(&name)?,
        locks.clone().mutex(&name)?,
    ];
    for handle in handles {
        assert!(handle.try_lock().await?.is_none());
        let waited = handle.lock_within(Duration::from_millis(50)).await?;
        assert!(waited.is_none());
    }
    world.freed(guard).await?;
    let again = mutex.try_lock().await?.expect("it is free");
    world.freed(again).await
}

async fn attempts_through_one_backend_exclude_each_other(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let first = world.request(&name, Mode::Exclusive);
    let Outcome::Held(lease) = backend.try_acquire(&first).await? else {
        panic!("a free lock is busy");
    };
    let second = world.request(&name, Mode::Exclusive);
    assert!(
        matches!(backend.try_acquire(&second).await?, Outcome::Busy(_)),
        "the same client got the lock twice"
    );
    assert_eq!(backend.release(&lease).await?, Released::Freed);
    let third = world.request(&name, Mode::Exclusive);
    assert!(matches!(
        backend.try_acquire(&third).await?,
        Outcome::Held(_)
    ));
    backend.abandon(&third).await
}

async fn tasks_in_strict_order_exclude_each_other(world: World) -> Result<()> {
    let name = world.name();
    let strict = world.client_with(world.long().order(Order::Strict)).await?;
    let resource = visit_often(&[strict.clone(), strict], &name, 5, 4).await?;
    assert_eq!(resource.visits(), 40);
    Ok(())
}

async fn owner_reenters_and_frees_with_the_last_guard(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let mutex = locks.mutex(&name)?.owned_by(Owner::new());
    let outer = mutex.lock().await?;
    let inner = mutex.try_lock().await?.expect("the owner enters again");
    assert_eq!(inner.hold_count(), 2);
    assert_eq!(inner.token(), outer.token());
    assert_eq!(outer.release().await?, Released::StillHeld);
    world.expect_held(&name, &inner).await?;
    assert!(inner.is_held());
    world.freed(inner).await?;
    world.expect_free(&name).await?;
    let nested = locks.mutex(&name)?;
    Owner::new()
        .scope(async {
            let _outer = nested.lock().await?;
            let inner = world.soon("a nested call", nested.lock()).await?;
            assert_eq!(inner.hold_count(), 2);
            Ok(())
        })
        .await?;
    world.expect_free(&name).await
}

async fn owners_exclude_each_other(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client().await?;
    let guard = locks
        .mutex(&name)?
        .owned_by(Owner::new())
        .try_lock()
        .await?
        .expect("it is free");
    let other = locks.mutex(&name)?.owned_by(Owner::new());
    assert!(other.try_lock().await?.is_none());
    assert!(locks.mutex(&name)?.try_lock().await?.is_none());
    if world.has(Capability::Shared) {
        let owner = Owner::new();
        let other = world.name();
        let lock = locks.rw_lock(&other)?.owned_by(owner);
        let read = lock.read().await?;
        let error = lock.try_write().await.expect_err("an upgrade");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        world.freed(read).await?;
    }
    if world.capabilities.fairness == Fairness::Fifo {
        // The owner of the hold gets in again also while others wait.
        let waits = tokio::spawn({
            let other = other.clone();
            async move { other.lock().await }
        });
        world.freed(guard).await?;
        let next = world
            .soon("the other owner", waits)
            .await
            .expect("no panic")?;
        return world.freed(next).await;
    }
    world.freed(guard).await
}
