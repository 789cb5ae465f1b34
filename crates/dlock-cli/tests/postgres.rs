//! PostgreSQL as a user meets it.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::OnceLock;

use common::{
    World, complaint, diagnosis, found, is_running, sells_exactly, text, until, wait_for,
};
use integration_tests::{Postgres, PostgresServer};
use rustix::process::Signal;

/// The server that the tests of this file share. A test takes names of its own.
fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| wait_for(PostgresServer::start()))
}

/// The same server, with locks that are connections.
fn sessions() -> World {
    World::of(format!(
        "{}?mode=session&session_validity=1s",
        server().url()
    ))
}

#[test]
fn a_lock_is_held_seen_broken_and_given_back() {
    held_seen_and_broken(&World::of(server().url()), &["--ttl", "900ms"]);
}

#[test]
fn a_lock_of_a_session_is_held_seen_broken_and_given_back() {
    held_seen_and_broken(&sessions(), &[]);
}

fn held_seen_and_broken(world: &World, short: &[&str]) {
    let mut holder = world.start(
        short,
        "seen",
        "echo $DLOCK_BACKEND; echo $$; exec sleep 1000",
    );
    let backend = holder.line();
    assert!(
        backend.starts_with("postgres://dlock@") && backend.contains("/dlock"),
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
    sells_exactly(&World::of(server().url()));
    let tables = "SELECT relname FROM pg_class WHERE relname LIKE 'dlock\\_demo%'";
    assert_eq!(wait_for(server().sql(tables)), "");
}

#[test]
fn the_sale_is_exact_with_locks_of_sessions() {
    sells_exactly(&sessions());
}

/// The server frees the lock with the connection; the next one waits for what the holder may believe.
#[test]
fn when_dlock_is_killed_its_connection_frees_the_lock() {
    let world = sessions();
    let holder = world.start(&[], "killed", "echo $$; exec sleep 1000");
    let command = holder.pid_line();
    holder.send(Signal::KILL);
    let mut next = world.start(&[], "killed", "echo in; exec sleep 1000");
    next.expect("in");
    assert!(!is_running(command));
    next.send(Signal::TERM);
    assert_eq!(next.signal(), 15);
}

#[test]
fn doctor_looks_at_sessions() {
    let (code, findings) = diagnosis(&sessions());
    assert_eq!(code, 0, "{findings:?}");
    for check in ["version", "persistence", "replicas", "clock", "wake-up"] {
        assert_eq!(found(&findings, check).0, "good", "{findings:?}");
    }
}

#[test]
fn doctor_looks_at_the_log() {
    let (code, findings) = diagnosis(&World::of(server().url()));
    assert_eq!(code, 0, "{findings:?}");
    for check in ["version", "persistence", "replicas", "clock", "wake-up"] {
        assert_eq!(found(&findings, check).0, "good", "{findings:?}");
    }
    let careless = wait_for(PostgresServer::start_with(Postgres::set(&["fsync=off"])));
    let (code, findings) = diagnosis(&World::of(careless.url()));
    assert_eq!(code, 1);
    assert_eq!(found(&findings, "persistence").0, "unsafe");
}

#[test]
fn a_server_that_was_killed_ends_the_command_with_80() {
    let server = wait_for(PostgresServer::start());
    let world = World::of(server.url());
    let mut running = world.start(&["--ttl", "2s"], "a", "echo $$; exec sleep 1000");
    let command = running.pid_line();
    server.kill();
    assert_eq!(running.code(), 80);
    assert!(!is_running(command));
}

#[test]
fn a_server_that_is_not_there_or_refuses_us_is_69_and_a_wrong_url_is_64() {
    let wrong = server().url().replace("dlock@", "stranger:wr0ng@");
    for (url, expected) in [
        ("postgres://dlock@127.0.0.1:1/dlock", 69),
        (wrong.as_str(), 69),
        ("postgres:///dlock", 64),
        ("postgresql://h/db?leaze=3s", 64),
        ("postgres://h/db?mode=loud", 64),
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
