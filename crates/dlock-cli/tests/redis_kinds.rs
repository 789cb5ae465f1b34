//! Redis in its other shapes: TLS, Sentinel and Cluster.
#![cfg(feature = "redis")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{World, complaint, diagnosis, found, sells_exactly, text, wait_for};
use integration_tests::{Redis, RedisCluster, RedisServer, SentinelGroup, Tls};

#[test]
fn over_tls() {
    let world = World::new();
    let files = ["cert.pem", "key.pem"].map(|name| world.path(name));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&files[0], made.cert.pem()).unwrap();
    std::fs::write(&files[1], made.signing_key.serialize_pem()).unwrap();
    let server = wait_for(RedisServer::start_with(Redis {
        durable: true,
        tls: Some(Tls {
            certificate: files[0].clone(),
            key: files[1].clone(),
            authority: files[0].clone(),
        }),
        ..Redis::default()
    }));
    let plain = format!("rediss://localhost:{}", server.tls_port());
    let trusted = World::of(format!("{plain}?ca={}", files[0].display()));
    sells_exactly(&trusted);
    let (code, findings) = diagnosis(&trusted);
    assert_eq!(code, 0, "{findings:?}");
    assert_eq!(found(&findings, "persistence").0, "good");
    let (code, line) = complaint(&World::of(plain).run(&["ls"]));
    assert_eq!(code, 69);
    assert!(line.contains("certificate"), "{line}");
}

#[test]
fn by_sentinels() {
    let group = wait_for(SentinelGroup::start());
    let hosts: Vec<String> = group
        .sentinels()
        .iter()
        .map(|sentinel| sentinel.addr().to_string())
        .collect();
    let url = format!(
        "redis+sentinel://{}/{}",
        hosts.join(","),
        SentinelGroup::MASTER_NAME
    );
    let world = World::of(&url);
    sells_exactly(&world);
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 1);
    let (level, replicas) = found(&findings, "replicas");
    assert_eq!(level, "unsafe");
    assert!(replicas.contains("?replicas=1"), "{replicas}");
    let (_, findings) = diagnosis(&World::of(format!("{url}?replicas=1")));
    assert_eq!(found(&findings, "replicas").0, "note");
    assert_eq!(found(&findings, "sentinels").0, "good", "{findings:?}");
    assert_eq!(found(&findings, "fail-over").0, "good");
    // One that is not there is told of, and what the others say still counts.
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let more = url.replacen("://", &format!("://{nobody},"), 1);
    let (_, findings) = diagnosis(&World::of(more));
    let silent = format!("{nobody} does not answer");
    let told = findings.iter().any(|(.., text)| text.contains(&silent));
    assert!(told, "{findings:?}");
    assert_eq!(found(&findings, "fail-over").0, "good");
    let wrong = url.replace(SentinelGroup::MASTER_NAME, "nobody");
    let (code, line) = complaint(&World::of(wrong).run(&["ls"]));
    assert_eq!(code, 64);
    assert!(line.contains("nobody"), "{line}");
}

#[test]
fn in_a_cluster() {
    let cluster = wait_for(RedisCluster::start());
    let hosts: Vec<String> = cluster
        .nodes()
        .iter()
        .map(|node| node.addr().to_string())
        .collect();
    let world = World::of(format!("redis+cluster://{}", hosts.join(",")));
    sells_exactly(&world);
    // One of three keeps what it is told.
    let durable = &cluster.nodes()[1];
    wait_for(durable.command(&["CONFIG", "SET", "appendonly", "yes"]));
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 1);
    let told: Vec<_> = findings
        .iter()
        .filter(|(check, ..)| check == "persistence")
        .collect();
    assert_eq!(told.len(), 3, "{told:?}");
    let kept = durable.addr().to_string();
    let level = |own: bool| {
        let mut of = told
            .iter()
            .filter(|(.., text)| text.starts_with(&kept) == own);
        of.next().unwrap().1.clone()
    };
    assert_eq!(
        (level(true).as_str(), level(false).as_str()),
        ("good", "unsafe")
    );
    assert_eq!(
        findings
            .iter()
            .filter(|(check, ..)| check == "version")
            .count(),
        1
    );
    let output = world.run(&["run", "a", "--", "sh", "-c", "echo $DLOCK_BACKEND"]);
    assert!(text(&output.stdout).starts_with("redis+cluster://"));
}

#[cfg(feature = "redlock")]
#[test]
fn at_a_quorum() {
    let mut servers: Vec<_> = (0..3).map(|_| wait_for(RedisServer::start())).collect();
    let hosts: Vec<String> = servers
        .iter()
        .map(|server| server.addr().to_string())
        .collect();
    let hosts = hosts.join(",");
    // They have just been started, which a quorum minds unless they keep every write.
    let young = World::of(format!("redlock://{hosts}"));
    let (code, line) = complaint(&young.run(&["run", "--no-wait", "a", "--", "true"]));
    assert_eq!(code, 69, "{line}");
    assert!(line.contains("counts again in"), "{line}");
    let world = World::of(format!("redlock://{hosts}?persistent=true"));
    servers.pop();
    let output = world.run(&["run", "a", "--", "sh", "-c", "echo $DLOCK_TOKEN"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).trim().parse::<u64>().unwrap() > 0);
    let report = world.json(&[
        "demo",
        "--json",
        "--stock",
        "40",
        "--workers",
        "4",
        "--loops",
        "10",
    ]);
    assert_eq!(
        (&report["sold"], &report["remaining"]),
        (&40.into(), &0.into())
    );
    servers.pop();
    let (code, line) = complaint(&world.run(&["run", "--no-wait", "a", "--", "true"]));
    assert_eq!(code, 69, "{line}");
}

#[test]
fn doctor_looks_at_the_clock_of_the_server() {
    let clock = integration_tests::Clock::new().unwrap();
    let settings = Redis {
        env: clock.env(),
        ..Redis::default()
    };
    let server = wait_for(RedisServer::start_with(settings));
    let world = World::of(server.url());
    assert_eq!(
        found(&diagnosis(&world).1, "clock"),
        ("good", "in step with ours")
    );
    clock.set(3600).unwrap();
    common::until("the clock moves", || {
        let time = wait_for(server.command(&["TIME"]));
        let shown = time
            .list()
            .first()
            .and_then(|reply| reply.text())
            .unwrap()
            .parse();
        integration_tests::Clock::check(3600, shown.unwrap()).is_ok()
    });
    let (_, findings) = diagnosis(&world);
    let (level, text) = found(&findings, "clock");
    assert_eq!(level, "note");
    assert!(text.contains("away from ours"), "{text}");
}
