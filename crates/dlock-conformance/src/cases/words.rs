//! What a backend says of itself and of others, told to it directly.

use std::time::Duration;

use dlock_core::backend::Outcome;
use dlock_core::{Capability, Guard, Hearing, Locks, Mode, Released, Result};

use super::leases::take;
use crate::case::case_list;
use crate::{Need, World};

const WANTED: Need = Need::Can(Capability::Wanted);

case_list! {
    C3 clients_of_one_store_have_one_identity
        "the identity is that of the client or of its connection: it orders the locks of a MultiLock, so two clients must agree on it";
    C3 parts_of_a_lock_have_names_of_their_own
        "the keys of a lock's parts (its queue, its counter) are its name with a suffix, which may be the name of another lock: put what is fixed in front, or give the length";
    C15 same_waiter_twice_has_one_place [Need::Can(Capability::Fair)]
        "a waiter whose request comes twice takes a second place: look for `attempt` among those who wait as well";
    C16 close_may_come_twice_and_ends_nothing_of_others
        "`close` fails where there is nothing left to end, or ends what belongs to all clients of the store";
    C18 waiter_that_waits_long_keeps_its_place [Need::Can(Capability::Fair)]
        "a place in the queue has an end that its waiter does not renew, and is taken anew behind the others";
    C19 undo_of_a_waiter_lets_in_those_behind_it [Need::Can(Capability::Fair), Need::Can(Capability::Shared)]
        "the undo removes the waiter, and does not look who can get in now";
    C19 downgrade_wakes_readers_in_their_turn [Need::Can(Capability::Fair), Need::Can(Capability::Downgrade)]
        "the downgrade tells nobody, or lets in readers who came after a writer";
    C17 undo_of_a_hold_lets_in_who_waits
        "the undo frees the hold and tells nobody: let it end as a release does";
    C23 backend_knows_whether_others_wait [WANTED]
        "`others_wait` or `wanted` is left at its default, though `Capabilities::wanted` says that the answer is known";
    C23 backend_knows_whether_readers_wait [WANTED, Need::Can(Capability::Shared)]
        "`wanted` and `others_wait` look at waiting writers alone";
}

async fn clients_of_one_store_have_one_identity(world: World) -> Result<()> {
    let (one, two) = (world.backend().await?, world.backend().await?);
    assert_eq!(one.identity(), two.identity(), "which store it is");
    Ok(())
}

async fn parts_of_a_lock_have_names_of_their_own(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let waiter = world.client().await?.mutex(&name)?;
    let waits = tokio::spawn(async move { waiter.lock().await });
    world.expect_waiting(&name, 1).await?;
    let locks = world.probe().await?;
    for part in [
        "queue", "waiters", "wait", "holders", "token", "fence", "q", "w",
    ] {
        for separator in [":", "/", ".", "-", "_"] {
            for other in [
                format!("{name}{separator}{part}"),
                format!("{part}{separator}{name}"),
            ] {
                let found = locks.mutex(&other)?.try_lock().await?;
                let guard = found.unwrap_or_else(|| {
                    panic!("{other:?} is taken: {name:?} is held and waited for")
                });
                world.freed(guard).await?;
            }
        }
    }
    world.freed(guard).await?;
    let guard = world.soon("the waiter", waits).await.expect("no panic")?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn same_waiter_twice_has_one_place(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Exclusive);
    let first = tokio::time::timeout(Duration::from_millis(100), backend.acquire(&request));
    assert!(first.await.is_err(), "the lock is held");
    let release = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.freed(guard).await
    };
    let (released, again) =
        tokio::join!(release, world.soon("the lock", backend.acquire(&request)));
    released?;
    let Outcome::Held(lease) = again? else {
        panic!("a waiter without a deadline was told that the lock is busy");
    };
    let _ = backend.release(&lease).await?;
    world.expect_free(&name).await
}

async fn close_may_come_twice_and_ends_nothing_of_others(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (backend, other) = (world.backend().await?, world.name());
    let lease = take(&backend, &world.request(&other, Mode::Exclusive)).await?;
    let _ = backend.release(&lease).await?;
    backend.close().await?;
    backend.close().await?;
    world.expect_held(&name, &guard).await?;
    world.freed(guard).await
}

