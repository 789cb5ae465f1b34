//! The pages of docs/stores: what they say to start is started, and their first lock is taken there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use integration_tests::{Flavor, Folder, MySqlServer, PostgresServer, Process, ZooKeeperServer};

const LIMIT: Duration = Duration::from_secs(60);

/// What the pages show, but for the URL.
const PROGRAM: &str = include_str!("../examples/first_lock.rs");

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores")
}

fn page(store: &str) -> String {
    let path = folder().join(format!("{store}.md"));
    std::fs::read_to_string(path).expect(store)
}

/// The first block of code under a heading.
fn block(page: &str, heading: &str) -> String {
    let (_, section) = page
        .split_once(&format!("\n## {heading}\n"))
        .expect(heading);
    let (_, code) = section.split_once("\n```").expect("a block");
    let (_, code) = code.split_once('\n').expect("its first line");
    let (code, _) = code.split_once("\n```").expect("its end");
    code.to_owned()
}

/// The URL in a page's first lock.
fn url(page: &str) -> String {
    let code = block(page, "First lock");
    let (_, rest) = code.split_once("dlocks::connect(\"").expect("a URL");
    rest.split_once('"').expect("its end").0.to_owned()
}

#[test]
fn every_page_shows_the_program_that_is_run() {
    let (_, program) = PROGRAM.split_once("// [first_lock]\n").expect("a mark");
    let (program, _) = program.split_once("\n// [end]").expect("its end");
    let mut pages = 0;
    for entry in std::fs::read_dir(folder()).expect("the pages") {
        let page = std::fs::read_to_string(entry.expect("a page").path()).expect("its text");
        let shown = block(&page, "First lock").replace(&format!("\"{}\"", url(&page)), "&url()");
        assert_eq!(shown, program);
        pages += 1;
    }
    assert!(pages >= 8, "{pages}");
}

/// Runs the first lock of a page with this URL. Cargo builds the examples beside the tests.
fn take_the_first_lock(url: &str) {
    let tests = std::env::current_exe().expect("the path of this test");
    let target = tests.ancestors().nth(2).expect("target/debug");
    let output = Command::new(target.join("examples/first_lock"))
        .arg(url)
        .output()
        .expect("the program");
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_good = output.status.success() && printed.starts_with("mine, with token Some(");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(is_good, "{url}: {printed}{error}");
}

/// Takes it at this address instead of the one in the page's URL.
fn take_it_at(page: &str, instead_of: &str, addresses: &str) {
    let url = url(page);
    assert!(url.contains(instead_of), "{url}");
    take_the_first_lock(&url.replace(instead_of, addresses));
}

/// An address that nobody has.
fn free() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its address")
}

