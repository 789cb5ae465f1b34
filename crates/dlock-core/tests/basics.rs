//! The everyday use of the handles, on the memory backend with a paused clock.

mod common;

use std::time::Duration;

use common::{World, millis, seconds};
use dlock_core::{Error, ErrorKind, LossReason, Mode, MultiLock, Owner, Released, Settings};

#[tokio::test(start_paused = true)]
async fn a_mutex_excludes_and_frees() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let guard = a.mutex("x").unwrap().lock().await.unwrap();
    assert!(guard.is_held());
    assert!(b.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert!(
        b.mutex("x")
            .unwrap()
            .lock_within(millis(100))
            .await
            .unwrap()
            .is_none()
    );
    let first = guard.token().unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    let guard = b.mutex("x").unwrap().try_lock().await.unwrap().unwrap();
    assert!(guard.token().unwrap() > first);
    drop(guard);
    world.until_free("x").await;
    assert_eq!(world.names(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_client_does_not_reenter_by_accident() {
    let world = World::new();
    let locks = world.client();
    let mutex = locks.mutex("x").unwrap();
    let _guard = mutex.lock().await.unwrap();
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(mutex.lock_within(millis(50)).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_held() {
    let world = World::new();
    let locks = world.client();
    let guard = locks.mutex("x").unwrap().lock().await.unwrap();
    tokio::time::sleep(seconds(600)).await;
    assert!(guard.is_held());
    assert!(locks.stats().renewals >= 55, "{:?}", locks.stats());
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    let renewals = locks.stats().renewals;
    tokio::time::sleep(seconds(600)).await;
    assert_eq!(
        locks.stats().renewals,
        renewals,
        "renewal ended with the hold"
    );
}

#[tokio::test(start_paused = true)]
async fn an_owner_reenters_and_frees_with_the_last_guard() {
    let world = World::new();
    let (locks, other) = (world.client(), world.client());
    let mutex = locks.mutex("x").unwrap().owned_by(Owner::new());
    let outer = mutex.lock().await.unwrap();
    let inner = mutex.try_lock().await.unwrap().unwrap();
    assert_eq!((inner.hold_count(), inner.token()), (2, outer.token()));
    assert!(mutex.is_owned() && mutex.is_locked().await.unwrap());
    assert!(!locks.mutex("x").unwrap().is_owned(), "no owner, not mine");
    assert_eq!(outer.release().await.unwrap(), Released::StillHeld);
    assert!(
        other
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(inner.release().await.unwrap(), Released::Freed);
    assert!(
        other
            .mutex("x")
            .unwrap()
            .try_lock()
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(locks.stats().reentered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_scope_makes_nested_calls_reenter() {
    let world = World::new();
    let locks = world.client();
    let lock = locks.rw_lock("x").unwrap();
    Owner::new()
        .scope(async {
            let write = lock.write().await.unwrap();
            let read = lock.read().await.unwrap();
            assert_eq!(read.hold_count(), 2);
            drop(write);
            assert!(read.is_held());
        })
        .await;
    world.until_free("x").await;
    let error = Owner::new()
        .scope(async {
            let _read = lock.read().await.unwrap();
            lock.try_write().await.unwrap_err()
        })
        .await;
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("release the read lock first"));
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_downgrades() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let (a, b) = (a.rw_lock("x").unwrap(), b.rw_lock("x").unwrap());
    let write = a.write().await.unwrap();
    assert!(b.try_read().await.unwrap().is_none());
    write.downgrade().await.unwrap();
    assert_eq!(write.mode(), Mode::Shared);
    let read = b.try_read().await.unwrap().expect("readers share");
    assert!(b.try_write().await.unwrap().is_none());
    assert_eq!(write.release().await.unwrap(), Released::Freed);
    assert_eq!(read.release().await.unwrap(), Released::Freed);
}

#[tokio::test(start_paused = true)]
async fn permits_never_exceed_the_limit_and_limits_must_agree() {
    let world = World::new();
    let locks = world.client();
    let three = locks.semaphore("x", 3).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(three.try_acquire().await.unwrap().expect("a free permit"));
    }
    assert!(three.try_acquire().await.unwrap().is_none());
    let error = locks
        .semaphore("x", 4)
        .unwrap()
        .try_acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    held.pop();
    assert!(three.acquire_within(seconds(1)).await.unwrap().is_some());
    assert!(locks.semaphore("x", 0).is_err());
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_all_or_nothing() {
    let world = World::new();
    let other = World::new();
    let (a, b) = (world.client(), other.client());
    let multi = MultiLock::new([
        b.mutex("y").unwrap(),
        a.mutex("z").unwrap(),
        a.mutex("y").unwrap(),
        a.mutex("z").unwrap(),
    ])
    .unwrap();
    assert_eq!(multi.members().len(), 3, "the same lock counts once");
    let blocker = other.client().mutex("y").unwrap().lock().await.unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    assert!(multi.lock_within(millis(200)).await.unwrap().is_none());
    world.until_free("y").await;
    world.until_free("z").await;
    drop(blocker);
    let guard = multi.lock().await.unwrap();
    assert_eq!(guard.tokens().len(), 3);
    world.control.expire("z");
    assert_eq!(guard.lost().await, LossReason::Gone, "one lost is all lost");
    assert!(!guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert!(a.multi(Vec::<String>::new()).is_err());
}

#[tokio::test(start_paused = true)]
async fn run_releases_after_the_work_and_cancels_it_on_loss() {
    let world = World::new();
    let locks = world.client();
    let mutex = locks.mutex("x").unwrap();
    let token = mutex.run(async |guard| guard.token()).await.unwrap();
    assert!(token.is_some());
    assert!(mutex.try_lock().await.unwrap().is_some(), "given back");
    world.until_free("x").await;

    let control = world.control.clone();
    let error: Error = mutex
        .run(async |_| {
            control.expire("x");
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

/// `run` is of use only if it can be spawned.
#[tokio::test]
async fn run_can_be_spawned() {
    let world = World::new();
    let mutex = world.client().mutex("x").unwrap();
    let task = tokio::spawn(async move {
        mutex
            .run(async |guard| {
                tokio::task::yield_now().await;
                guard.token()
            })
            .await
    });
    assert!(task.await.unwrap().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_election_has_one_leader_and_tells_of_changes() {
    use futures::StreamExt;
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let (a, b) = (a.election("boss").unwrap(), b.election("boss").unwrap());
    assert_eq!(a.leader().await.unwrap(), None);
    let mut changes = std::pin::pin!(b.observe());
    assert_eq!(changes.next().await.unwrap().unwrap(), None);
    let leadership = a.campaign("ann").await.unwrap();
    let seen = changes.next().await.unwrap().unwrap().unwrap();
    assert_eq!(
        (seen.value.as_str(), seen.token),
        ("ann", leadership.token())
    );
    let bob = tokio::spawn(async move { b.campaign("bob").await.unwrap() });
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(leadership.release().await.unwrap(), Released::Freed);
    let bob = bob.await.unwrap();
    assert!(bob.token() > seen.token);
    assert_eq!(changes.next().await.unwrap().unwrap().unwrap().value, "bob");
    assert!(a.campaign("line\nbreak").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn inspect_list_and_break_see_the_store() {
    let world = World::new();
    let locks = world
        .client()
        .with(Settings::new().label("the night job"))
        .unwrap();
    let guard = locks.mutex("jobs/a").unwrap().lock().await.unwrap();
    let _other = locks.mutex("jobs/b").unwrap().lock().await.unwrap();
    let _third = locks.mutex("other").unwrap().lock().await.unwrap();
    let info = locks.inspect("jobs/a").await.unwrap();
    let holder = &info.holders[0];
    assert_eq!(holder.label, "the night job");
    assert_eq!(holder.owner, guard.owner_id());
    assert_eq!(holder.token, guard.token());
    assert!(holder.expires_in.unwrap() > seconds(29));
    let names: Vec<_> = locks
        .list("jobs/")
        .await
        .unwrap()
        .into_iter()
        .map(|info| info.name.to_string())
        .collect();
    assert_eq!(names, ["jobs/a", "jobs/b"]);
    assert!(locks.break_lock("jobs/a").await.unwrap());
    assert!(!locks.break_lock("jobs/a").await.unwrap());
    assert_eq!(guard.lost().await, LossReason::Gone);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn lock_with_a_limit_fails_as_busy() {
    let world = World::new();
    let locks = world.client();
    let _guard = locks.mutex("x").unwrap().lock().await.unwrap();
    let hasty = world
        .client()
        .with(Settings::new().wait_at_most(Duration::from_secs(2)))
        .unwrap();
    let error = hasty.mutex("x").unwrap().lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(
        error.to_string(),
        "memory: acquire \"x\": busy: still held by others after 2s: try later, or wait longer"
    );
}
