//! What the store tells of a lock, and what an administrator does to it: told to the backend directly.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Lease, Renewal, Request};
use dlock_core::{Capability, Liveness, Mode, Name, Result};
use futures::future::try_join_all;

use super::leases::{modes, take};
use crate::case::case_list;
use crate::{Need, World};

const INSPECT: Need = Need::Can(Capability::Inspect);
const BREAK: Need = Need::Can(Capability::Break);

case_list! {
    C3 inspect_shows_the_mode_of_each_holder [INSPECT]
        "the mode is not kept with the holder, or not read back";
    C3 inspect_shows_what_is_left_of_the_lease [INSPECT, Need::Lease]
        "`expires_in` is the lease as it was asked for, or is counted from the wrong end";
    C18 inspect_shows_waiters_in_their_order [INSPECT, Need::Waiters]
        "waiters are not shown, or in the order of their ids, or newest first";
    C3 list_finds_more_than_a_page [INSPECT]
        "the store answers in pages (a limit, a cursor), and only the first is read";
    C6 break_ends_every_hold_of_the_name [BREAK]
        "the break deletes one row, and readers or permits have several";
    C6 break_of_an_ended_hold_frees_nobody [BREAK, Need::EndHold]
        "the break counts rows, and does not compare their end with the store's time";
    C17 break_wakes_the_next_waiter [BREAK]
        "waiters are told by the release, and the break does not do what it does";
}

async fn inspect_shows_the_mode_of_each_holder(world: World) -> Result<()> {
    for mode in modes(&world) {
        let name = world.name();
        let backend = world.backend().await?;
        let request = world.request(&name, mode);
        let lease = take(&backend, &request).await?;
        let name = Name::new(&name)?;
        let listed = backend.list(&name).await?;
        for info in [backend.inspect(&name).await?].iter().chain(&listed) {
            let shown: Vec<Mode> = info.holders.iter().map(|holder| holder.mode).collect();
            assert_eq!(shown, [mode], "who holds, as the store shows it");
        }
        let _ = backend.release(&lease).await?;
    }
    Ok(())
}

async fn inspect_shows_what_is_left_of_the_lease(world: World) -> Result<()> {
    let aged = Duration::from_millis(1200);
    let name = world.name();
    let backend = world.backend().await?;
    let request = world.request(&name, Mode::Exclusive);
    let lease = take(&backend, &request).await?;
    tokio::time::sleep(aged).await;
    let info = backend.inspect(&Name::new(&name)?).await?;
    let left = info.holders.first().and_then(|holder| holder.expires_in);
    if let Some(left) = left {
        // Stores that count whole seconds may show a started one as whole.
        let most = request.lease().saturating_sub(Duration::from_millis(100));
        assert!(
            left <= most,
            "{aged:?} after the grant of {:?}, {left:?} are left",
            request.lease()
        );
    }
    let _ = backend.release(&lease).await?;
    Ok(())
}

async fn inspect_shows_waiters_in_their_order(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let mut labels = Vec::new();
    let mut waits = Vec::new();
    for number in 0..4 {
        let label = format!("waiter {number}");
        let locks = world
            .client_with(world.long().label(label.as_str()))
            .await?;
        let mutex = locks.mutex(&name)?;
        waits.push(tokio::spawn(async move { drop(mutex.lock().await) }));
        labels.push(label);
        world.expect_waiting(&name, labels.len()).await?;
    }
    let info = world.probe().await?.inspect(&name).await?;
    let shown: Vec<&str> = info.waiters.iter().map(|waiter| &*waiter.label).collect();
    assert_eq!(shown, labels, "who waits, first come first");
    world.freed(guard).await?;
    for wait in waits {
        world.soon("the next waiter", wait).await.expect("no panic");
    }
    world.expect_free(&name).await
}

async fn list_finds_more_than_a_page(world: World) -> Result<()> {
    // Where each hold has a connection, there are only so many.
    let count = match world.capabilities.liveness {
        Liveness::Lease => 130,
        _ => 30,
    };
    let prefix = world.name();
    let backend = world.backend().await?;
    let holds = (0..count).map(|number| format!("{prefix}/{number:03}"));
    let requests: Vec<Request> = holds
        .map(|name| world.request(&name, Mode::Exclusive))
        .collect();
    let leases = try_join_all(requests.iter().map(|request| take(&backend, request))).await?;
    let listed = backend.list(&prefix).await?;
    let listed: Vec<&Name> = listed.iter().map(|lock| &lock.name).collect();
    let expected: Vec<&Name> = requests.iter().map(Request::name).collect();
    assert_eq!(listed.len(), count, "how many of the locks are listed");
    assert_eq!(listed, expected, "sorted by name");
    try_join_all(leases.iter().map(|lease| backend.release(lease))).await?;
    Ok(())
}

async fn is_lost(backend: &Arc<dyn Backend>, lease: &Lease) -> bool {
    let answers = backend.renew(&[Arc::new(lease.clone())]).await;
    matches!(answers[..], [Renewal::Lost(_)])
}

async fn break_ends_every_hold_of_the_name(world: World) -> Result<()> {
    let together = modes(&world).into_iter().map(|mode| match mode {
        Mode::Permit { .. } => Mode::Permit { limit: 3 },
        mode => mode,
    });
    for mode in together {
        let name = world.name();
        let backend = world.backend().await?;
        let count = if mode == Mode::Exclusive { 1 } else { 3 };
        let mut leases = Vec::new();
        for _ in 0..count {
            leases.push(take(&backend, &world.request(&name, mode)).await?);
        }
        let admin = world.backend().await?;
        let name = Name::new(&name)?;
        assert!(admin.break_lock(&name).await?, "{count} held ({mode})");
        for lease in &leases {
            let what = "a hold outlived the break of its lock";
            assert!(is_lost(&backend, lease).await, "{what} ({mode})");
        }
        assert!(!admin.break_lock(&name).await?, "nobody holds ({mode})");
        world.expect_free(&name).await?;
    }
    Ok(())
}

async fn break_of_an_ended_hold_frees_nobody(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.short_request(&name, Mode::Exclusive)).await?;
    world.end_hold(&name).await?;
    let broken = backend.break_lock(&Name::new(&name)?).await?;
    assert!(
        !broken,
        "nobody held any more, and the break said somebody did"
    );
    assert!(is_lost(&backend, &lease).await, "the hold had ended");
    world.expect_free(&name).await
}

/// The holder does not renew: only the break can wake the waiter in time.
async fn break_wakes_the_next_waiter(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    take(&backend, &world.request(&name, Mode::Exclusive)).await?;
    let waiter = world.client().await?.mutex(&name)?;
    let waits = tokio::spawn(async move { waiter.lock().await });
    world.expect_waiting(&name, 1).await?;
    assert!(backend.break_lock(&Name::new(&name)?).await?);
    let guard = world.soon("the waiter", waits).await.expect("no panic")?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}
