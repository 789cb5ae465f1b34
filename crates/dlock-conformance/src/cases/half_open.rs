//! The connections that were open fall silent, and nobody is told; new ones work. A client must find out by itself.

use std::time::Duration;

use dlock_core::Result;

use crate::case::case_list;
use crate::{Ability, Need, World};

const SILENT: Need = Need::Able(Ability::HalfOpen);

case_list! {
    C5 client_works_again_when_its_connections_fall_silent [SILENT]
        "a connection that gave no answer in time is kept and used again: whoever sees a time-out must drop it and make a new one";
    C10 hold_outlives_connections_that_fall_silent [SILENT, Need::Deadline, Need::Movable]
        "a renewal waits on the silent connection for as long as core lets it, and the next one takes the same connection";
    C17 waiter_is_not_left_behind_a_silent_connection [SILENT]
        "a waiter trusts its subscription, watch or blocking call for ever: it must look by itself, or hear a heartbeat, from time to time";
    C13 cancelled_call_on_a_silent_connection_leaves_nothing [SILENT]
        "the undo goes the way of the attempt that hung, and is not sent again on a new connection";
}

/// Several answers that do not come, and a new connection.
const FOUND_OUT: Duration = Duration::from_secs(15);

async fn client_works_again_when_its_connections_fall_silent(world: World) -> Result<()> {
    let name = world.name();
    let settings = world.long().trip_timeout(Duration::from_secs(1));
    let (locks, fault) = world.faulty(settings).await?;
    let mutex = locks.mutex(&name)?;
    let guard = mutex.lock().await?;
    world.freed(guard).await?;
    fault.half_open().await;
    let works = async {
        loop {
            match mutex.try_lock().await {
                Ok(Some(guard)) => return guard.release().await,
                // Its own attempt that hung may be in the way until it was undone.
                Ok(None) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    let what = "a client whose connections fell silent works again by new ones";
    let _ = world.within(FOUND_OUT, what, works).await?;
    world.expect_free(&name).await?;
    world.expect_quiet(&locks).await
}

async fn hold_outlives_connections_that_fall_silent(world: World) -> Result<()> {
    let name = world.name();
    let lease = world.lease() * 4;
    let (locks, fault) = world.faulty(world.leased(lease)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    fault.half_open().await;
    let renewals = locks.stats().renewals;
    let renewed = world.until(locks.lease(), "a renewal by a new connection", async || {
        Ok(locks.stats().renewals > renewals)
    });
    tokio::select! {
        reason = guard.lost() => panic!(
            "expected the hold to be renewed by a new connection within its lease of {:?}; it was lost: {reason}",
            locks.lease()
        ),
        renewed = renewed => renewed?,
    }
    world.expect_held(&name, &guard).await?;
    fault.heal().await;
    world.freed(guard).await
}

async fn waiter_is_not_left_behind_a_silent_connection(world: World) -> Result<()> {
    let name = world.name();
    let guard = world.client().await?.mutex(&name)?.lock().await?;
    let (locks, fault) = world.faulty(world.long()).await?;
    let waits = locks.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    fault.half_open().await;
    world.freed(guard).await?;
    let what = "a waiter whose connections fell silent gets the lock";
    let limit = FOUND_OUT + world.lease();
    let guard = world.within(limit, what, waits).await.expect("no panic")?;
    world.expect_held(&name, &guard).await?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn cancelled_call_on_a_silent_connection_leaves_nothing(world: World) -> Result<()> {
    let name = world.name();
    let settings = world.long().trip_timeout(Duration::from_secs(1));
    let (locks, fault) = world.faulty(settings).await?;
    let mutex = locks.mutex(&name)?;
    let guard = mutex.lock().await?;
    world.freed(guard).await?;
    fault.half_open().await;
    let hangs = tokio::time::timeout(Duration::from_millis(100), mutex.lock());
    if let Ok(guard) = hangs.await {
        world.freed(guard?).await?;
    }
    world.expect_free_within(FOUND_OUT, &name).await?;
    world
        .until(FOUND_OUT, "nothing is left to undo", async || {
            Ok(locks.stats().in_doubt == 0)
        })
        .await
}
