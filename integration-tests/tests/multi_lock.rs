//! Several locks of several stores as one. A slow or dead member fails the whole in time, and leaves nothing behind.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::Backend;
use dlock_core::{ErrorKind, Locks, MultiLock, Released};
use integration_tests::{EtcdServer, RedisServer};

const LIMIT: Duration = Duration::from_millis(800);
/// Longer than a loaded machine adds, and far shorter than a lease.
const TOLERANCE: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(10);

async fn redis(server: &RedisServer) -> Locks {
    let config = dlock_redis::Config::from_url(&server.url()).expect("a URL");
    locks(Arc::new(config.connect().await.expect("redis")))
}

async fn etcd(server: &EtcdServer) -> Locks {
    let config = dlock_etcd::Config::from_url(&server.url()).expect("a URL");
    locks(Arc::new(config.connect().await.expect("etcd")))
}

fn locks(backend: Arc<dyn Backend>) -> Locks {
    Locks::new(backend).expect("defaults")
}

/// One lock of each store.
fn join(stores: &[&Locks], name: &str) -> MultiLock {
    let members = stores
        .iter()
        .map(|locks| locks.mutex(name).expect("a name"));
    MultiLock::new(members).expect("members")
}

async fn is_free(locks: &Locks, name: &str) -> bool {
    let mutex = locks.mutex(name).expect("a name");
    let guard = mutex.lock_within(SOON).await.expect("an answer");
    match guard {
        Some(guard) => guard.release().await.expect("release") == Released::Freed,
        None => false,
    }
}

/// All or nothing, in whatever order the members are given.
async fn holds_all_or_none(a: [&Locks; 2], b: [&Locks; 2]) {
    let (one, two) = (join(&a, "m"), join(&[b[1], b[0]], "m"));
    let guard = one.lock().await.expect("both");
    assert!(guard.is_held());
    assert!(two.try_lock().await.expect("an answer").is_none());
    for other in b {
        let single = other.mutex("m").expect("a name");
        assert!(single.try_lock().await.expect("an answer").is_none());
    }
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    // One of the two is held by somebody else: the other is given back.
    for (held, free) in [(b[0], b[1]), (b[1], b[0])] {
        let single = held.mutex("m").expect("a name").lock().await.expect("one");
        assert!(
            one.lock_within(Duration::from_millis(200))
                .await
                .expect("an answer")
                .is_none()
        );
        assert!(is_free(free, "m").await);
        assert_eq!(single.release().await.expect("release"), Released::Freed);
    }
    // Those who want both take turns.
    let turns = |multi: MultiLock| async move {
        for _ in 0..20 {
            let guard = multi.lock().await.expect("both");
            assert_eq!(guard.release().await.expect("release"), Released::Freed);
        }
    };
    tokio::join!(turns(one), turns(two));
}

/// The member that does not answer fails the whole in time, and the others are free.
async fn fails_in_time(multi: &MultiLock, healthy: &Locks) {
    let start = Instant::now();
    let error = multi
        .lock_within(LIMIT)
        .await
        .expect_err("a member is out of reach");
    let took = start.elapsed();
    assert!(
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut),
        "{error}"
    );
    assert!(took < LIMIT + TOLERANCE, "{took:?}");
    assert!(is_free(healthy, "m").await, "a member stayed locked");
}

#[tokio::test]
async fn two_redis_servers_as_one() {
    let (x, y) = (
        RedisServer::start().await.expect("redis"),
        RedisServer::start().await.expect("redis"),
    );
    let (ax, ay, bx, by) = (
        redis(&x).await,
        redis(&y).await,
        redis(&x).await,
        redis(&y).await,
    );
    holds_all_or_none([&ax, &ay], [&bx, &by]).await;
    let multi = join(&[&ax, &ay], "m");
    y.freeze();
    fails_in_time(&multi, &bx).await;
    y.thaw();
    assert!(
        is_free(&by, "m").await,
        "the frozen member had something left"
    );
    x.kill();
    fails_in_time(&multi, &by).await;
}

#[tokio::test]
async fn redis_and_etcd_as_one() {
    let (x, y) = (
        RedisServer::start().await.expect("redis"),
        EtcdServer::start().await.expect("etcd"),
    );
    let (ax, ay, bx, by) = (
        redis(&x).await,
        etcd(&y).await,
        redis(&x).await,
        etcd(&y).await,
    );
    holds_all_or_none([&ax, &ay], [&bx, &by]).await;
    let multi = join(&[&ax, &ay], "m");
    x.freeze();
    fails_in_time(&multi, &by).await;
    x.thaw();
    assert!(
        is_free(&bx, "m").await,
        "the frozen member had something left"
    );
    y.kill();
    fails_in_time(&multi, &bx).await;
}

/// A hold that is lost at one member is lost as a whole.
#[tokio::test]
async fn the_loss_of_one_member_is_the_loss_of_all() {
    let (x, y) = (
        RedisServer::start().await.expect("redis"),
        RedisServer::start().await.expect("redis"),
    );
    let settings = || dlock_core::Settings::new().lease(Duration::from_secs(1));
    let (ax, ay) = (redis(&x).await, redis(&y).await);
    let short = |locks: &Locks| locks.with(settings()).expect("good settings");
    let multi = join(&[&short(&ax), &short(&ay)], "m");
    let guard = multi.lock().await.expect("both");
    y.kill();
    tokio::time::timeout(SOON, guard.lost())
        .await
        .expect("told in time");
    assert!(!guard.is_held());
    let _ = guard.release().await;
    assert!(
        is_free(&redis(&x).await, "m").await,
        "the healthy member stayed locked"
    );
}
