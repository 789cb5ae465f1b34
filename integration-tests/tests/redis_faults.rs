//! What goes wrong around a Redis lock, and what becomes of the lock.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, LossReason, Released, Settings};
use integration_tests::{Direction, FaultProxy, Redis, RedisServer};
use redis_support::*;

/// Takes a lock as soon as the store lets us, whatever it says before.
async fn lock_after_trouble(locks: &dlock_core::Locks, name: &str) -> dlock_core::Guard {
    let settings = Settings::new().retry_unreachable_for(seconds(30));
    let locks = locks.with(settings).expect("good settings");
    lock(&locks, name).await
}

#[tokio::test]
async fn a_server_that_lost_its_memory_and_scripts_serves_again() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client(&server.url()).await;
    let settings = Settings::new().lease(seconds(2));
    let short = locks.with(settings).expect("good settings");
    let guard = lock(&short, "a").await;
    let old = guard.token().expect("fencing");
    server.kill();
    server.restart().await.expect("restart");
    // The hold is gone with the server's memory, and its holder is told before the lease is over.
    let reason = tokio::time::timeout(seconds(3), guard.lost())
        .await
        .expect("told in time");
    assert!(
        matches!(reason, LossReason::Gone | LossReason::Expired),
        "{reason:?}"
    );
    let again = lock_after_trouble(&locks, "a").await;
    assert!(again.token().expect("fencing") > old, "tokens went back");
    assert_eq!(again.release().await.expect("release"), Released::Freed);
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
}

#[tokio::test]
async fn a_durable_server_keeps_the_hold_over_a_restart() {
    let server = RedisServer::start_with(Redis {
        durable: true,
        ..Redis::default()
    })
    .await
    .expect("redis");
    let locks = client(&server.url()).await;
    let guard = lock(&locks, "a").await;
    server.kill();
    server.restart().await.expect("restart");
    let other = client(&server.url()).await;
    assert!(
        other
            .mutex("a")
            .expect("a name")
            .try_lock()
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = RedisServer::start().await.expect("redis");
    let locks = client(&server.url()).await;
    for _ in 0..3 {
        let guard = lock(&locks, "a").await;
        server.command(&["SCRIPT", "FLUSH"]).await.expect("flush");
        let info = locks.inspect("a").await.expect("inspect");
        assert!(info.is_locked());
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        server.command(&["SCRIPT", "FLUSH"]).await.expect("flush");
    }
}

#[tokio::test]
async fn a_frozen_connection_is_replaced() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let url = format!(
        "{}?answer_timeout=300ms&connect_timeout=1s",
        through(&server, &proxy)
    );
    let locks = client_with(&url, Settings::new().lease(seconds(20))).await;
    let guard = lock(&locks, "a").await;
    // What is sent now is swallowed, and the connection stays open.
    proxy.black_hole(Direction::Both);
    let start = Instant::now();
    for _ in 0..2 {
        let error = locks
            .mutex("b")
            .expect("a name")
            .try_lock()
            .await
            .expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
    assert!(start.elapsed() < seconds(5), "{:?}", start.elapsed());
    proxy.heal().await;
    let other = lock_after_trouble(&locks, "b").await;
    assert!(guard.is_held());
    assert_eq!(other.release().await.expect("release"), Released::Freed);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_frozen_server_is_an_error_in_time_and_then_forgotten() {
    let server = RedisServer::start().await.expect("redis");
    let url = format!(
        "{}?answer_timeout=200ms&connect_timeout=500ms",
        server.url()
    );
    let locks = client(&url).await;
    let _ = lock(&locks, "a").await.release().await;
    server.freeze();
    let start = Instant::now();
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("frozen");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() < seconds(3), "{:?}", start.elapsed());
    server.thaw();
    let guard = lock_after_trouble(&locks, "a").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_lost_message_costs_one_sign_of_life() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let mine = client(&server.url()).await;
    let theirs = client(&through(&server, &proxy)).await;
    let guard = lock(&mine, "a").await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 1).await;
    // The answer to the sign of life that comes next is lost together with the message, and so is the connection.
    proxy.drop_reply(1);
    let start = Instant::now();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let granted = waiter.await.expect("a task");
    assert!(start.elapsed() < seconds(5), "{:?}", start.elapsed());
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
}

