//! The doctor at a quorum: every node is asked.
#![cfg(feature = "redlock")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{World, diagnosis, found, wait_for};
use integration_tests::{Redis, RedisServer};

fn start(settings: &Redis) -> RedisServer {
    wait_for(RedisServer::start_with(settings.clone()))
}

fn quorum(nodes: &[&RedisServer], parameters: &str) -> World {
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    World::of(format!("redlock://{}{parameters}", hosts.join(",")))
}

/// What is unsafe by this check.
fn dangers<'a>(findings: &'a [(String, String, String)], check: &str) -> Vec<&'a str> {
    let bad = findings
        .iter()
        .filter(|(name, level, _)| name == check && level == "unsafe");
    bad.map(|(_, _, text)| text.as_str()).collect()
}

fn durable() -> Redis {
    Redis {
        durable: true,
        ..Redis::default()
    }
}

#[test]
fn doctor_asks_every_node_of_a_quorum() {
    let nodes = [(); 3].map(|()| start(&durable()));
    let [one, two, three] = &nodes;
    let world = quorum(&[one, two, three], "?persistent=true");
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 0, "{findings:?}");
    for check in [
        "nodes",
        "independence",
        "clocks",
        "version",
        "replicas",
        "eviction",
        "restarts",
    ] {
        let (level, text) = found(&findings, check);
        assert_eq!(level, "good", "{check}: {text}");
    }
    // One goes: it is named, and none is to spare.
    three.kill();
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 0, "{findings:?}");
    let (level, text) = found(&findings, "nodes");
    assert_eq!(level, "note");
    assert!(
        text.contains(&three.addr().to_string()) && text.contains("0 may go"),
        "{text}"
    );
}

#[test]
fn doctor_warns_of_the_one_node_that_forgets() {
    let forgets = Redis {
        args: ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
            .map(str::to_owned)
            .to_vec(),
        ..Redis::default()
    };
    let nodes = [start(&durable()), start(&forgets), start(&durable())];
    let [one, two, three] = &nodes;
    let world = quorum(&[one, two, three], "?persistent=true");
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 1, "{findings:?}");
    let place = two.addr().to_string();
    for check in ["eviction", "restarts"] {
        let bad = dangers(&findings, check);
        assert_eq!(bad.len(), 1, "{check}: {bad:?}");
        assert!(bad[0].starts_with(&place), "{}", bad[0]);
    }
}

#[test]
fn doctor_warns_of_a_node_that_has_a_replica() {
    let nodes = [(); 3].map(|()| start(&durable()));
    let [one, two, three] = &nodes;
    let _copy = start(&Redis {
        replica_of: Some(two.port()),
        ..Redis::default()
    });
    let (code, findings) = diagnosis(&quorum(&[one, two, three], "?persistent=true"));
    assert_eq!(code, 1, "{findings:?}");
    let bad = dangers(&findings, "replicas");
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0].starts_with(&two.addr().to_string()), "{}", bad[0]);
}
