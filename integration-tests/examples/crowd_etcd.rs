//! What a crowd of idle waiters costs an etcd server and its clients:
//!
//! ```sh
//! cargo run --release -p integration-tests --all-features --example crowd_etcd -- 10000 4 mutex
//! ```
//!
//! Arguments: waiters, clients, and `mutex` or `permits`. It ends with an error if the server or the clients use more than a tenth of a core while nothing happens, if
//! a wait failed, or if the hold was lost.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people, which ends where its expectation breaks"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::{Locks, Order, Settings};
use dlock_etcd::Config;
use integration_tests::EtcdServer;

/// How long the crowd is looked at.
const WINDOW: Duration = Duration::from_secs(30);

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

async fn client(server: &EtcdServer) -> Locks {
    let url = format!("etcd://{}", server.addr());
    let backend = Config::from_url(&url).expect("a URL").connect().await;
    Locks::builder(Arc::new(backend.expect("a connection")))
        .settings(Settings::new().order(Order::Strict))
        .build()
        .expect("settings")
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let waiters: usize = words.next().map_or(1000, |n| n.parse().expect("a number"));
    let clients: usize = words.next().map_or(4, |n| n.parse().expect("a number"));
    let permits = words.next().is_some_and(|word| word == "permits");
    let server = EtcdServer::start().await.expect("a server");
    let holder = client(&server).await;
    let guard = match permits {
        true => holder.semaphore("a", 1).expect("a name").acquire().await,
        false => holder.mutex("a").expect("a name").lock().await,
    };
    let guard = guard.expect("the lock");
    let started = Instant::now();
    let mut crowd = Vec::new();
    for _ in 0..clients {
        crowd.push(client(&server).await);
    }
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..waiters {
        let locks = crowd.get(index % clients).expect("a client").clone();
        let served = served.clone();
        tokio::spawn(async move {
            let guard = match permits {
                true => locks.semaphore("a", 1).expect("a name").acquire().await,
                false => locks.mutex("a").expect("a name").lock().await,
            };
            let _ = served.send(guard.map(drop));
        });
    }
    let failed = || crowd.iter().map(|locks| locks.stats().failed).sum::<u64>();
    let all_wait = async || match holder.inspect("a").await {
        Ok(info) => info.waiters.len() + failed() as usize >= waiters,
        Err(error) => {
            println!("{error}");
            false
        }
    };
    while !all_wait().await {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    println!("{waiters} wait after {:?}", started.elapsed());
    // Until all have opened their watches.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = (used(server.pid()), used(std::process::id()));
    tokio::time::sleep(WINDOW).await;
    let share =
        |now: Duration, then: Duration| (now - then).as_secs_f64() / WINDOW.as_secs_f64() * 100.0;
    let at_server = share(used(server.pid()), before.0);
    let at_clients = share(used(std::process::id()), before.1);
    let held = guard.is_held();
    println!(
        "server {at_server:.1} %, clients {at_clients:.1} % of a core; {} renewals, {} failed; held: {held}",
        holder.stats().renewals,
        holder.stats().renewals_failed,
    );
    let started = Instant::now();
    drop(guard);
    let mut served = 0;
    while served < SERVED.min(waiters) {
        match order.recv().await.expect("one for each waiter") {
            Ok(()) => served += 1,
            Err(error) => println!("{error}"),
        }
    }
    println!("{served} were served in {:?}", started.elapsed());
    let failed = failed();
    let lost = holder.stats().losses.total();
    println!("waits that failed: {failed}; holds that were lost: {lost}");
    let is_cheap = at_server <= MOST && at_clients <= MOST;
    match is_cheap && failed == 0 && lost == 0 && held {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
