//! [C23](dlock_core::contract#c23): holders that hear of others.

use std::time::Duration;

use dlock_core::{Capability, Hearing, Result};
use futures::FutureExt;

use crate::case::case_list;
use crate::{Need, World};

const WANTED: Need = Need::Can(Capability::Wanted);

case_list! {
    C23 holder_hears_that_another_client_waits [WANTED]
        "`wanted` does not resolve, or `others_wait` does not see attempts that wait in `acquire`";
    C23 holder_hears_of_those_who_came_before_it_listened [WANTED]
        "`wanted` tells of those alone who come after the call: it must look once first";
    C23 holder_hears_nothing_where_nobody_waits [WANTED]
        "`wanted` resolves for the holder itself, for a waiter of another lock, or for one that has given up";
}

/// How long it may take until the holder has heard.
fn bound(world: &World) -> Duration {
    let settle = world.timings.settle;
    match world.capabilities.wanted {
        Hearing::Told { bound } => bound + settle,
        _ => world.lease() + settle,
    }
}

async fn holder_hears_that_another_client_waits(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client_with(world.short()).await?;
    let guard = holder.mutex(&name)?.lock().await?;
    let other = world.client().await?.mutex(&name)?;
    let (heard, theirs) = tokio::join!(
        async {
            world
                .within(bound(&world), "the word", guard.wanted())
                .await;
            guard.release().await
        },
        other.lock()
    );
    let _ = heard?;
    world.freed(theirs?).await
}

async fn holder_hears_of_those_who_came_before_it_listened(world: World) -> Result<()> {
    let name = world.name();
    let holder = world.client_with(world.short()).await?;
    let guard = holder.mutex(&name)?.lock().await?;
    let other = world.client().await?.mutex(&name)?;
    let waits = tokio::spawn(async move { other.lock().await });
    world.expect_waiting(&name, 1).await?;
    world
        .within(bound(&world), "the word", guard.wanted())
        .await;
    world.freed(guard).await?;
    let theirs = world
        .soon("the other client", waits)
        .await
        .expect("no panic")?;
    world.freed(theirs).await
}

async fn holder_hears_nothing_where_nobody_waits(world: World) -> Result<()> {
    let (name, elsewhere) = (world.name(), world.name());
    let holder = world.client_with(world.short()).await?;
    let guard = holder.mutex(&name)?.lock().await?;
    let blocker = holder.mutex(&elsewhere)?.lock().await?;
    let other = world.client().await?;
    // Somebody waits for another lock, and somebody has given up.
    let there = other.mutex(&elsewhere)?;
    let waits = tokio::spawn(async move { there.lock().await });
    let brief = Duration::from_millis(50);
    world.expect_in_vain(other.mutex(&name)?.lock_within(brief).await)?;
    world.expect_waiting(&name, 0).await?;
    let quiet = tokio::time::timeout(world.lease(), guard.wanted());
    assert!(quiet.await.is_err(), "told of somebody, and nobody waits");
    assert!(guard.wanted().now_or_never().is_none());
    drop((guard, blocker));
    let theirs = world
        .soon("the other lock", waits)
        .await
        .expect("no panic")?;
    world.freed(theirs).await
}