/// The grant is written, and the connection of its waiter lives, but the message does not come.
#[tokio::test]
async fn a_lost_message_on_a_living_connection_takes_nothing_back() {
    let acl = "user default on nopass ~* &* +@all\nuser app on nopass ~* &* +@all\n";
    let server = RedisServer::start_with(Redis {
        acl: Some(acl.to_owned()),
        ..Redis::default()
    })
    .await
    .expect("redis");
    let mine = client(&server.url().replace("redis://", "redis://app:x@")).await;
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let theirs = client(&through(&server, &proxy)).await;
    let guard = lock(&mine, "a").await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 1).await;
    let mute = ["ACL", "SETUSER", "app", "-publish"];
    server.command(&mute).await.expect("ACL");
    let connections = proxy.connections();
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let granted = waiter.await.expect("a task");
    assert_eq!(proxy.connections(), connections);
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_message_that_never_was_is_found_by_the_sign_of_life() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let theirs = client(&server.url()).await;
    let guard = lock(&mine, "a").await;
    let waiter = tokio::spawn(async move { lock(&theirs, "a").await });
    waiting(&mine, "a", 1).await;
    // Somebody deletes the key by hand: no release, no message.
    server.command(&["DEL", "dlock:{a}"]).await.expect("DEL");
    let granted = waiter.await.expect("a task");
    assert_eq!(
        guard.release().await.expect("release"),
        Released::AlreadyLost
    );
    assert_eq!(granted.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_password_that_was_wrong_for_a_moment_is_forgiven() {
    let acl = |password: &str| {
        format!("user default on nopass ~* &* +@all\nuser app on >{password} ~* &* +@all\n")
    };
    let server = RedisServer::start_with(Redis {
        acl: Some(acl("right")),
        ..Redis::default()
    })
    .await
    .expect("redis");
    let url = server.url().replace("redis://", "redis://app:right@");
    let locks = client(&url).await;
    let _ = lock(&locks, "a").await.release().await;
    server
        .command(&["ACL", "SETUSER", "app", "resetpass", ">other"])
        .await
        .expect("ACL");
    server
        .command(&["CLIENT", "KILL", "USER", "app"])
        .await
        .expect("kill");
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("another password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error:?} {error}").contains("right"), "{error:?}");
    server
        .command(&["ACL", "SETUSER", "app", "resetpass", ">right"])
        .await
        .expect("ACL");
    let guard = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect("the right password")
        .expect("free");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn waiters_survive_a_restart_of_the_server() {
    let server = RedisServer::start().await.expect("redis");
    let mine = client(&server.url()).await;
    let holder = lock(&mine, "a").await;
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let theirs = client_with(
            &server.url(),
            Settings::new().retry_unreachable_for(seconds(30)),
        )
        .await;
        waiters.spawn(async move {
            let guard = theirs
                .mutex("a")
                .expect("a name")
                .lock()
                .await
                .expect("the lock");
            guard.release().await.expect("release")
        });
    }
    waiting(&mine, "a", 5).await;
    server.kill();
    server.restart().await.expect("restart");
    // The hold and the queue are gone; everybody comes back and is served.
    while let Some(released) = waiters.join_next().await {
        assert_ne!(released.expect("a task"), Released::AlreadyLost);
    }
    drop(holder);
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_of_everything_leaves_nothing() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    let locks = client_with(
        &through(&server, &proxy),
        Settings::new().retry_unreachable_for(seconds(30)),
    )
    .await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..40 {
                    let guard = locks
                        .mutex(format!("cut:{}", n % 3))
                        .expect("a name")
                        .lock()
                        .await
                        .expect("the lock");
                    let _ = guard.release().await.expect("release");
                }
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(15)).await;
        proxy.reset_all().await;
    }
    for task in tasks {
        task.await.expect("a task");
    }
    locks.close().await.expect("close");
    assert_eq!(residue(&server).await, Vec::<String>::new());
}

/// The known hole of asynchronous replication, and what the fencing token makes of it.
#[tokio::test]
async fn a_hold_that_was_not_replicated_is_lost_with_the_master_and_the_token_protects() {
    let master = RedisServer::start().await.expect("redis");
    let line = FaultProxy::start(master.addr()).await.expect("proxy");
    let replica = follow(&master, line.addr().port()).await;
    let first = client(&master.url()).await;
    // The replica hears nothing any more; the master does not know yet.
    line.black_hole(Direction::Both);
    let old = lock(&first, "a").await;
    master.kill();
    promote(&replica).await;

    let redis = backend(&replica.url()).await;
    let second = dlock_core::Locks::new(redis.clone()).expect("defaults");
    let new = second
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect("an answer");
    let new = new.expect("the hole: the hold never got here");
    assert!(old.is_held(), "the first still believes that it holds");
    let (old, new) = (old.token().expect("fencing"), new.token().expect("fencing"));
    assert!(new > old);
    assert!(redis.fenced_set("stock", "new", new).await.expect("write"));
    assert!(
        !redis
            .fenced_set("stock", "old", old)
            .await
            .expect("an answer"),
        "the stale write got through"
    );
}

#[tokio::test]
async fn with_replicas_asked_for_a_hold_that_was_not_replicated_does_not_count() {
    let master = RedisServer::start().await.expect("redis");
    let replica = follow(&master, master.port()).await;
    let url = format!("{}?replicas=1&replicas_timeout=300ms", master.url());
    let locks = client(&url).await;
    let guard = lock(&locks, "a").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    replica.freeze();
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("not replicated");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    replica.thaw();
    let guard = lock_after_trouble(&locks, "a").await;
    // It is at the replica when the acquire returns, so it survives this fail-over.
    let token = guard.token();
    master.kill();
    promote(&replica).await;
    let other = client(&replica.url()).await;
    assert!(
        other
            .mutex("a")
            .expect("a name")
            .try_lock()
            .await
            .expect("an answer")
            .is_none()
    );
    assert_eq!(
        other.inspect("a").await.expect("inspect").holders[0].token,
        token
    );
}

async fn follow(master: &RedisServer, port: u16) -> RedisServer {
    let replica = RedisServer::start_with(Redis {
        replica_of: Some(port),
        ..Redis::default()
    })
    .await
    .expect("a replica");
    integration_tests::until("the replica is in step", SOON, || async {
        let set = master
            .commands(&[
                &["SET", "in-step", "1", "PX", "60000"],
                &["WAIT", "1", "200"],
            ])
            .await?;
        match set.last() {
            Some(integration_tests::Reply::Number(1)) => Ok(()),
            other => Err(integration_tests::Error::answer(
                "WAIT",
                format!("{other:?}"),
            )),
        }
    })
    .await
    .expect("in step");
    replica
}

async fn promote(replica: &RedisServer) {
    replica
        .command(&["REPLICAOF", "NO", "ONE"])
        .await
        .expect("promote");
}
