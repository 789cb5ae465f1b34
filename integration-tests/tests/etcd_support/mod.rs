//! What the tests of the etcd backend share.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod late;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{FencingToken, Guard, Locks, Order, Settings};
use dlock_etcd::{Config, EtcdBackend};
use etcd_client::{Client, GetOptions, KeyValue, SortOrder, SortTarget};
use integration_tests::{Error, Folder, Process, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything takes on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn backend(url: &str) -> Arc<EtcdBackend> {
    let config = Config::from_url(url).expect("a good URL");
    Arc::new(config.connect().await.expect("a connection"))
}

/// A client of its own, as another process would have.
pub(crate) async fn client(url: &str) -> Locks {
    Locks::new(backend(url).await).expect("defaults")
}

/// A client all of whose tasks have their own place in the store's queue.
pub(crate) async fn strict_client(url: &str) -> Locks {
    Locks::builder(backend(url).await)
        .settings(Settings::new().order(Order::Strict))
        .build()
        .expect("good settings")
}

/// Takes a lock that is expected to come soon.
pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name).expect("a good name");
    let guard = mutex.lock_within(SOON).await.expect("the store answers");
    guard.unwrap_or_else(|| panic!("{name:?} was still held after {SOON:?}"))
}

/// A task that waits for a lock.
pub(crate) fn waiter(
    locks: &Locks,
    name: &str,
) -> tokio::task::JoinHandle<dlock_core::Result<Guard>> {
    let mutex = locks.mutex(name).expect("a good name");
    tokio::spawn(async move { mutex.lock().await })
}

/// What a task that waits gets soon.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .expect("it comes soon")
}

/// Resolves when something is so.
pub(crate) async fn until_so(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let _ = what;
}

/// Resolves when `count` attempts stand in the queue of a lock.
pub(crate) async fn waiting(locks: &Locks, name: &str, count: usize) {
    until("waiters in the queue", SOON, || async {
        let info = locks.inspect(name).await;
        let seen = info
            .map(|info| info.waiters.len())
            .map_err(|error| Error::answer("inspect", error.to_string()))?;
        if seen == count {
            return Ok(());
        }
        Err(Error::answer("waiters", seen.to_string()))
    })
    .await
    .expect("the waiters come");
}

/// Resolves after a renewal that was sent from now on.
pub(crate) async fn renewed(locks: &Locks) {
    // One may be under way: the second is new for certain.
    let before = locks.stats().renewals;
    until_so("renewals", async || locks.stats().renewals >= before + 2).await;
}

pub(crate) async fn raw(servers: &[SocketAddr]) -> Client {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    Client::connect(servers, None).await.expect("a raw client")
}

/// The entries of a lock, first come first.
pub(crate) async fn entries(raw: &mut Client, name: &str) -> Vec<KeyValue> {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend);
    let mut found = raw
        .get(format!("dlock/{name}/"), Some(options))
        .await
        .expect("entries");
    found.take_kvs()
}

/// The sum of a metric over all its labels that contain `label`, as the server tells it.
pub(crate) async fn metric_with(server: SocketAddr, name: &str, label: &str) -> f64 {
    let mut stream = TcpStream::connect(server).await.expect("the server's port");
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .await
        .expect("a request");
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.expect("an answer");
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        })
        .filter(|line| line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// A metric without labels, or the sum over all.
pub(crate) async fn metric(server: SocketAddr, name: &str) -> f64 {
    metric_with(server, name, "").await
}

/// The URL of these servers.
pub(crate) fn url(addrs: impl IntoIterator<Item = SocketAddr>, parameters: &str) -> String {
    let hosts: Vec<String> = addrs.into_iter().map(|addr| addr.to_string()).collect();
    format!("etcd://{}?{parameters}", hosts.join(","))
}

/// A server that speaks TLS with the certificates in this folder and asks for a client's; and its port. It may not be ready yet.
pub(crate) fn secured(folder: &Folder) -> (Process, u16) {
    let file = |name: &str| folder.file(name).display().to_string();
    let port = |listener: std::net::TcpListener| listener.local_addr().expect("an address").port();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    // Both are open at once, so they differ.
    let (one, two) = (free(), free());
    let (clients, peers) = (port(one), port(two));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(folder.file("data"));
    for (option, value) in [
        (
            "--listen-client-urls",
            format!("https://127.0.0.1:{clients}"),
        ),
        (
            "--advertise-client-urls",
            format!("https://127.0.0.1:{clients}"),
        ),
        ("--listen-peer-urls", format!("http://127.0.0.1:{peers}")),
        (
            "--initial-advertise-peer-urls",
            format!("http://127.0.0.1:{peers}"),
        ),
        (
            "--initial-cluster",
            format!("default=http://127.0.0.1:{peers}"),
        ),
        ("--cert-file", file("ca-server.pem")),
        ("--key-file", file("ca-server.key")),
        ("--trusted-ca-file", file("ca.pem")),
    ] {
        command.args([option, &value]);
    }
    command.arg("--client-cert-auth");
    let server = Process::spawn(&command, &folder.file("log")).expect("etcd starts");
    (server, clients)
}

/// The token of the hold that has this entry: a revision has 64 of them, for as many tasks to which the hold can be passed on.
pub(crate) fn token_of(entry: &KeyValue) -> FencingToken {
    FencingToken::new(entry.create_revision().cast_unsigned() * 64)
}

/// A task that waits for a lock in the line of its client.
pub(crate) async fn local_waiter(
    locks: &Locks,
    name: &str,
) -> tokio::task::JoinHandle<dlock_core::Result<Guard>> {
    let before = locks.stats().waiting;
    let task = waiter(locks, name);
    until_so("a task waits", async || locks.stats().waiting > before).await;
    // It counts a moment before it stands there.
    tokio::time::sleep(Duration::from_millis(2)).await;
    task
}
