//! [C6](dlock_core::contract#c6): words from the past, told to the backend directly.

use std::sync::Arc;

use dlock_core::backend::{Backend, Lease, Outcome, Renewal, Request};
use dlock_core::{Capability, ErrorKind, LossReason, Mode, Released, Result};

use crate::case::case_list;
use crate::{Need, World};

case_list! {
    C6 stale_release_leaves_a_later_hold [Need::EndHold];
    C6 stale_renewal_leaves_a_later_hold [Need::EndHold];
    C6 stale_abandon_leaves_a_later_hold [Need::EndHold];
    C6 stale_downgrade_leaves_a_later_hold [Need::EndHold, Need::Can(Capability::Downgrade)];
    C6 downgrade_of_a_hold_that_is_gone_says_so [Need::Can(Capability::Downgrade)]
        "the downgrade does not look how many rows it has changed: none means `ErrorKind::Lost`";
    C6 ended_hold_cannot_be_renewed [Need::EndHold];
    C6 release_is_idempotent_and_tells_what_it_found;
    C6 abandon_is_idempotent_and_leaves_others_alone;
    C6 release_of_a_reader_touches_only_its_own [Need::Can(Capability::Shared)];
    C6 release_of_a_permit_touches_only_its_own [Need::Can(Capability::Permits)];
    C6 renewal_answers_each_lease_in_order;
    C6 release_of_a_lost_hold_says_so [Need::EndHold];
    C6 release_after_break_does_not_free_the_new_holder [Need::Can(Capability::Break)];
    C6 break_frees_and_tells [Need::Can(Capability::Break)];
}

async fn take(backend: &Arc<dyn Backend>, request: &Request) -> Result<Lease> {
    match backend.try_acquire(request).await? {
        Outcome::Held(lease) => Ok(lease),
        Outcome::Busy(_) => panic!("a free lock is busy"),
    }
}

async fn renew(backend: &Arc<dyn Backend>, lease: &Lease) -> Renewal {
    let mut answers = backend.renew(&[Arc::new(lease.clone())]).await;
    assert_eq!(answers.len(), 1, "one answer for each lease");
    answers.remove(0)
}

/// A hold that ended behind its holder's back, and a later one of another client.
struct Past {
    old_backend: Arc<dyn Backend>,
    old_request: Request,
    old: Lease,
    new_backend: Arc<dyn Backend>,
    new: Lease,
}

impl Past {
    async fn new(world: &World, name: &str) -> Result<Self> {
        let (old_backend, new_backend) = (world.backend().await?, world.backend().await?);
        let old_request = world.short_request(name, Mode::Exclusive);
        let old = take(&old_backend, &old_request).await?;
        world.end_hold(name).await?;
        let new = take(&new_backend, &world.request(name, Mode::Exclusive)).await?;
        Ok(Self {
            old_backend,
            old_request,
            old,
            new_backend,
            new,
        })
    }

    /// The later hold is untouched.
    async fn is_past(&self, world: &World, name: &str) -> Result<()> {
        world.expect_taken(name).await?;
        let renewal = renew(&self.new_backend, &self.new).await;
        assert!(
            matches!(renewal, Renewal::Extended),
            "the later hold is gone: {renewal:?}"
        );
        let released = self.new_backend.release(&self.new).await?;
        assert_eq!(released, Released::Freed, "the later hold is gone");
        world.expect_free(name).await
    }
}

async fn stale_release_leaves_a_later_hold(world: World) -> Result<()> {
    let name = world.name();
    let past = Past::new(&world, &name).await?;
    for _ in 0..2 {
        let released = past.old_backend.release(&past.old).await?;
        assert_eq!(released, Released::AlreadyLost);
    }
    past.is_past(&world, &name).await
}

async fn stale_renewal_leaves_a_later_hold(world: World) -> Result<()> {
    let name = world.name();
    let past = Past::new(&world, &name).await?;
    for _ in 0..2 {
        let renewal = renew(&past.old_backend, &past.old).await;
        assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
    }
    past.is_past(&world, &name).await
}

async fn stale_abandon_leaves_a_later_hold(world: World) -> Result<()> {
    let name = world.name();
    let past = Past::new(&world, &name).await?;
    past.old_backend.abandon(&past.old_request).await?;
    past.old_backend.abandon(&past.old_request).await?;
    past.is_past(&world, &name).await
}

async fn stale_downgrade_leaves_a_later_hold(world: World) -> Result<()> {
    let name = world.name();
    let past = Past::new(&world, &name).await?;
    let answer = past.old_backend.downgrade(&past.old).await;
    assert!(answer.is_err(), "a hold that is gone was downgraded");
    let reader = world.probe().await?.rw_lock(&name)?.try_read().await?;
    assert!(reader.is_none(), "the later hold was downgraded");
    past.is_past(&world, &name).await
}

async fn downgrade_of_a_hold_that_is_gone_says_so(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.request(&name, Mode::Exclusive)).await?;
    assert_eq!(backend.release(&lease).await?, Released::Freed);
    let answer = backend.downgrade(&lease).await;
    let error = answer.expect_err("a hold that is gone was downgraded");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    world.expect_free(&name).await
}

async fn ended_hold_cannot_be_renewed(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.short_request(&name, Mode::Exclusive)).await?;
    world.end_hold(&name).await?;
    let renewal = renew(&backend, &lease).await;
    assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
    assert_eq!(backend.release(&lease).await?, Released::AlreadyLost);
    world.expect_free(&name).await
}

