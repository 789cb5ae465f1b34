//! When a lease begins anew, and when it ends: told to the backend directly, so that nobody renews behind the case's back.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capability, Mode, Moment, Result};
use futures::future::try_join_all;

use crate::case::case_list;
use crate::process::JobMode;
use crate::{Need, World};

case_list! {
    C15 repeated_attempt_extends_the_lease [Need::Lease]
        "the path for an attempt that holds already answers with the hold as it is, and does not write its new end";
    C12 renewals_do_not_add_up [Need::Lease]
        "a renewal adds the lease to the old end, instead of setting the end to now plus the lease";
    C12 holder_killed_after_renewals_frees_lock_within_lease [Need::Worker]
        "a renewal keeps the hold for longer than the lease (another unit, a default, no end at all), or a watch on the dead ends with it";
    C12 waiter_takes_over_a_hold_that_was_renewed [Need::Lease]
        "waiters sleep until the end that they saw first, or the renewal writes an end that only some of the statements look at";
    C10 renewal_lasts_for_the_whole_lease [Need::Lease]
        "a renewal extends by less than the lease: another unit, a fixed time, or from when the hold began";
    C16 expired_holds_are_not_shown [Need::Lease, Need::Can(Capability::Inspect)]
        "`inspect` and `list` show rows as they are, and do not compare their end with the store's time";
    C16 expired_hold_is_free_for_a_try [Need::Lease]
        "the attempt inserts, and does not take over the row of a hold whose end has passed";
}

/// All modes that the store has.
pub(super) fn modes(world: &World) -> Vec<Mode> {
    let mut modes = vec![Mode::Exclusive];
    if world.has(Capability::Shared) {
        modes.push(Mode::Shared);
    }
    if world.has(Capability::Permits) {
        modes.push(Mode::Permit { limit: 1 });
    }
    modes
}

pub(super) async fn take(backend: &Arc<dyn Backend>, request: &Request) -> Result<Lease> {
    match backend.try_acquire(request).await? {
        Outcome::Held(lease) => Ok(lease),
        Outcome::Busy(_) => panic!("a free lock is busy ({})", request.mode()),
    }
}

/// A lease with room for a machine that stalls for a second.
pub(super) const ROOMY: Duration = Duration::from_secs(4);

/// Checks that nobody gets a lock that is held since `from`, as long as its lease is good.
pub(super) async fn expect_kept(
    world: &World,
    request: &Request,
    from: Moment,
    what: &str,
) -> Result<()> {
    let other = world.backend().await?;
    let probe = world.request(request.name(), Mode::Exclusive);
    let found = other.try_acquire(&probe).await?;
    // Read after the answer: a lease that is good now was good when the other one was told.
    let good = world.now() < from + request.lease() * 9 / 10;
    if let Outcome::Held(_) = found {
        other.abandon(&probe).await?;
        assert!(
            good,
            "the machine was stalled for most of a lease of {:?}: nothing can be told from this run",
            request.lease()
        );
        panic!(
            "{what} ({}): expected the lock to be kept for {:?} more, and another client got it",
            request.mode(),
            (from + request.lease()).since(world.now())
        );
    }
    Ok(())
}

async fn repeated_attempt_extends_the_lease(world: World) -> Result<()> {
    let each = modes(&world).into_iter().map(async |mode| {
        let backend = world.backend().await?;
        let request = world.request_lasting(&world.name(), mode, ROOMY);
        let first = take(&backend, &request).await?;
        tokio::time::sleep(ROOMY * 6 / 10).await;
        // The same attempt again, as after a lost reply: core counts the lease from this one.
        let again = take(&backend, &request).await?;
        assert_eq!(first.token(), again.token(), "one hold has one token");
        tokio::time::sleep(ROOMY / 2).await;
        let what = "an attempt was repeated, and its lease was not extended";
        expect_kept(&world, &request, again.counted_from(), what).await?;
        backend.abandon(&request).await
    });
    try_join_all(each).await?;
    Ok(())
}

async fn renewal_lasts_for_the_whole_lease(world: World) -> Result<()> {
    let each = modes(&world).into_iter().map(async |mode| {
        let backend = world.backend().await?;
        let request = world.request_lasting(&world.name(), mode, ROOMY);
        let lease = Arc::new(take(&backend, &request).await?);
        tokio::time::sleep(ROOMY / 2).await;
        let sent = world.now();
        let answers = backend.renew(std::slice::from_ref(&lease)).await;
        assert!(matches!(answers[..], [Renewal::Extended]), "{answers:?}");
        tokio::time::sleep(ROOMY * 6 / 10).await;
        expect_kept(&world, &request, sent, "the hold was renewed").await?;
        backend.abandon(&request).await
    });
    try_join_all(each).await?;
    Ok(())
}

