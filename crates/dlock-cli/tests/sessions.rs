//! The stores whose locks live in sessions, etcd and ZooKeeper, as a user meets them: every command, a server that is lost, wrong
//! addresses and passwords. Each test is for both.
#![cfg(all(feature = "etcd", feature = "zk"))]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use std::sync::OnceLock;

use common::{
    World, block_on, complaint, diagnosis, found, is_running, sells_exactly, text, until, wait_for,
};
use integration_tests::{Etcd, EtcdServer, ZooKeeper, ZooKeeperServer};
use rustix::process::Signal;

/// The servers that the tests of this file share. A test takes names of its own.
fn servers() -> &'static (EtcdServer, ZooKeeperServer) {
    static SHARED: OnceLock<(EtcdServer, ZooKeeperServer)> = OnceLock::new();
    SHARED.get_or_init(|| {
        (
            wait_for(EtcdServer::start()),
            wait_for(ZooKeeperServer::start()),
        )
    })
}

fn shared(parameters: &str) -> [World; 2] {
    let (etcd, zk) = servers();
    [etcd.url(), zk.url()].map(|url| World::of(url + parameters))
}

#[test]
fn a_lock_is_held_seen_and_given_back() {
    for world in shared("") {
        let mut holder = world.start(
            &[],
            "seen:1",
            "echo $DLOCK_TOKEN $DLOCK_BACKEND; exec sleep 1000",
        );
        let said = holder.line();
        let (token, backend) = said.split_once(' ').unwrap();
        assert_eq!(backend, world.url());
        let waiter = world.start(&[], "seen:1", "echo $DLOCK_TOKEN");
        until("waiting", || world.waiters("seen:1") == 1);
        let all = world.json(&["ls", "--json", "seen:"]);
        assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
        assert_eq!(all[0]["holders"][0]["token"].to_string(), token);
        let pid = holder.pid().as_raw_nonzero().to_string();
        let label = all[0]["holders"][0]["label"].as_str().unwrap();
        assert!(label.ends_with(&pid), "{label}");
        let shown = text(&world.run(&["inspect", "seen:1"]).stdout);
        assert!(
            shown.contains("seen:1 is held") && shown.contains("waiter"),
            "{shown}"
        );
        let shown = text(&world.run(&["top", "-n", "1", "seen:"]).stdout);
        assert!(shown.contains("1 locks, 1 holders, 1 waiters"), "{shown}");
        let busy = world.run(&["run", "--no-wait", "seen:1", "--", "true"]);
        assert_eq!(complaint(&busy).0, 75);
        holder.send(Signal::TERM);
        assert_eq!(holder.signal(), 15);
        let next: u64 = waiter.line().parse().unwrap();
        assert!(next > token.parse().unwrap(), "{next} after {token}");
        until("free", || world.holders("seen:1") == 0);
    }
}

#[test]
fn a_lock_that_is_broken_ends_the_command_with_80_and_lets_the_next_in() {
    for world in shared("?session=2s") {
        let mut holder = world.start(&[], "broken", "echo $$; exec sleep 1000");
        let command = holder.pid_line();
        let mut next = world.start(&[], "broken", "echo mine");
        until("waiting", || world.waiters("broken") == 1);
        let output = world.run(&["break", "--yes", "broken"]);
        assert_eq!(text(&output.stdout), "broken was freed\n");
        assert_eq!(holder.code(), 80);
        let said = holder.stderr();
        assert!(said.contains("lost") && said.lines().count() == 1, "{said}");
        assert!(!is_running(command));
        next.expect("mine");
        assert_eq!(next.code(), 0);
    }
}

#[test]
fn a_signal_while_waiting_leaves_the_line() {
    for world in shared("") {
        let holder = world.start(&[], "line", "echo in; exec sleep 1000");
        holder.expect("in");
        let mut waiter = world.start(&[], "line", "echo never");
        until("waiting", || world.waiters("line") == 1);
        waiter.send(Signal::INT);
        assert_eq!(waiter.signal(), 2);
        assert_eq!(world.waiters("line"), 0);
    }
}