/// A page's lines for bash, behind these of our own. Installing is done already; what would speak to a server of this machine speaks to that of the test.
fn bash(page: &str, before: &str, folder: &Folder) -> Command {
    let script = format!(
        "set -eu\napt() {{ :; }}\nsudo() {{ shift 2; \"$@\"; }}\n{before}\n{}\n",
        block(page, "Start one")
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(folder.path());
    // For `mktemp -d`.
    command.env("TMPDIR", folder.path());
    command
}

/// Runs lines that end.
fn run(mut command: Command) {
    let output = command.output().expect("bash");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

async fn answers(address: SocketAddr) {
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begin.elapsed() < LIMIT, "nobody answers at {address}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn redis_starts_and_locks_as_its_page_says() {
    let (page, folder, address) = (
        page("redis"),
        Folder::new("page").expect("a folder"),
        free(),
    );
    assert!(block(&page, "Start one").contains("redis-server --port 6379 "));
    // `exec` puts the server into the place of the shell, so that it ends with this value.
    let lines = format!(
        "redis-server() {{ exec redis-server \"${{@/6379/{}}}\"; }}",
        address.port()
    );
    let command = bash(&page, &lines, &folder);
    let _server = Process::spawn(&command, &folder.file("log")).expect("it starts");
    answers(address).await;
    take_it_at(&page, "127.0.0.1:6379", &address.to_string());
}

/// Servers in the background, which nobody else ends.
struct Daemons(Vec<SocketAddr>);

impl Drop for Daemons {
    fn drop(&mut self) {
        for address in &self.0 {
            let port = address.port().to_string();
            let mut end = Command::new("redis-cli");
            let _ = end.args(["-p", &port, "shutdown", "nosave"]).output();
        }
    }
}

#[tokio::test]
async fn redlock_starts_and_locks_as_its_page_says() {
    let (page, folder) = (page("redlock"), Folder::new("page").expect("a folder"));
    let nodes = Daemons((0..3).map(|_| free()).collect());
    let ports: Vec<_> = nodes.0.iter().map(|node| node.port().to_string()).collect();
    let tried = "for port in 7001 7002 7003; do";
    assert!(page.contains(tried));
    let moved = page.replace(tried, &format!("for port in {}; do", ports.join(" ")));
    run(bash(&moved, "", &folder));
    for node in &nodes.0 {
        answers(*node).await;
    }
    let hosts: Vec<_> = nodes.0.iter().map(ToString::to_string).collect();
    // As the page says of nodes that were started just now.
    assert!(page.contains("say `persistent=true`"));
    let hosts = format!("{}?persistent=true", hosts.join(","));
    take_it_at(&page, "a:6379,b:6379,c:6379,d:6379,e:6379", &hosts);
}

#[tokio::test]
async fn etcd_starts_and_locks_as_its_page_says() {
    let (page, folder) = (page("etcd"), Folder::new("page").expect("a folder"));
    let (address, peers) = (free(), free());
    let lines = format!(
        "etcd() {{ exec etcd \"$@\" --listen-client-urls http://{address} --advertise-client-urls http://{address} \
         --listen-peer-urls http://{peers} --initial-advertise-peer-urls http://{peers} --initial-cluster default=http://{peers}; }}"
    );
    let command = bash(&page, &lines, &folder);
    let _server = Process::spawn(&command, &folder.file("log")).expect("it starts");
    answers(address).await;
    take_it_at(&page, "127.0.0.1:2379", &address.to_string());
}

/// Its lines are for a container, or for a service of Debian's package: they are not run.
#[tokio::test]
async fn zookeeper_locks_as_its_page_says() {
    let server: ZooKeeperServer = ZooKeeperServer::start().await.expect("zookeeper");
    take_it_at(
        &page("zookeeper"),
        "127.0.0.1:2181",
        &server.addr().to_string(),
    );
}

#[tokio::test]
async fn mysql_starts_and_locks_as_its_page_says() {
    let (page, folder) = (page("mysql"), Folder::new("page").expect("a folder"));
    // As Debian starts it: `app@localhost` is also who comes by 127.0.0.1.
    let server: MySqlServer = Flavor::MariaDb
        .start_with(&["--skip-name-resolve=OFF"])
        .await
        .expect("mariadb");
    let lines = format!(
        "mariadb() {{ command mariadb --no-defaults --host=127.0.0.1 --port={} --user=root --password=dlock \"$@\"; }}",
        server.port()
    );
    run(bash(&page, &lines, &folder));
    take_it_at(&page, "127.0.0.1:3306", &server.addr().to_string());
}

#[tokio::test]
async fn postgres_starts_and_locks_as_its_page_says() {
    let (page, folder) = (page("postgres"), Folder::new("page").expect("a folder"));
    let server: PostgresServer = PostgresServer::start().await.expect("postgres");
    let lines = format!(
        "psql() {{ command psql --no-psqlrc --host=127.0.0.1 --port={} --username=dlock --dbname=dlock \"$@\"; }}",
        server.port()
    );
    run(bash(&page, &lines, &folder));
    take_it_at(&page, "127.0.0.1:5432", &server.addr().to_string());
}

#[test]
fn file_locks_as_its_page_says() {
    let (page, folder) = (page("file"), Folder::new("page").expect("a folder"));
    assert_eq!(url(&page), "file:");
    // Not in the home of whoever runs the tests.
    take_the_first_lock(&format!("file:{}", folder.path().display()));
}

#[test]
fn memory_locks_as_its_page_says() {
    take_the_first_lock(&url(&page("memory")));
}
