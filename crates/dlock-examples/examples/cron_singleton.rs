//! A job that every host starts at the same minute, and one of them runs.
//!
//! `try_run` does not wait: who finds the lock taken has nothing to do. The hold lasts at least as long as the hosts' clocks may differ, so that a
//! host whose minute begins later does not find the lock free again and run the job a second time.
#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::time::{Duration, Instant};

use dlocks::{Error, Locks};

const CLOCKS_DIFFER: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("DLOCK_URL").unwrap_or("memory:cron".to_owned());
    let mut hosts = Vec::new();
    for late in [0, 30, 60, 90] {
        let locks = dlocks::connect(&url).await?;
        hosts.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(late)).await;
            nightly(&locks).await
        }));
    }
    let mut ran = 0;
    for host in hosts {
        if let Ok(outcome) = host.await {
            ran += u32::from(outcome?);
        }
    }
    println!("4 hosts, the job ran {ran} time(s)");
    Ok(())
}

/// Whether this host ran it.
async fn nightly(locks: &Locks) -> Result<bool, Error> {
    let ran = locks
        .mutex("nightly-report")?
        .try_run(async |guard| {
            let started = Instant::now();
            println!("the report, with token {:?}", guard.token());
            tokio::time::sleep(CLOCKS_DIFFER.saturating_sub(started.elapsed())).await;
        })
        .await?;
    Ok(ran.is_some())
}
