//! When a hold ends, where that is easily got wrong: odd leases, neighbours, downgrades. Told to the backend directly, so that
//! nobody renews behind the case's back.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Outcome, Renewal};
use dlock_core::{Capability, ErrorKind, Mode, Released, Result};
use futures::future::{join_all, try_join_all};

use super::leases::{ROOMY, expect_free_after, modes, take};
use crate::case::case_list;
use crate::{Need, World};

const DOWNGRADE: Need = Need::Can(Capability::Downgrade);

case_list! {
    C10 lease_of_no_whole_second_is_kept [Need::Lease]
        "the store's times are whole seconds, and the lease is rounded down: round it up";
    C12 renewal_of_one_hold_leaves_the_end_of_its_neighbour [Need::Lease]
        "the renewal sets the end of the lock, and not that of the hold";
    C12 downgraded_hold_ends_with_its_lease [DOWNGRADE, Need::Lease]
        "the downgrade writes the hold anew, without an end";
    C15 hold_is_found_by_its_attempt_after_a_downgrade [DOWNGRADE]
        "holds are looked up by the mode that the lease says, and the answer to the downgrade may have been lost";
    C1 ended_hold_is_taken_over_by_one [Need::EndHold]
        "the check that the old hold has ended and the write that takes it over are two steps";
    C18 hold_that_ended_goes_to_the_first_who_waits [Need::Can(Capability::Fair), Need::Lease]
        "a try that meets a hold whose lease is over takes it, and does not look whether others wait for it";
    C6 ended_hold_cannot_be_downgraded [DOWNGRADE, Need::EndHold]
        "the downgrade finds the hold by its attempt, and does not look at its end";
}

async fn lease_of_no_whole_second_is_kept(world: World) -> Result<()> {
    let each = modes(&world).into_iter().map(async |mode| {
        // A scene in which the machine was stalled until the lease was over shows nothing, and is set anew.
        for _ in 0..5 {
            if is_kept_for_its_odd_lease(&world, mode).await? {
                return Ok(());
            }
        }
        panic!("the machine was stalled for most of a short lease, five times: nothing can be told from this run");
    });
    try_join_all(each).await?;
    Ok(())
}

/// Whether the lock was seen to be kept; `false` when nobody can tell.
async fn is_kept_for_its_odd_lease(world: &World, mode: Mode) -> Result<bool> {
    let (backend, other) = (world.backend().await?, world.backend().await?);
    let lease = Duration::from_millis(1950);
    let request = world.request_lasting(&world.name(), mode, lease);
    let hold = take(&backend, &request).await?;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let probe = world.request(request.name(), Mode::Exclusive);
    let found = other.try_acquire(&probe).await?;
    // Read after the answer: a lease that is good now was good when the other one was told.
    let is_good = world.now() < hold.counted_from() + lease * 9 / 10;
    other.abandon(&probe).await?;
    backend.abandon(&request).await?;
    let is_kept = matches!(found, Outcome::Busy(_));
    assert!(
        is_kept || !is_good,
        "another client got a lock ({mode}) whose lease of {lease:?} is not over"
    );
    Ok(is_kept)
}

async fn renewal_of_one_hold_leaves_the_end_of_its_neighbour(world: World) -> Result<()> {
    let together = modes(&world).into_iter().filter_map(|mode| match mode {
        Mode::Exclusive => None,
        Mode::Permit { .. } => Some(Mode::Permit { limit: 2 }),
        mode => Some(mode),
    });
    let each = together.map(async |mode| {
        let name = world.name();
        let (dies, lives) = (world.backend().await?, world.backend().await?);
        let dead = take(&dies, &world.short_request(&name, mode)).await?;
        let request = world.short_request(&name, mode);
        let alive = Arc::new(take(&lives, &request).await?);
        // Over the end of the first, and the second that stores may need to see it.
        let end = world.now() + world.lease() + Duration::from_secs(1);
        while world.now() < end {
            tokio::time::sleep(world.lease() / 4).await;
            let _ = lives.renew(std::slice::from_ref(&alive)).await;
        }
        let answers = dies.renew(&[Arc::new(dead)]).await;
        assert!(
            matches!(answers[..], [Renewal::Lost(_)]),
            "a hold ({mode}) that nobody renewed lasts for longer than its lease, while its neighbour is renewed: {answers:?}"
        );
        lives.abandon(&request).await
    });
    try_join_all(each).await?;
    Ok(())
}