async fn waiter_that_waits_long_keeps_its_place(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..3 {
        let (mutex, told) = (world.client().await?.mutex(&name)?, told.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await;
            let _ = told.send(number);
            drop(guard);
        });
        world.expect_waiting(&name, number + 1).await?;
    }
    tokio::time::sleep(Duration::from_millis(2500)).await;
    world.freed(guard).await?;
    for number in 0..3 {
        let next = world.soon("the next waiter", order.recv()).await;
        assert_eq!(next, Some(number), "who gets the lock after a long wait");
    }
    Ok(())
}

async fn undo_of_a_waiter_lets_in_those_behind_it(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.rw_lock(&name)?.read().await?;
    let writer = world.client().await?.rw_lock(&name)?;
    let writes = tokio::spawn(async move { writer.write().await });
    world.expect_waiting(&name, 1).await?;
    let reader = world.client().await?.rw_lock(&name)?;
    let reads = tokio::spawn(async move { reader.read().await });
    world.expect_waiting(&name, 2).await?;
    writes.abort();
    let what = "a reader whose writer before it has given up";
    let read = world.soon(what, reads).await.expect("no panic")?;
    world.freed(read).await?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn undo_of_a_hold_lets_in_who_waits(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Exclusive);
    take(&backend, &request).await?;
    let waiter = world.client().await?.mutex(&name)?;
    let waits = tokio::spawn(async move { waiter.lock().await });
    world.expect_waiting(&name, 1).await?;
    backend.abandon(&request).await?;
    let what = "one who waits behind a hold that is undone";
    let guard = world.soon(what, waits).await.expect("no panic")?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn downgrade_wakes_readers_in_their_turn(world: World) -> Result<()> {
    let (name, crowded) = (world.name(), world.name());
    // A reader that waits alone gets in.
    let guard = world.client().await?.rw_lock(&name)?.write().await?;
    let reader = world.client().await?.rw_lock(&name)?;
    let reads = tokio::spawn(async move { reader.read().await });
    world.expect_waiting(&name, 1).await?;
    guard.downgrade().await?;
    let what = "a reader who waits for a writer that is one no more";
    let read = world.soon(what, reads).await.expect("no panic")?;
    world.freed(read).await?;
    world.freed(guard).await?;
    // One behind a writer does not.
    let guard = world.client().await?.rw_lock(&crowded)?.write().await?;
    let writer = world.client().await?.rw_lock(&crowded)?;
    let writes = tokio::spawn(async move { writer.write().await });
    world.expect_waiting(&crowded, 1).await?;
    let reader = world.client().await?.rw_lock(&crowded)?;
    let reads = tokio::spawn(async move { reader.read().await });
    world.expect_waiting(&crowded, 2).await?;
    guard.downgrade().await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!reads.is_finished(), "a reader passed the writer before it");
    world.freed(guard).await?;
    let write = world.soon("the writer", writes).await.expect("no panic")?;
    world.freed(write).await?;
    let read = world.soon("the reader", reads).await.expect("no panic")?;
    world.freed(read).await?;
    world.expect_free(&crowded).await
}

async fn backend_knows_whether_others_wait(world: World) -> Result<()> {
    others_are_known(&world, async |waiter, name| {
        waiter.mutex(&name)?.lock().await
    })
    .await
}

async fn backend_knows_whether_readers_wait(world: World) -> Result<()> {
    others_are_known(&world, async |waiter, name| {
        waiter.rw_lock(&name)?.read().await
    })
    .await
}

async fn others_are_known(
    world: &World,
    wait: impl AsyncFn(Locks, String) -> Result<Guard>,
) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.request(&name, Mode::Exclusive)).await?;
    assert!(!backend.others_wait(lease.name()).await, "nobody waits yet");
    let looks = async {
        world.expect_waiting(&name, 1).await?;
        let limit = world.timings.settle;
        let knows = async || Ok(backend.others_wait(lease.name()).await);
        let what = "somebody waits, and the backend knows";
        world.until(limit, what, knows).await?;
        if let Hearing::Told { bound } = world.capabilities.wanted {
            let what = "the backend tells of one who has begun to wait before";
            world
                .within(bound + limit, what, backend.wanted(&lease))
                .await;
        }
        backend.release(&lease).await
    };
    let waits = wait(world.client().await?, name.clone());
    let (released, granted) = tokio::join!(looks, waits);
    assert_eq!(released?, Released::Freed);
    world.freed(granted?).await?;
    world.expect_free(&name).await
}
