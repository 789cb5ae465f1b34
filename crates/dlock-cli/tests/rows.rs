//! MySQL and MariaDB as a user meets them.
#![cfg(feature = "mysql")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::OnceLock;

use common::{
    World, complaint, diagnosis, found, is_running, sells_exactly, text, until, wait_for,
};
use integration_tests::{Flavor, MySql, MySqlServer};
use rustix::process::Signal;

const MODES: [&str; 4] = ["lease", "unique", "session", "advisory"];

/// The server that the tests of this file share. A test takes names of its own.
fn server() -> &'static MySqlServer {
    server_of(Flavor::MariaDb)
}

fn server_of(flavor: Flavor) -> &'static MySqlServer {
    static MARIADB: OnceLock<MySqlServer> = OnceLock::new();
    static MYSQL: OnceLock<MySqlServer> = OnceLock::new();
    let shared = match flavor {
        Flavor::MariaDb => &MARIADB,
        Flavor::MySql => &MYSQL,
    };
    shared.get_or_init(|| wait_for(flavor.start()))
}

#[test]
fn a_lock_is_held_seen_broken_and_given_back() {
    let short = &["--ttl", "900ms"][..];
    for flavor in Flavor::ALL.into_iter().filter(|flavor| flavor.is_tested()) {
        for (mode, ttl) in [
            ("lease", short),
            ("unique", short),
            // Their holds last as long as their connection.
            ("session", &[]),
            ("advisory", &[]),
        ] {
            held_seen_broken_and_given_back(server_of(flavor), mode, ttl);
        }
    }
}

fn held_seen_broken_and_given_back(server: &MySqlServer, mode: &str, ttl: &[&str]) {
    let url = format!("{}?mode={mode}&session_validity=1s", server.url());
    let world = World::of(&url);
    let mut holder = world.start(ttl, "seen", "echo $DLOCK_BACKEND; echo $$; exec sleep 1000");
    let backend = holder.line();
    assert!(
        backend.starts_with("mysql://root@") && backend.contains("/dlock"),
        "{backend}"
    );
    let command = holder.pid_line();
    let all = world.json(&["ls", "--json", "seen"]);
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    assert_eq!(world.holders("seen"), 1);
    let shown = text(&world.run(&["top", "-n", "1", "seen"]).stdout);
    assert!(shown.contains("1 locks, 1 holders"), "{shown}");
    assert_eq!(
        complaint(&world.run(&["run", "--no-wait", "seen", "--", "true"])).0,
        75
    );
    assert_eq!(
        text(&world.run(&["break", "--yes", "seen"]).stdout),
        "seen was freed\n"
    );
    assert_eq!(holder.code(), 80);
    assert!(!is_running(command));
    let mut next = world.start(&[], "seen", "echo in; exec sleep 1000");
    next.expect("in");
    next.send(Signal::TERM);
    assert_eq!(next.signal(), 15);
    until("free", || world.holders("seen") == 0);
}

#[test]
fn the_sale_is_exact_with_the_stock_in_a_row_and_leaves_no_table() {
    for mode in MODES {
        sells_exactly(&World::of(format!("{}?mode={mode}", server().url())));
    }
    let tables = wait_for(server().sql("SHOW TABLES LIKE 'dlock\\_demo%'"));
    assert_eq!(tables, "");
}

#[test]
fn doctor_looks_at_the_log() {
    let (code, findings) = diagnosis(&World::of(server().url()));
    assert_eq!(code, 0, "{findings:?}");
    for check in ["version", "persistence", "replicas", "clock"] {
        assert_eq!(found(&findings, check).0, "good", "{findings:?}");
    }
    let careless = wait_for(MySqlServer::start_with(MySql {
        args: vec!["--innodb-flush-log-at-trx-commit=2".to_owned()],
        ..MySql::default()
    }));
    let (code, findings) = diagnosis(&World::of(careless.url()));
    assert_eq!(code, 1);
    assert_eq!(found(&findings, "persistence").0, "unsafe");
}

/// It must not say "good" of what it cannot know.
#[test]
fn doctor_knows_what_it_does_not_see() {
    for flavor in Flavor::ALL.into_iter().filter(|flavor| flavor.is_tested()) {
        let args = ["--log-bin=log", "--sync-binlog=0", "--server-id=1"];
        let logged = wait_for(flavor.start_with(&args));
        let (code, findings) = diagnosis(&World::of(logged.url()));
        assert_eq!(code, 1, "{findings:?}");
        assert_eq!(found(&findings, "persistence").0, "unsafe");
        assert!(found(&findings, "persistence").1.contains("sync_binlog"));
        // There is a log for replicas, and none has come for it now.
        assert_eq!(found(&findings, "replicas").0, "note", "{findings:?}");
        let replica = wait_for(flavor.start_with(&["--server-id=2"]));
        let port = logged.port();
        let follow = match flavor {
            Flavor::MariaDb => format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root', \
                 MASTER_PASSWORD = 'dlock'; START SLAVE"
            ),
            Flavor::MySql => format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root', \
                 SOURCE_PASSWORD = 'dlock', GET_SOURCE_PUBLIC_KEY = 1; START REPLICA"
            ),
        };
        wait_for(replica.sql(&follow));
        until("the replica shows", || {
            let (_, findings) = diagnosis(&World::of(logged.url()));
            found(&findings, "replicas").0 == "unsafe"
        });
        // A user who may not see the threads of others sees no replica.
        let user = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'; GRANT ALL ON dlock.* TO app@'127.0.0.1'";
        wait_for(logged.sql(user));
        let url = logged.url().replace("root:dlock@", "app:app@");
        let (_, findings) = diagnosis(&World::of(url));
        let (level, text) = found(&findings, "replicas");
        assert_eq!(level, "note", "{text}");
        assert!(text.contains("PROCESS"), "{text}");
    }
}

#[test]
fn a_server_that_was_killed_ends_the_command_with_80() {
    let server = wait_for(MySqlServer::start());
    let mut running: Vec<_> = MODES
        .map(|mode| {
            let world = World::of(format!("{}?mode={mode}&session_validity=2s", server.url()));
            let ttl = match mode {
                "lease" | "unique" => &["--ttl", "2s"][..],
                _ => &[],
            };
            let running = world.start(ttl, "a", "echo $$; exec sleep 1000");
            let command = running.pid_line();
            (mode, world, running, command)
        })
        .into();
    server.kill();
    for (mode, _, running, command) in &mut running {
        assert_eq!(running.code(), 80, "{mode}");
        assert!(!is_running(*command), "{mode}");
    }
}

#[test]
fn a_server_that_is_not_there_or_refuses_us_is_69_and_a_wrong_url_is_64() {
    let wrong = server().url().replace(":dlock@", ":wr0ng@");
    for (url, expected) in [
        ("mysql://root@127.0.0.1:1/dlock", 69),
        (wrong.as_str(), 69),
        ("mysql://root@127.0.0.1:1", 64),
        ("mysql://h/db?leaze=3s", 64),
        ("mysql://h/db?mode=loud", 64),
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
            assert!(!line.contains("wr0ng"), "{line}");
        }
    }
}