async fn downgraded_hold_ends_with_its_lease(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.short_request(&name, Mode::Exclusive)).await?;
    backend.downgrade(&lease).await?;
    let what = "a hold that was downgraded ends with its lease";
    expect_free_after(world.lease(), &world, &name, what).await
}

async fn hold_is_found_by_its_attempt_after_a_downgrade(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    // As it was granted: core has not heard that it was downgraded.
    let lease = Arc::new(take(&backend, &world.request(&name, Mode::Exclusive)).await?);
    backend.downgrade(&lease).await?;
    backend.downgrade(&lease).await?;
    let answers = backend.renew(std::slice::from_ref(&lease)).await;
    // A renewal that crossed the downgrade on its way may be asked to come again. But nothing is lost.
    assert!(
        matches!(answers[..], [Renewal::Extended | Renewal::Failed(_)]),
        "the hold is there, as a reader's: {answers:?}"
    );
    assert_eq!(backend.release(&lease).await?, Released::Freed);
    world.expect_free(&name).await
}

async fn ended_hold_is_taken_over_by_one(world: World) -> Result<()> {
    const RIVALS: usize = 8;
    let name = world.name();
    let mut rivals = Vec::new();
    for _ in 0..RIVALS {
        rivals.push(world.backend().await?);
    }
    for _ in 0..3 {
        take(&rivals[0], &world.short_request(&name, Mode::Exclusive)).await?;
        world.end_hold(&name).await?;
        let requests = [(); RIVALS].map(|()| world.request(&name, Mode::Exclusive));
        let tries = rivals.iter().zip(&requests);
        let tries = join_all(tries.map(|(rival, request)| rival.try_acquire(request))).await;
        let mut holders = Vec::new();
        for (rival, answer) in rivals.iter().zip(tries) {
            if let Outcome::Held(lease) = answer? {
                holders.push((rival, lease));
            }
        }
        let count = holders.len();
        assert!(count < 2, "{count} took over one hold that had ended");
        for (rival, lease) in holders {
            assert_eq!(rival.release(&lease).await?, Released::Freed);
        }
        world.expect_free(&name).await?;
    }
    Ok(())
}

async fn hold_that_ended_goes_to_the_first_who_waits(world: World) -> Result<()> {
    let name = world.name();
    let (backend, rival) = (world.backend().await?, world.backend().await?);
    let waiter = world.client().await?.mutex(&name)?;
    take(
        &backend,
        &world.request_lasting(&name, Mode::Exclusive, ROOMY),
    )
    .await?;
    let waits = tokio::spawn(async move { waiter.lock().await });
    world.expect_waiting(&name, 1).await?;
    let limit = world.now() + ROOMY + Duration::from_secs(1) + world.timings.tolerance;
    while !waits.is_finished() {
        let request = world.request(&name, Mode::Exclusive);
        let found = rival.try_acquire(&request).await?;
        if let Outcome::Held(_) = found {
            rival.abandon(&request).await?;
            panic!(
                "one who came later got a lock whose lease was over, and another has waited for it all the time"
            );
        }
        assert!(
            world.now() < limit,
            "who waits gets a lock whose lease is over"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let guard = waits.await.expect("no panic")?;
    world.freed(guard).await?;
    world.expect_free(&name).await
}

async fn ended_hold_cannot_be_downgraded(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.short_request(&name, Mode::Exclusive)).await?;
    world.end_hold(&name).await?;
    let answer = backend.downgrade(&lease).await;
    let error = answer.expect_err("a hold that has ended was downgraded");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(backend.release(&lease).await?, Released::AlreadyLost);
    world.expect_free(&name).await
}
