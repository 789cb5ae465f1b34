//! Servers end with the process that started them, and with nothing else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use integration_tests::{Error, Folder, RedisServer, Reply, until};

/// The program that starts a server and waits to be killed.
fn start_server(store: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_start-server"));
    command
        .arg(store)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts that program, and returns it with the process id of its server.
fn parent_and_server(store: &str) -> (Child, u32) {
    let mut parent = start_server(store).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    (
        parent,
        line.trim()
            .parse()
            .unwrap_or_else(|_| panic!("no process id but {line:?}")),
    )
}

/// A process that has ended but was not collected yet (by whoever inherited it) still has an entry in /proc.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

async fn server_dies_with_its_killed_parent(store: &str) {
    let (mut parent, server) = parent_and_server(store);
    assert!(is_alive(server));
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("the server is gone", Duration::from_secs(10), || async {
        if is_alive(server) {
            Err(Error::answer("alive?", "yes"))
        } else {
            Ok(())
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn redis_dies_with_its_killed_parent() {
    server_dies_with_its_killed_parent("redis").await;
}

#[tokio::test]
async fn mariadb_dies_with_its_killed_parent() {
    server_dies_with_its_killed_parent("mariadb").await;
}

#[tokio::test]
async fn etcd_dies_with_its_killed_parent() {
    server_dies_with_its_killed_parent("etcd").await;
}

#[tokio::test]
async fn zookeeper_dies_with_its_killed_parent() {
    server_dies_with_its_killed_parent("zookeeper").await;
}

#[test]
fn a_server_outlives_the_runtime_and_the_threads_that_started_it() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let start = move || {
        // Spawned, so that a worker of the runtime starts it and not this thread.
        let runtime = runtime();
        runtime
            .block_on(async { tokio::spawn(RedisServer::start()).await.unwrap() })
            .unwrap()
    };
    let server = std::thread::spawn(start).join().unwrap();
    let pong = runtime().block_on(server.command(&["PING"])).unwrap();
    assert_eq!(pong, Reply::Text("PONG".into()));
}

#[tokio::test]
async fn a_dropped_server_leaves_no_process_and_no_folder() {
    let server = RedisServer::start().await.unwrap();
    let (pid, folder) = (server.pid(), server.site().file(""));
    assert!(folder.is_dir());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(
        folder.exists(),
        std::env::var_os("DLOCK_KEEP_LOGS").is_some()
    );
}

#[test]
fn a_missing_program_says_what_to_install() {
    let empty = Folder::new("empty").unwrap();
    for (store, wanted) in [
        (
            "redis",
            "redis-server was not found: run ci/setup or `apt-get install redis-server`",
        ),
        (
            "mariadb",
            "mariadbd was not found: run ci/setup or `apt-get install mariadb-server`",
        ),
        (
            "etcd",
            "etcd was not found: run ci/setup or `apt-get install etcd-server`",
        ),
        (
            "zookeeper",
            "java was not found: run ci/setup or `apt-get install default-jre-headless`",
        ),
    ] {
        let output = start_server(store)
            .env_remove("DLOCK_KEEP_LOGS")
            .env("DLOCK_TEST_PATH", empty.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        assert_eq!(String::from_utf8(output.stderr).unwrap().trim(), wanted);
    }
}
