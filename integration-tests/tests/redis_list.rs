//! Lists of locks among many keys of others.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Settings};
use integration_tests::{Direction, FaultProxy, RedisServer};
use redis_support::*;

#[tokio::test]
async fn millions_of_other_keys_cost_few_trips() {
    let server = RedisServer::start().await.expect("redis");
    let many = ["DEBUG", "POPULATE", "500000"];
    server.command(&many).await.expect("POPULATE");
    let locks = client(&server.url()).await;
    let guards = [lock(&locks, "a").await, lock(&locks, "b").await];
    server
        .command(&["CONFIG", "RESETSTAT"])
        .await
        .expect("RESETSTAT");
    assert_eq!(locks.list("").await.expect("list").len(), 2);
    let trips = calls(&server, "scan").await;
    assert!(trips < 200, "{trips} trips");
    drop(guards);
}

/// Each trip has its time, and the whole has none: a list takes as long as the store goes on answering.
#[tokio::test]
async fn a_list_may_take_longer_than_a_trip_and_a_silent_server_ends_it() {
    let server = RedisServer::start().await.expect("redis");
    let many = ["DEBUG", "POPULATE", "300000"];
    server.command(&many).await.expect("POPULATE");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = format!("{}?answer_timeout=1s", through(&server, &proxy));
    let settings = Settings::new().trip_timeout(Duration::from_millis(250));
    let locks = client_with(&url, settings).await;
    let guards = [lock(&locks, "a").await, lock(&locks, "b").await];
    proxy.delay(Direction::ToClient, Duration::from_millis(50));
    let start = Instant::now();
    assert_eq!(locks.list("").await.expect("list").len(), 2);
    let took = start.elapsed();
    assert!(took > Duration::from_millis(500), "too few trips: {took:?}");
    // A server that falls silent in the middle is noticed within the time of one answer.
    let list = locks.list("");
    let (_, listed) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            proxy.black_hole(Direction::Both);
        },
        tokio::time::timeout(SOON, list),
    );
    let error = listed.expect("in time").expect_err("a silent server");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    proxy.heal().await;
    drop(guards);
}
