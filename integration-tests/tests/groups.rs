//! Groups of servers: they form, and go on without their leader.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use integration_tests::{
    EtcdCluster, RedisCluster, RedisServer, Reply, SentinelGroup, ZooKeeperEnsemble,
};

/// Writes `k` and returns when a replica has it: then it must be there after a fail-over.
async fn write_to_two(master: &RedisServer) {
    let replies = master
        .commands(&[&["SET", "k", "v"], &["WAIT", "1", "10000"]])
        .await
        .unwrap();
    assert_eq!(replies, [Reply::Text("OK".into()), Reply::Number(1)]);
}

#[tokio::test]
async fn an_etcd_cluster_goes_on_without_its_leader() {
    let cluster = EtcdCluster::start().await.unwrap();
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 3);
    let first = cluster.leader().await.unwrap();
    first.etcdctl(&["put", "k", "v"]).await.unwrap();

    first.kill();
    let second = cluster.leader_after(first).await.unwrap();
    assert_eq!(second.etcdctl(&["get", "k"]).await.unwrap(), "k\nv\n");
    second.etcdctl(&["put", "k", "w"]).await.unwrap();

    first.restart().await.unwrap();
    assert_eq!(first.etcdctl(&["get", "k"]).await.unwrap(), "k\nw\n");
}

#[tokio::test]
async fn a_zookeeper_ensemble_goes_on_without_its_frozen_leader() {
    let ensemble = ZooKeeperEnsemble::start().await.unwrap();
    assert!(ensemble.url().starts_with("zk://127.0.0.1:"));
    let first = ensemble.leader().await.unwrap();
    let followers = ensemble
        .members()
        .iter()
        .filter(|member| member.port() != first.port());
    for follower in followers {
        let answer = follower.four_letter_word("srvr").await.unwrap();
        assert!(answer.contains("Mode: follower"), "{answer}");
    }

    first.freeze();
    let second = ensemble.leader_after(first).await.unwrap();
    assert_ne!(second.port(), first.port());
    first.thaw();
    first.ready().await.unwrap();
}

#[tokio::test]
async fn sentinels_promote_the_replica_when_the_master_is_killed() {
    let group = SentinelGroup::start().await.unwrap();
    let master = group.master().await.unwrap();
    assert_eq!(master.port(), group.nodes()[0].port());
    write_to_two(master).await;

    master.kill();
    let promoted = group.master_after(master).await.unwrap();
    assert_eq!(promoted.port(), group.nodes()[1].port());
    assert_eq!(
        promoted.command(&["GET", "k"]).await.unwrap(),
        Reply::Text("v".into())
    );
}

#[tokio::test]
async fn a_redis_cluster_without_replicas_serves_what_is_left() {
    let cluster = RedisCluster::start().await.unwrap();
    assert_eq!(cluster.nodes().len(), 3);
    let lost = cluster.master_of("a").await.unwrap();
    lost.command(&["SET", "a", "1"]).await.unwrap();
    let other = cluster.master_of("b").await.unwrap();
    assert_ne!(
        lost.port(),
        other.port(),
        "the two keys lie on different nodes"
    );
    lost.kill();
    assert_eq!(
        other.command(&["SET", "b", "2"]).await.unwrap(),
        Reply::Text("OK".into())
    );
    lost.restart().await.unwrap();
    assert_eq!(cluster.master_of("a").await.unwrap().port(), lost.port());
}

#[tokio::test]
async fn a_redis_cluster_promotes_a_replica_when_a_master_is_killed() {
    let cluster = RedisCluster::start_with(1).await.unwrap();
    assert_eq!(cluster.nodes().len(), 6);
    let lost = cluster.master_of("k").await.unwrap();
    write_to_two(lost).await;
    lost.kill();
    let promoted = cluster.master_after("k", lost).await.unwrap();
    assert_eq!(
        promoted.command(&["GET", "k"]).await.unwrap(),
        Reply::Text("v".into())
    );
}
