//! Who watches an election is told of a change by the stores that can tell.
#![allow(
    clippy::expect_used,
    reason = "a test ends where its expectation breaks"
)]

use std::pin::pin;
use std::time::Duration;

use dlocks::Locks;
use futures::StreamExt;
use integration_tests::{EtcdServer, ZooKeeperServer};

/// Longer than the test may take: what is seen was pushed.
const NEVER: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(30);

async fn changes_are_pushed(leads: &Locks, watches: &Locks) {
    let election = leads.election("e").expect("a name");
    // A lock that nobody has used yet cannot be watched everywhere.
    let first = election.campaign("zero").await.expect("elected");
    let _ = first.release().await.expect("release");
    let watched = watches.election("e").expect("a name").look_every(NEVER);
    let mut leaders = pin!(watched.observe());
    let mut next = async || {
        let news = tokio::time::timeout(LIMIT, leaders.next()).await;
        let leader = news.expect("pushed").expect("a stream").expect("a look");
        leader.map(|leader| leader.value)
    };
    assert_eq!(next().await, None);
    for value in ["one", "two"] {
        let leadership = election.campaign(value).await.expect("elected");
        assert_eq!(next().await.as_deref(), Some(value));
        let heir = {
            let election = election.clone();
            tokio::spawn(async move { election.campaign("heir").await })
        };
        let _ = leadership.release().await.expect("release");
        let heir = heir.await.expect("no panic").expect("elected");
        // The moment between the two may be seen, or not.
        let mut seen = next().await;
        if seen.is_none() {
            seen = next().await;
        }
        assert_eq!(seen.as_deref(), Some("heir"));
        drop(heir);
        assert_eq!(next().await, None);
    }
}

#[tokio::test]
async fn etcd_pushes_changes_of_the_leader() {
    let server = EtcdServer::start().await.expect("a server");
    let url = format!("etcd://{}?session=60s", server.addr());
    let connect = || async { dlocks::connect(&url).await.expect("a client") };
    changes_are_pushed(&connect().await, &connect().await).await;
}

#[tokio::test]
async fn zookeeper_pushes_changes_of_the_leader() {
    let server = ZooKeeperServer::start().await.expect("a server");
    let url = format!("zk://{}?session=20s", server.addr());
    let connect = || async { dlocks::connect(&url).await.expect("a client") };
    changes_are_pushed(&connect().await, &connect().await).await;
}
