//! Locks over a client that the application has already.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where its expectation breaks"
)]

mod etcd_support;

use std::time::Duration;

use dlock_core::backend::Backend;
use dlock_core::{ErrorKind, Locks, Released, Settings};
use dlock_etcd::Config;
use dlock_etcd::client::etcd_client::{Client, ConnectOptions};
use etcd_support::*;
use integration_tests::{Direction, EtcdServer, FaultProxy};

/// As the application has it.
async fn application(proxy: &FaultProxy) -> Client {
    let options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(5))
        .with_require_leader(true);
    let at = proxy.addr().to_string();
    let mut client = Client::connect([at], Some(options))
        .await
        .expect("a client");
    client.put("mine", "data", None).await.expect("a put");
    client
}

fn config(proxy: &FaultProxy, parameters: &str) -> Config {
    Config::from_url(&url([proxy.addr()], parameters)).expect("a good URL")
}

async fn freed(guard: dlock_core::Guard) {
    let released = guard.release().await.expect("the store answers");
    assert_eq!(released, Released::Freed);
}

/// Watches, signs of life and requests are streams of the one connection that is there.
#[tokio::test]
async fn sharing_costs_the_server_no_connection() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let mut client = application(&proxy).await;
    assert_eq!(proxy.connections(), 1, "the application's own");
    let given = config(&proxy, "session=3s").connect_over(client.clone());
    let locks = Locks::new(given.await.expect("a backend")).expect("defaults");
    let other = etcd_support::client(&url([server.addr()], "session=30s")).await;
    for (first, second) in [(&locks, &other), (&other, &locks)] {
        let guard = lock(first, "a").await;
        let waits = waiter(second, "a");
        waiting(first, "a", 1).await;
        freed(guard).await;
        let next = soon(waits).await.expect("no panic").expect("the lock");
        freed(next).await;
    }
    let names = (0..20).map(|n| format!("many:{n}"));
    let guards = names.map(|name| {
        let locks = locks.clone();
        async move { lock(&locks, &name).await }
    });
    let guards = futures::future::join_all(guards).await;
    renewed(&locks).await;
    assert!(guards.iter().all(dlock_core::Guard::is_held));
    assert_eq!(proxy.connections(), 1, "and no more");
    drop(guards);
    // The client is the application's, and outlives the locks.
    locks.close().await.expect("closed");
    client.get("mine", None).await.expect("it goes on");
    assert_eq!(proxy.connections(), 1);
}

/// The client connects again by itself; holds and places outlive that.
#[tokio::test]
async fn broken_connection_costs_neither_hold_nor_place() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let client = application(&proxy).await;
    let given = config(&proxy, "session=10s").connect_over(client);
    let locks = Locks::new(given.await.expect("a backend")).expect("defaults");
    let other = etcd_support::client(&url([server.addr()], "session=30s")).await;
    let held = lock(&locks, "held").await;
    let before = lock(&other, "a").await;
    let waits = waiter(&locks, "a");
    waiting(&other, "a", 1).await;
    let third = etcd_support::client(&url([server.addr()], "session=30s")).await;
    let behind = waiter(&third, "a");
    waiting(&other, "a", 2).await;
    proxy.reset_all().await;
    renewed(&locks).await;
    assert!(held.is_held());
    let waiters = other.inspect("a").await.expect("the store answers").waiters;
    assert_eq!(waiters.len(), 2, "it has its place");
    freed(before).await;
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert!(!behind.is_finished(), "the place was kept");
    freed(next).await;
    freed(soon(behind).await.expect("no panic").expect("the lock")).await;
    freed(held).await;
}

/// Our own limits hold also where the client has none.
#[tokio::test]
async fn silence_is_told_in_time() {
    let server = EtcdServer::start().await.expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let client = application(&proxy).await;
    let given = config(
        &proxy,
        "session=30s&answer_timeout=300ms&connect_timeout=1s",
    );
    let backend = given.clone().connect_over(client.clone()).await;
    let backend = backend.expect("a backend");
    let own = given.clone().connect().await.expect("a backend");
    assert_eq!(backend.identity(), own.identity(), "they share their locks");
    let locks = Locks::builder(backend).settings(Settings::new().trip_timeout(SOON));
    let locks = locks.build().expect("good settings");
    proxy.pause(Direction::ToClient);
    let tried = soon(locks.mutex("a").expect("a name").try_lock()).await;
    let error = tried.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let error = soon(given.connect_over(client))
        .await
        .expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    proxy.resume();
}
