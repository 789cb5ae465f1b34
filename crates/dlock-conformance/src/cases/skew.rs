//! Clocks that are wrong: the store's, which is moved while the case runs alone, and that of a client, a helper process under `libfaketime`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Capability, Result};

use super::leases::ROOMY;
use crate::case::case_list;
use crate::process::JobMode;
use crate::{Ability, Need, World};

const SKEW: Need = Need::Able(Ability::Skew);

case_list! {
    C11 tokens_increase_while_the_clock_of_the_store_moves [SKEW, Need::Alone, Need::Can(Capability::Fencing)]
        "the token is the store's time: take the higher of that and the last one plus one";
    C12 holds_end_in_time_by_a_store_whose_clock_is_wrong [SKEW, Need::Alone, Need::Lease]
        "the end of a hold is counted by the client's clock and compared with the store's";
    C12 holder_whose_clock_is_ahead_frees_lock_within_lease [Need::SkewedWorker]
        "the client writes the end of its hold by its own time of day: let the store add the lease to its own";
    C1 holder_whose_clock_is_behind_keeps_its_lock [Need::SkewedWorker]
        "the client writes the end of its hold by its own time of day: let the store add the lease to its own";
}

const HOUR: i64 = 3600;

/// The store's clock in several places, right at the end, also when one of them failed.
async fn with_clocks(world: &World, work: impl AsyncFn(i64) -> Result<()>) -> Result<()> {
    for ahead in [HOUR, -HOUR, 0] {
        world.set_clock(ahead).await?;
        // A panic in here leaves the clock wrong for the cases that follow: they would say so too.
        let outcome = work(ahead).await;
        if outcome.is_err() {
            world.set_clock(0).await?;
        }
        outcome?;
    }
    Ok(())
}

async fn tokens_increase_while_the_clock_of_the_store_moves(world: World) -> Result<()> {
    let name = world.name();
    let clients = world.clients(2).await?;
    let before = clients[0].mutex(&name)?.lock().await?;
    let highest = AtomicU64::new(before.token().expect("a token").get());
    world.freed(before).await?;
    with_clocks(&world, async |ahead| {
        for locks in &clients {
            let guard = locks.mutex(&name)?.lock().await?;
            let token = guard.token().expect("the store promises tokens").get();
            let last = highest.fetch_max(token, Ordering::Relaxed);
            assert!(
                token > last,
                "expected a token above {last} with the store's clock at {ahead:+} s; came: {token}"
            );
            world.freed(guard).await?;
        }
        Ok(())
    })
    .await
}

async fn holds_end_in_time_by_a_store_whose_clock_is_wrong(world: World) -> Result<()> {
    let old = world.client_with(world.short().renewal(false)).await?;
    let new = world.client().await?;
    with_clocks(&world, async |ahead| {
        let name = world.name();
        let guard = old.mutex(&name)?.lock().await?;
        let limit = world.lease() + Duration::from_secs(1);
        let what = format!("the next holder, with the store's clock at {ahead:+} s");
        let mutex = new.mutex(&name)?;
        let next = world.within(limit, &what, mutex.lock()).await?;
        assert!(
            !guard.is_held(),
            "with the store's clock at {ahead:+} s two holders believe to hold"
        );
        world.freed(next).await
    })
    .await
}

async fn holder_whose_clock_is_ahead_frees_lock_within_lease(world: World) -> Result<()> {
    wrong_clock(&world, HOUR).await
}

async fn holder_whose_clock_is_behind_keeps_its_lock(world: World) -> Result<()> {
    wrong_clock(&world, -HOUR).await
}

/// A helper whose time of day is wrong keeps the lock as long as it lives, and no longer than a lease after that.
async fn wrong_clock(world: &World, ahead: i64) -> Result<()> {
    let name = world.name();
    let lease = world.chosen_lease(ROOMY);
    let mut holder = world.skewed_holder(&name, JobMode::Exclusive, lease, ahead);
    world.says(&mut holder, "asking").await;
    world.says(&mut holder, "held").await;
    for _ in 0..6 {
        world.expect_taken(&name).await?;
        tokio::time::sleep(lease / 4).await;
    }
    holder.kill();
    let limit = lease + Duration::from_secs(1);
    world.expect_free_within(limit, &name).await
}