/// Others get the lock within a lease and a second.
pub(super) async fn expect_free_after(
    lease: Duration,
    world: &World,
    name: &str,
    what: &str,
) -> Result<()> {
    let limit = lease + Duration::from_secs(1);
    let mutex = world.probe().await?.mutex(name)?;
    let guard = world.within(limit, what, mutex.lock()).await?;
    world.freed(guard).await
}

async fn renewals_do_not_add_up(world: World) -> Result<()> {
    let each = modes(&world).into_iter().map(async |mode| {
        let name = world.name();
        let backend = world.backend().await?;
        let request = world.request_lasting(&name, mode, ROOMY);
        let lease = Arc::new(take(&backend, &request).await?);
        for _ in 0..12 {
            let answers = backend.renew(std::slice::from_ref(&lease)).await;
            assert!(matches!(answers[..], [Renewal::Extended]), "{answers:?}");
        }
        let what = "the lock is free a lease after the last of twelve renewals";
        expect_free_after(ROOMY, &world, &name, what).await
    });
    try_join_all(each).await?;
    Ok(())
}

async fn waiter_takes_over_a_hold_that_was_renewed(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let waiter = world.client().await?.mutex(&name)?;
    let request = world.request_lasting(&name, Mode::Exclusive, ROOMY);
    let lease = Arc::new(take(&backend, &request).await?);
    let waits = tokio::spawn(async move { waiter.lock().await });
    world.expect_waiting(&name, 1).await?;
    for _ in 0..4 {
        tokio::time::sleep(ROOMY / 3).await;
        let answers = backend.renew(std::slice::from_ref(&lease)).await;
        assert!(matches!(answers[..], [Renewal::Extended]), "{answers:?}");
        assert!(!waits.is_finished(), "a waiter got a lock that was renewed");
    }
    let limit = ROOMY + Duration::from_secs(1);
    let what = "a waiter gets the lock a lease after the last renewal";
    let guard = world.within(limit, what, waits).await.expect("no panic")?;
    world.freed(guard).await
}

async fn holder_killed_after_renewals_frees_lock_within_lease(world: World) -> Result<()> {
    let name = world.name();
    let mut holder = world.holder(&name, JobMode::Exclusive);
    world.says(&mut holder, "asking").await;
    world.says(&mut holder, "held").await;
    // Renewals are due at every third of the lease.
    tokio::time::sleep(world.lease() * 3 / 2).await;
    holder.kill();
    let what = "the lock of a holder that was killed after renewals";
    expect_free_after(world.lease(), &world, &name, what).await
}

async fn expired_holds_are_not_shown(world: World) -> Result<()> {
    let second = Duration::from_secs(1);
    let each = modes(&world).into_iter().map(async |mode| {
        let (inspected, listed) = (world.name(), world.name());
        let backend = world.backend().await?;
        for name in [&inspected, &listed] {
            take(&backend, &world.short_request(name, mode)).await?;
        }
        tokio::time::sleep(world.lease() + Duration::from_millis(100)).await;
        // Nobody has asked for the locks since, not even the other question: the rows are still there in many stores.
        let looker = world.probe().await?;
        let what = format!("an expired hold ({mode}) is inspected no more");
        world
            .until(second, &what, async || {
                Ok(!looker.inspect(&inspected).await?.is_locked())
            })
            .await?;
        let what = format!("an expired hold ({mode}) is listed no more");
        world
            .until(second, &what, async || {
                Ok(looker.list(&listed).await?.is_empty())
            })
            .await
    });
    try_join_all(each).await?;
    Ok(())
}

async fn expired_hold_is_free_for_a_try(world: World) -> Result<()> {
    let each = modes(&world).into_iter().map(async |mode| {
        let name = world.name();
        let backend = world.backend().await?;
        let old = world.short_request(&name, mode);
        take(&backend, &old).await?;
        tokio::time::sleep(world.lease() + Duration::from_millis(100)).await;
        let other = world.backend().await?;
        let request = world.request(&name, Mode::Exclusive);
        world
            .until(
                Duration::from_secs(1),
                "a try gets an expired lock",
                async || {
                    Ok(matches!(
                        other.try_acquire(&request).await?,
                        Outcome::Held(_)
                    ))
                },
            )
            .await?;
        // What the old holder still says touches nothing.
        backend.abandon(&old).await?;
        world.expect_taken(&name).await?;
        other.abandon(&request).await
    });
    try_join_all(each).await?;
    Ok(())
}