#[test]
fn readers_and_permits_share() {
    for world in shared("") {
        let first = world.start(&["--shared"], "read", "echo in; exec sleep 1000");
        first.expect("in");
        let output = world.run(&["run", "--no-wait", "--shared", "read", "--", "true"]);
        assert_eq!(output.status.code(), Some(0));
        let output = world.run(&["run", "--no-wait", "read", "--", "true"]);
        assert_eq!(output.status.code(), Some(75));
        let permit = world.start(&["--permits", "2"], "permit", "echo in; exec sleep 1000");
        permit.expect("in");
        let output = world.run(&["run", "--no-wait", "--permits", "2", "permit", "--", "true"]);
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn the_sale_is_exact_with_the_stock_in_the_store_and_leaves_nothing() {
    for world in shared("") {
        sells_exactly(&world);
    }
    let (etcd, zk) = servers();
    let keys = wait_for(etcd.etcdctl(&["get", "dlock-demo", "--prefix", "--keys-only"]));
    assert_eq!(keys.trim(), "");
    let ephemeral = wait_for(zk.four_letter_word("dump"));
    assert!(!ephemeral.contains("dlock-demo"), "{ephemeral}");
}

#[test]
fn doctor_looks_at_an_etcd() {
    let [world, _] = shared("?session=1s");
    let (_, findings) = diagnosis(&world);
    let (level, members) = found(&findings, "members");
    assert_eq!(level, "note");
    assert!(members.contains("one server"), "{members}");
    assert_eq!(found(&findings, "alarms"), ("good", "none"));
    let (level, size) = found(&findings, "database");
    assert!(
        level == "good" && size.ends_with("MiB of 2048 MiB"),
        "{size}"
    );
    assert!(found(&findings, "version").1.contains(" runs 3."));
    assert!(found(&findings, "access").1.contains("whoever reaches"));
    assert_eq!(found(&findings, "session time"), ("good", "1s"));
}

#[test]
fn an_etcd_that_is_full_says_so_in_one_line() {
    let mut settings = Etcd::default();
    settings.args = vec!["--quota-backend-bytes".to_owned(), "65536".to_owned()];
    let server = wait_for(EtcdServer::start_with(settings));
    let large = "x".repeat(30_000);
    let put = ["put", "--command-timeout=25s", "a", &large];
    // What was written counts when it is on the disk, so how many are taken is the disk's affair.
    common::until("the refusal that raises the alarm", || {
        match block_on(server.etcdctl(&put)) {
            Ok(_) => false,
            Err(refused) => {
                assert!(refused.to_string().contains("space exceeded"), "{refused}");
                true
            }
        }
    });
    let alarms = wait_for(server.etcdctl(&["alarm", "list", "--command-timeout=25s"]));
    assert!(alarms.contains("NOSPACE"), "{alarms}");
    // The one line shall be etcd's refusal, and not that a busy machine was late.
    let patient = "?connect_timeout=25s&answer_timeout=20s&session=60s";
    let output = World::of(server.url() + patient).run(&["doctor"]);
    // Nothing can be locked there, and the one line says why.
    let (code, line) = complaint(&output);
    assert_eq!(code, 69, "{line}");
    assert!(line.contains("space"), "{line}");
}

#[test]
fn doctor_looks_at_a_zookeeper() {
    let [_, world] = shared("?session=90s");
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 1, "it does not sync its log: {findings:?}");
    assert_eq!(found(&findings, "persistence").0, "unsafe");
    assert!(found(&findings, "members").1.contains("one server"));
    assert!(found(&findings, "version").1.contains(" runs 3."));
    assert!(found(&findings, "access").1.contains("in /dlock"));
    let (level, time) = found(&findings, "session time");
    assert_eq!(level, "note");
    assert!(time.contains("grants 1m"), "{time}");
}

#[test]
fn a_zookeeper_that_syncs_its_log_and_knows_its_users_is_safe() {
    let mut settings = ZooKeeper::default();
    settings.sync = true;
    let server = wait_for(ZooKeeperServer::start_with(settings));
    let at = |login: &str| World::of(format!("zk://{login}{}", server.addr()));
    let world = at("locker:s3cret@");
    let (code, findings) = diagnosis(&world);
    assert_eq!(code, 0, "{findings:?}");
    assert_eq!(found(&findings, "persistence").0, "good");
    assert_eq!(found(&findings, "access").0, "good");
    sells_exactly(&world);
    // ZooKeeper takes any name and password, and refuses what belongs to another.
    let other = at("locker:wr0ng@");
    let (code, line) = complaint(&other.run(&["run", "--no-wait", "a", "--", "true"]));
    assert_eq!(code, 69, "{line}");
    assert!(!line.contains("wr0ng"), "{line}");
    let (code, findings) = diagnosis(&other);
    assert_eq!(code, 1);
    assert_eq!(found(&findings, "permissions").0, "unsafe");
}

/// A server where `locker` with the password `s3cret` may use keys that start with `dlock/`, and `nobody` none.
fn guarded() -> EtcdServer {
    let server = wait_for(EtcdServer::start());
    for words in [
        "user add root:r00t",
        "user grant-role root root",
        "role add locks",
        "role grant-permission locks --prefix=true readwrite dlock/",
        "user add locker:s3cret",
        "user grant-role locker locks",
        "user add nobody:s3cret",
        "auth enable",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        wait_for(server.etcdctl(&words));
    }
    server
}

#[test]
fn an_etcd_with_users_lets_in_only_those_it_knows() {
    let server = guarded();
    let at = |login: &str| World::of(format!("etcd://{login}{}", server.addr()));
    let world = at("locker:s3cret@");
    let shown = text(
        &world
            .run(&["run", "a", "--", "sh", "-c", "echo $DLOCK_BACKEND"])
            .stdout,
    );
    assert_eq!(shown, format!("etcd://locker@{}\n", server.addr()));
    for login in ["locker:wr0ng@", "stranger:wr0ng@"] {
        let world = at(login);
        for command in [
            &["ls"][..],
            &["doctor"],
            &["demo"],
            &["run", "a", "--", "true"],
        ] {
            let (code, line) = complaint(&world.run(command));
            assert_eq!(code, 69, "{line}");
            assert!(!line.contains("wr0ng"), "{line}");
        }
    }
    let (code, findings) = diagnosis(&at("nobody:s3cret@"));
    assert_eq!(code, 1);
    assert_eq!(found(&findings, "permissions").0, "unsafe");
    assert_eq!(found(&diagnosis(&world).1, "access").0, "good");
    // The stock would be a key that the user may not write.
    let args = "demo --json --stock 20 --workers 2 --loops 10 --processes 2";
    let args: Vec<&str> = args.split(' ').collect();
    let output = world.run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(
        said.contains("the stock is a file") && said.lines().count() == 1,
        "{said}"
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["sold"], &report["remaining"]),
        (&20.into(), &0.into())
    );
}