async fn release_is_idempotent_and_tells_what_it_found(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let lease = take(&backend, &world.request(&name, Mode::Exclusive)).await?;
    assert_eq!(backend.release(&lease).await?, Released::Freed);
    assert_eq!(backend.release(&lease).await?, Released::AlreadyLost);
    let next = world.probe().await?.mutex(&name)?.lock().await?;
    assert_eq!(backend.release(&lease).await?, Released::AlreadyLost);
    assert!(next.is_held());
    world.freed(next).await
}

async fn abandon_is_idempotent_and_leaves_others_alone(world: World) -> Result<()> {
    let name = world.name();
    let backend = world.backend().await?;
    let held = world.request(&name, Mode::Exclusive);
    let lease = take(&backend, &held).await?;
    let stranger = world.request(&name, Mode::Exclusive);
    backend.abandon(&stranger).await?;
    let renewal = renew(&backend, &lease).await;
    assert!(
        matches!(renewal, Renewal::Extended),
        "the abandon of one attempt ended the hold of another: {renewal:?}"
    );
    backend.abandon(&held).await?;
    backend.abandon(&held).await?;
    assert_eq!(backend.release(&lease).await?, Released::AlreadyLost);
    world.expect_free(&name).await
}

async fn release_of_a_reader_touches_only_its_own(world: World) -> Result<()> {
    touches_only_its_own(&world, Mode::Shared).await
}

async fn release_of_a_permit_touches_only_its_own(world: World) -> Result<()> {
    touches_only_its_own(&world, Mode::Permit { limit: 2 }).await
}

async fn touches_only_its_own(world: &World, mode: Mode) -> Result<()> {
    let name = world.name();
    let (a, b) = (world.backend().await?, world.backend().await?);
    let first = take(&a, &world.request(&name, mode)).await?;
    let second = take(&b, &world.request(&name, mode)).await?;
    assert_eq!(a.release(&first).await?, Released::Freed);
    assert_eq!(a.release(&first).await?, Released::AlreadyLost);
    let renewal = renew(&a, &first).await;
    assert!(matches!(renewal, Renewal::Lost(_)), "{renewal:?}");
    let renewal = renew(&b, &second).await;
    assert!(matches!(renewal, Renewal::Extended), "{renewal:?}");
    world.expect_taken(&name).await?;
    assert_eq!(b.release(&second).await?, Released::Freed);
    world.expect_free(&name).await
}

async fn renewal_answers_each_lease_in_order(world: World) -> Result<()> {
    // Not in the order of the alphabet: answers that are sorted by name show.
    let unique = world.name();
    let names = ["b", "a", "c"].map(|part| format!("{unique}{part}"));
    let backend = world.backend().await?;
    let mut leases = Vec::new();
    for name in &names {
        let lease = take(&backend, &world.short_request(name, Mode::Exclusive)).await?;
        leases.push(Arc::new(lease));
    }
    assert!(backend.renew(&[]).await.is_empty());
    assert_eq!(backend.release(&leases[1]).await?, Released::Freed);
    let answers = backend.renew(&leases).await;
    assert_eq!(answers.len(), 3);
    assert!(matches!(answers[0], Renewal::Extended), "{answers:?}");
    assert!(matches!(answers[1], Renewal::Lost(_)), "{answers:?}");
    assert!(matches!(answers[2], Renewal::Extended), "{answers:?}");
    for lease in [&leases[0], &leases[2]] {
        assert_eq!(backend.release(lease).await?, Released::Freed);
    }
    Ok(())
}

async fn release_of_a_lost_hold_says_so(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short().renewal(false)).await?;
    let guard = locks.mutex(&name)?.lock().await?;
    world.end_hold(&name).await?;
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    assert_eq!(locks.stats().losses.total(), 1);
    assert_eq!(locks.stats().released, 0);
    world.expect_free(&name).await
}

async fn release_after_break_does_not_free_the_new_holder(world: World) -> Result<()> {
    let name = world.name();
    let (old, new) = (world.client().await?, world.client().await?);
    let guard = old.mutex(&name)?.lock().await?;
    assert!(world.probe().await?.break_lock(&name).await?);
    let next = new.mutex(&name)?.lock().await?;
    assert_eq!(guard.release().await?, Released::AlreadyLost);
    world.expect_held(&name, &next).await?;
    assert!(next.is_held());
    world.freed(next).await
}

async fn break_frees_and_tells(world: World) -> Result<()> {
    let name = world.name();
    let locks = world.client_with(world.short()).await?;
    let probe = world.probe().await?;
    assert!(!probe.break_lock(&name).await?, "nobody holds it");
    let guard = locks.mutex(&name)?.lock().await?;
    let waits = world.client().await?.mutex(&name)?;
    let waits = tokio::spawn(async move { waits.lock().await });
    world.expect_waiting(&name, 1).await?;
    assert!(probe.break_lock(&name).await?);
    let next = world
        .soon("a waiter gets it", waits)
        .await
        .expect("no panic")?;
    let reason = world.within(world.lease(), "the holder is told", guard.lost());
    assert!(matches!(
        reason.await,
        LossReason::Gone | LossReason::SessionEnded | LossReason::Expired
    ));
    assert!(!guard.is_held());
    world.freed(next).await
}
