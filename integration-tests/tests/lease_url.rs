//! `?lease=` means the same in the URL of every store.
#![allow(
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use std::time::Duration;

use dlocks::{Capability, ErrorKind, Settings};
use integration_tests::{EtcdServer, Flavor, PostgresServer, RedisServer, ZooKeeperServer};

const SEVEN: Duration = Duration::from_secs(7);

/// The client goes by the lease, and so does the store where it says how long it would keep a hold.
async fn keeps_for_seven_seconds(url: &str) {
    let sign = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{sign}lease=7s");
    let locks = dlocks::connect(&url).await.expect("a client");
    assert_eq!(locks.lease(), SEVEN, "{url}");
    let guard = locks.mutex("x").expect("a name").lock().await;
    let guard = guard.expect("a guard");
    assert!(guard.remaining().is_some_and(|left| left < SEVEN), "{url}");
    if locks.capabilities().require(&[Capability::Inspect]).is_ok() {
        let lock = locks.inspect("x").await.expect("an answer");
        for holder in lock.holders {
            assert!(holder.expires_in.is_none_or(|left| left <= SEVEN), "{url}");
        }
    }
    let _ = guard.release().await.expect("released");
    locks.close().await.expect("closed");
}

#[tokio::test]
async fn redis_and_redlock_take_it() {
    let server = RedisServer::start().await.expect("a server");
    keeps_for_seven_seconds(&server.url()).await;
    let quorum = server.url().replace("redis://", "redlock://");
    keeps_for_seven_seconds(&format!("{quorum}?few_nodes=true&persistent=true")).await;
}

#[tokio::test]
async fn etcd_takes_it_as_its_session() {
    let server = EtcdServer::start().await.expect("a server");
    keeps_for_seven_seconds(&server.url()).await;
    let error = dlocks::builder(format!("{}?lease=7s", server.url()))
        .settings(Settings::new().lease(2 * SEVEN))
        .connect()
        .await
        .expect_err("another lease than the session's");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn zookeeper_takes_it_as_its_session() {
    let server = ZooKeeperServer::start().await.expect("a server");
    keeps_for_seven_seconds(&server.url()).await;
}

#[tokio::test]
async fn mysql_takes_it_in_every_mode() {
    let server = Flavor::MariaDb.start().await.expect("a server");
    for mode in ["lease", "unique", "session", "advisory"] {
        keeps_for_seven_seconds(&format!("{}?mode={mode}", server.url())).await;
    }
}

#[tokio::test]
async fn postgres_takes_it_in_every_mode() {
    let server = PostgresServer::start().await.expect("a server");
    for mode in ["lease", "session"] {
        keeps_for_seven_seconds(&format!("{}?mode={mode}", server.url())).await;
    }
}
