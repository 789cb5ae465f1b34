//! What a crowd of idle waiters costs a ZooKeeper server and its clients, and whether it survives a broken connection:
//!
//! ```sh
//! cargo run --release -p integration-tests --all-features --example crowd_zk -- 10000 4 mutex
//! ```
//!
//! Arguments: waiters, clients, and `mutex`, `permits`, or `many` for a lock of its own for each waiter. It ends with an error if the server or the clients use more
//! than a tenth of a core while nothing happens, if a place or a hold was lost, or if a wait failed.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people, which ends where its expectation breaks"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::{Locks, Order, Settings};
use dlock_zk::Config;
use integration_tests::{FaultProxy, ZooKeeper, ZooKeeperServer};

/// How long the crowd is looked at.
const WINDOW: Duration = Duration::from_secs(30);

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(600);

/// The largest share of a core, in percent, that a crowd may cost that only waits.
const MOST: f64 = 10.0;

/// How many are served in the end.
const SERVED: usize = 200;

/// The processor time that a process has used.
fn used(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok());
    // User and system time, in hundredths of a second.
    Duration::from_millis(10 * (ticks(12).unwrap_or(0) + ticks(13).unwrap_or(0)))
}

async fn client(addr: std::net::SocketAddr) -> Locks {
    let url = format!("zk://{addr}");
    let backend = Config::from_url(&url).expect("a URL").connect().await;
    Locks::builder(Arc::new(backend.expect("a connection")))
        .settings(Settings::new().order(Order::Strict))
        .build()
        .expect("settings")
}

/// One number of a server's `mntr`.
async fn count(server: &ZooKeeperServer, word: &str) -> usize {
    let answer = server.four_letter_word("mntr").await.expect("mntr");
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    line.expect("a number")
}

async fn until(what: &str, server: &ZooKeeperServer, word: &str, expected: usize) {
    let started = Instant::now();
    while count(server, word).await < expected {
        assert!(started.elapsed() < LIMIT, "not yet: {what}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("{what} after {:?}", started.elapsed());
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let waiters: usize = words.next().map_or(1000, |n| n.parse().expect("a number"));
    let clients: usize = words.next().map_or(4, |n| n.parse().expect("a number"));
    let kind = words.next().unwrap_or_default();
    let name = |index: usize| match kind.as_str() {
        "many" => format!("a{index}"),
        _ => "a".to_owned(),
    };
    let server = ZooKeeperServer::start_with(ZooKeeper::default())
        .await
        .expect("a server");
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(server.addr()).await;
    let mut guards = Vec::new();
    for index in 0..if kind == "many" { waiters } else { 1 } {
        let guard = match kind.as_str() {
            "permits" => holder.semaphore("a", 1).expect("a name").acquire().await,
            _ => holder.mutex(name(index)).expect("a name").lock().await,
        };
        guards.push(guard.expect("the lock"));
    }
    let mut crowd = Vec::new();
    for _ in 0..clients {
        crowd.push(client(proxy.addr()).await);
    }
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..waiters {
        let locks = crowd.get(index % clients).expect("a client").clone();
        let (served, name, permits) = (served.clone(), name(index), kind == "permits");
        tokio::spawn(async move {
            let guard = match permits {
                true => locks.semaphore(name, 1).expect("a name").acquire().await,
                false => locks.mutex(name).expect("a name").lock().await,
            };
            let _ = served.send(guard.map(drop));
        });
    }
    let places = waiters + guards.len();
    until("all wait", &server, "zk_ephemerals_count", places).await;
    until("all watch", &server, "zk_watch_count", 2 * waiters - 1).await;
    let before = (used(server.pid()), used(std::process::id()));
    tokio::time::sleep(WINDOW).await;
    let share =
        |now: Duration, then: Duration| (now - then).as_secs_f64() / WINDOW.as_secs_f64() * 100.0;
    let at_server = share(used(server.pid()), before.0);
    let at_clients = share(used(std::process::id()), before.1);
    println!(
        "server {at_server:.1} %, clients {at_clients:.1} % of a core; {} renewals, {} failed",
        holder.stats().renewals,
        holder.stats().renewals_failed,
    );
    proxy.reset_all().await;
    until(
        "all watch again",
        &server,
        "zk_watch_count",
        2 * waiters - 1,
    )
    .await;
    let there = count(&server, "zk_ephemerals_count").await;
    println!("places after a reset of all connections: {there} of {places}");
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    let all_held = held == guards.len();
    let started = Instant::now();
    drop(guards);
    let mut served = 0;
    while served < SERVED.min(waiters) {
        match order.recv().await.expect("one for each waiter") {
            Ok(()) => served += 1,
            Err(error) => println!("{error}"),
        }
    }
    println!("{served} were served in {:?}", started.elapsed());
    let failed: u64 = crowd.iter().map(|locks| locks.stats().failed).sum();
    let lost = holder.stats().losses.total();
    println!("waits that failed: {failed}; holds that were lost: {lost}");
    let is_cheap = at_server <= MOST && at_clients <= MOST;
    match is_cheap && failed == 0 && lost == 0 && all_held && there == places {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