#[test]
fn a_server_that_was_killed_ends_the_command_with_80() {
    let etcd = wait_for(EtcdServer::start());
    let zk = wait_for(ZooKeeperServer::start());
    let worlds = [etcd.url(), zk.url()].map(|url| World::of(format!("{url}?session=2s")));
    // It ignores SIGTERM, so it must be killed before the session can end.
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let mut running = worlds.map(|world| world.start(&["--grace", "300ms"], "a", script));
    let commands = running.each_ref().map(|running| running.pid_line());
    etcd.kill();
    zk.kill();
    for running in &mut running {
        assert_eq!(running.code(), 80);
        assert!(running.stderr().contains("lost"));
    }
    assert!(!commands.into_iter().any(is_running));
}

#[test]
fn a_server_that_hangs_ends_the_command_with_80() {
    let etcd = wait_for(EtcdServer::start());
    let zk = wait_for(ZooKeeperServer::start());
    let worlds = [etcd.url(), zk.url()].map(|url| World::of(format!("{url}?session=2s")));
    let mut running = worlds.map(|world| world.start(&[], "a", "echo $$; exec sleep 1000"));
    let commands = running.each_ref().map(|running| running.pid_line());
    etcd.freeze();
    zk.freeze();
    for running in &mut running {
        assert_eq!(running.code(), 80);
    }
    assert!(!commands.into_iter().any(is_running));
}

#[test]
fn when_dlock_is_killed_the_session_frees_the_lock() {
    for world in shared("?session=2s") {
        let holder = world.start(&[], "killed", "echo $$; exec sleep 1000");
        let command = holder.pid_line();
        let mut next = world.start(&[], "killed", "echo mine");
        until("waiting", || world.waiters("killed") == 1);
        holder.send(Signal::KILL);
        next.expect("mine");
        assert!(!is_running(command));
        assert_eq!(next.code(), 0);
    }
}

#[test]
fn a_store_that_is_not_there_is_69_and_a_wrong_url_is_64() {
    for (url, expected) in [
        ("etcd://127.0.0.1:1", 69),
        ("etcd://127.0.0.1:1,127.0.0.1:2", 69),
        ("etcds://127.0.0.1:1", 69),
        ("zk://127.0.0.1:1?connect_timeout=300ms", 69),
        ("zk://127.0.0.1:1,127.0.0.1:2?connect_timeout=300ms", 69),
        ("etcd://", 64),
        ("etcd://me@h", 64),
        ("etcd://h/path", 64),
        ("etcd://h?leaze=3s", 64),
        ("zk:", 64),
        ("zk://h?session=1ms", 64),
        ("zk://h?folder=", 64),
        ("zks://h?ca=/no/such/file", 64),
    ] {
        let world = World::of(url);
        for command in [
            &["ls"][..],
            &["doctor"],
            &["demo"],
            &["run", "a", "--", "true"],
        ] {
            let (code, line) = complaint(&world.run(command));
            assert_eq!(code, expected, "{url}: {line}");
        }
    }
}
