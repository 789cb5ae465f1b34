//! Locks over a connection that the application has already.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use dlock_core::{ErrorKind, Locks, Released};
use dlock_redis::client::{Given, redis};
use dlock_redis::{Config, Style};
use integration_tests::{RedisCluster, RedisServer, Reply};
use redis_support::*;

/// How many clients the server has, the one that asks not counted.
async fn connections(server: &RedisServer) -> usize {
    match server.command(&["CLIENT", "LIST"]).await.expect("a list") {
        Reply::Text(list) => list.lines().count() - 1,
        other => panic!("CLIENT LIST says {other:?}"),
    }
}

fn application(url: &str) -> redis::Client {
    redis::Client::open(url).expect("a good URL")
}

/// Two tasks that wait for each other's release, by way of the server: the second waits in its queue and is woken by a message.
async fn hands_over(locks: &Locks, other: &Locks, name: &str) {
    let guard = lock(locks, name).await;
    let next = tokio::spawn({
        let (other, name) = (other.clone(), name.to_owned());
        async move { lock(&other, &name).await }
    });
    waiting(locks, name, 1).await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    let second = next.await.expect("no panic");
    assert!(second.is_held());
    assert_eq!(second.release().await.expect("released"), Released::Freed);
}

#[tokio::test]
async fn sharing_costs_the_server_one_connection_for_grants() {
    let server = RedisServer::start().await.expect("redis");
    let client = application(&server.url());
    let multiplexed = client.get_multiplexed_async_connection().await;
    let multiplexed = multiplexed.expect("a connection");
    let manager = client.get_connection_manager().await.expect("a manager");
    let before = connections(&server).await;
    assert_eq!(before, 2, "the application's own");
    for given in [
        Given::from(multiplexed.clone()),
        Given::from(manager.clone()),
    ] {
        let backend = config(&server.url()).connect_over(given).await;
        let locks = Locks::new(backend.expect("a backend")).expect("defaults");
        let other = client_of(&server).await;
        hands_over(&locks, &other, "ours first").await;
        hands_over(&other, &locks, "ours second").await;
        other.close().await.expect("closed");
        integration_tests::until("one for grants, made with the first wait", SOON, || async {
            match connections(&server).await {
                count if count == before + 1 => Ok(()),
                count => {
                    let count = count.to_string();
                    Err(integration_tests::Error::answer("connections", count))
                }
            }
        })
        .await
        .expect("one more");
        let all = (0..20).map(|n| {
            let locks = locks.clone();
            async move { lock(&locks, &format!("many:{n}")).await }
        });
        let guards = futures::future::join_all(all).await;
        assert_eq!(connections(&server).await, before + 1, "and no more");
        drop(guards);
        locks.close().await.expect("closed");
        integration_tests::until("the connection for grants ends", SOON, || async {
            match connections(&server).await {
                count if count == before => Ok(()),
                count => {
                    let count = count.to_string();
                    Err(integration_tests::Error::answer("connections", count))
                }
            }
        })
        .await
        .expect("it ends");
    }
}

async fn client_of(server: &RedisServer) -> Locks {
    client(&server.url()).await
}

#[tokio::test]
async fn plain_locks_need_no_connection_of_their_own() {
    let server = RedisServer::start().await.expect("redis");
    let manager = application(&server.url()).get_connection_manager().await;
    let plain = config(&server.url()).style(Style::Plain);
    let backend = plain.connect_over(manager.expect("a manager")).await;
    let locks = Locks::new(backend.expect("a backend")).expect("defaults");
    let guard = lock(&locks, "a").await;
    assert_eq!(connections(&server).await, 1, "the application's own");
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
}

/// The manager connects again by itself, and so does what grants come by; a hold goes on and a waiter keeps waiting.
#[tokio::test]
async fn both_connections_come_back_when_the_server_ends_them() {
    let server = RedisServer::start().await.expect("redis");
    let manager = application(&server.url()).get_connection_manager().await;
    let given = config(&server.url()).connect_over(manager.expect("a manager"));
    let locks = Locks::new(given.await.expect("a backend")).expect("defaults");
    let other = client_of(&server).await;
    let guard = lock(&other, "a").await;
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { lock(&locks, "a").await }
    });
    waiting(&other, "a", 1).await;
    for kind in ["normal", "pubsub"] {
        let killed = server.command(&["CLIENT", "KILL", "TYPE", kind]).await;
        killed.expect("killed");
    }
    waiting(&other, "a", 1).await;
    assert_eq!(guard.release().await.expect("released"), Released::Freed);
    assert!(waiter.await.expect("no panic").is_held());
}

#[tokio::test]
async fn a_cluster_connection_is_taken_too() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let urls = nodes.iter().map(|node| format!("redis://{node}"));
    let client = redis::cluster::ClusterClientBuilder::new(urls).retries(0);
    let connection = client
        .build()
        .expect("a client")
        .get_async_connection()
        .await;
    let config = Config::from_url(&format!("redis+cluster://{}", nodes.join(","))).expect("good");
    let other = Locks::new(config.clone().connect().await.expect("a backend")).expect("defaults");
    let backend = config.connect_over(connection.expect("a connection")).await;
    let locks = Locks::new(backend.expect("a backend")).expect("defaults");
    hands_over(&locks, &other, "a").await;
    hands_over(&other, &locks, "b").await;
}

#[tokio::test]
async fn what_blocks_the_connection_is_refused() {
    let server = RedisServer::start().await.expect("redis");
    let manager = application(&server.url()).get_connection_manager().await;
    let config = config(&server.url()).replicas(1, seconds(1));
    let outcome = config.connect_over(manager.expect("a manager")).await;
    let error = outcome.expect_err("replicas");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("blocks a connection"), "{error}");
}
