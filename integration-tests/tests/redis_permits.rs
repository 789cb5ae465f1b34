//! Semaphores, and a limit that changes while they are in use.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::sync::Arc;

use dlock_core::backend::{Backend, Outcome, Request};
use dlock_core::{ErrorKind, Guard, Locks, Mode, Name, Released, SystemClock};
use integration_tests::RedisServer;
use redis_support::*;

#[tokio::test]
async fn permits_are_counted_and_another_limit_is_a_conflict() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let theirs = client(&server.url()).await;
    let one = mine
        .semaphore("s", 2)
        .expect("good")
        .acquire()
        .await
        .expect("free");
    let two = theirs
        .semaphore("s", 2)
        .expect("good")
        .acquire()
        .await
        .expect("free");
    assert_ne!(one.token(), two.token());
    assert!(
        theirs
            .semaphore("s", 2)
            .expect("good")
            .try_acquire()
            .await
            .expect("an answer")
            .is_none()
    );
    let error = theirs
        .semaphore("s", 3)
        .expect("good")
        .try_acquire()
        .await
        .expect_err("another limit");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let third = tokio::spawn({
        let theirs = theirs.clone();
        async move {
            theirs
                .semaphore("s", 2)
                .expect("good")
                .acquire()
                .await
                .expect("a grant")
        }
    });
    waiting(&mine, "s", 1).await;
    let _ = one.release().await;
    let third = third.await.expect("a task");
    let _ = (two.release().await, third.release().await);
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

async fn permit(locks: &Locks, limit: u32) -> Option<Guard> {
    let semaphore = locks.semaphore("s", limit).expect("a limit");
    semaphore.try_acquire().await.expect("an answer")
}

async fn give_back(guards: impl IntoIterator<Item = Guard>) {
    for guard in guards {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}

/// A client of the new version, one of the old one, and one that does not allow another limit.
async fn versions(server: &RedisServer, style: &str) -> (Locks, Locks, Locks) {
    let url = format!("{}?style={style}", server.url());
    let changing = format!("{url}&limit_may_change=true");
    (
        client(&changing).await,
        client(&changing).await,
        client(&url).await,
    )
}

#[tokio::test]
async fn a_limit_is_raised_in_a_rolling_deployment() {
    for style in ["fair", "barging"] {
        let server = RedisServer::start().await.expect("redis");
        let (new, old, strict) = versions(&server, style).await;
        let first = [permit(&old, 2).await, permit(&old, 2).await].map(|g| g.expect("free"));
        assert!(permit(&old, 2).await.is_none(), "the old limit");
        let more = [permit(&new, 4).await, permit(&new, 4).await].map(|g| g.expect("free"));
        assert!(permit(&new, 4).await.is_none(), "the new limit");
        assert!(permit(&old, 2).await.is_none(), "the old limit");
        // Whoever has not agreed to that is told.
        let semaphore = strict.semaphore("s", 2).expect("a limit");
        let error = semaphore.try_acquire().await;
        let error = error.expect_err("another limit is in use");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        // One of the new version waits, and comes next.
        let waiter = tokio::spawn(async move {
            let semaphore = new.semaphore("s", 4).expect("a limit");
            semaphore.acquire_within(SOON).await.expect("an answer")
        });
        waiting(&old, "s", 1).await;
        let [one, two] = first;
        give_back([one]).await;
        let next = waiter.await.expect("a task").expect("a permit");
        give_back([two, next].into_iter().chain(more)).await;
        assert_eq!(residue(&server).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_limit_is_lowered_in_a_rolling_deployment() {
    for style in ["fair", "barging"] {
        let server = RedisServer::start().await.expect("redis");
        let (new, old, strict) = versions(&server, style).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(permit(&old, 3).await.expect("free"));
        }
        // Nobody of the new version comes before two have left; all that time it waits, and is no conflict.
        let waiter = tokio::spawn(async move {
            let semaphore = new.semaphore("s", 2).expect("a limit");
            semaphore.acquire_within(SOON).await.expect("an answer")
        });
        waiting(&old, "s", 1).await;
        give_back(held.pop()).await;
        waiting(&old, "s", 1).await;
        let info = old.inspect("s").await.expect("inspect");
        assert_eq!(info.holders.len(), 2, "the surplus is not replaced");
        give_back(held.pop()).await;
        let first = waiter.await.expect("a task").expect("a permit");
        // The new limit is in use now, for whoever has it.
        assert!(permit(&strict, 2).await.is_none(), "two are held");
        give_back(held.pop()).await;
        let second = permit(&strict, 2).await.expect("free");
        give_back([first, second]).await;
        assert_eq!(residue(&server).await, Vec::<String>::new());
    }
}

/// A permit that was given is still its holder's when others have another limit by now.
#[tokio::test]
async fn a_permit_outlives_a_change_of_its_limit() {
    let server = RedisServer::start().await.expect("redis");
    let (new, old, _) = versions(&server, "fair").await;
    let lease = dlock_core::Settings::new().lease(seconds(1));
    let old = old.with(lease).expect("good settings");
    let mine = permit(&old, 1).await.expect("free");
    let theirs = permit(&new, 2).await.expect("free");
    let lost = tokio::time::timeout(seconds(3), mine.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    give_back([mine, theirs]).await;
}

/// A grant is confirmed by asking again, as in a Cluster, or when an answer was lost.
#[tokio::test]
async fn a_permit_is_confirmed_after_a_change_of_its_limit() {
    let server = RedisServer::start().await.expect("redis");
    let url = format!("{}?limit_may_change=true", server.url());
    let redis = backend(&url).await;
    let name = Name::new("s").expect("a name");
    let wish = Request::new(name, Mode::Permit { limit: 1 }, Arc::new(SystemClock));
    let Outcome::Held(first) = redis.try_acquire(&wish).await.expect("an answer") else {
        panic!("it is free");
    };
    let other = permit(&client(&url).await, 2).await.expect("free");
    let again = redis.try_acquire(&wish).await.expect("an answer");
    let Outcome::Held(again) = again else {
        panic!("it has it: {again:?}");
    };
    assert_eq!(again.token(), first.token());
    let released = redis.release(&again).await;
    assert_eq!(released.expect("release"), Released::Freed);
    give_back([other]).await;
    assert_eq!(residue(&server).await, Vec::<String>::new());
}
