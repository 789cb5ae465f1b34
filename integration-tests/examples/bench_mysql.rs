//! What locks in MySQL cost, as ratios within one run: `cargo run --release -p integration-tests --example bench_mysql`.
//!
//! Starts a MariaDB, or uses the server in `DLOCK_TEST_MYSQL_URL`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark prints, and ends when something is wrong"
)]

use std::time::{Duration, Instant};

use dlock_core::Locks;
use dlock_mysql::Config;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

const CYCLES: usize = 4000;
const WARM_UP: usize = 200;
/// The cycle whose statements are counted.
const COUNTED: usize = 1000;
const RACE: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    let server = integration_tests::mysql().await.expect("a server");
    uncontended(server.url()).await;
    println!(
        "\n{:<10}{:>12}{:>16}{:>16}",
        "mode", "contenders", "hand-overs/s", "longest wait"
    );
    for mode in ["lease", "unique", "session", "advisory"] {
        for contenders in [1, 16, 64] {
            race(server.url(), mode, contenders).await;
        }
    }
}

async fn client(url: &str, mode: &str) -> Locks {
    let sign = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{sign}mode={mode}&table_prefix=b_");
    let config = Config::from_url(&url).expect("a URL");
    Locks::new(config.connect().await.expect("a connection")).expect("defaults")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Interleaved, so that a noisy machine disturbs both alike.
async fn uncontended(url: &str) {
    // The raw client does not know our parameters.
    let plain = url.split('?').next().unwrap_or(url);
    let mut conn = Conn::new(Opts::from_url(plain).expect("a URL"))
        .await
        .expect("a connection");
    conn.query_drop(
        "CREATE TABLE IF NOT EXISTS b_raw (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB",
    )
    .await
    .expect("a table");
    conn.query_drop("REPLACE INTO b_raw VALUES (1, 0)")
        .await
        .expect("a row");
    let locks = client(url, "lease").await;
    let mutex = locks.mutex("uncontended").expect("a name");
    let questions = async |conn: &mut Conn| -> u64 {
        let row: Option<(String, u64)> = conn
            .query_first("SHOW GLOBAL STATUS LIKE 'Questions'")
            .await
            .expect("status");
        row.expect("a row").1
    };
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    let mut statements = 0;
    for round in 0..CYCLES + WARM_UP {
        let started = Instant::now();
        for _ in 0..2 {
            conn.exec_drop("UPDATE b_raw SET n = n + 1 WHERE id = ?", (1,))
                .await
                .expect("an update");
        }
        raw.push(started.elapsed());
        let before = match round {
            COUNTED => questions(&mut conn).await,
            _ => 0,
        };
        let started = Instant::now();
        let guard = mutex.lock().await.expect("free");
        let released = guard.release().await.expect("it answers");
        ours.push(started.elapsed());
        assert_eq!(released, dlock_core::Released::Freed);
        if round == COUNTED {
            // Asking is a statement too.
            statements = questions(&mut conn).await - before - 1;
        }
    }
    let (raw, ours) = (raw.split_off(WARM_UP), ours.split_off(WARM_UP));
    let (raw, ours) = (median(raw), median(ours));
    println!(
        "two raw updates {raw:?}, lease cycle {ours:?}: {:.2} times",
        ours.as_secs_f64() / raw.as_secs_f64()
    );
    println!("statements per lease cycle: {statements}");
}

async fn race(url: &str, mode: &str, contenders: usize) {
    let mut clients = Vec::new();
    for _ in 0..contenders {
        clients.push(client(url, mode).await);
    }
    let end = Instant::now() + RACE;
    let runs = clients.iter().map(|locks| {
        let mutex = locks
            .mutex(format!("race {mode} {contenders}"))
            .expect("a name");
        tokio::spawn(async move {
            let (mut turns, mut longest) = (0_u32, Duration::ZERO);
            while Instant::now() < end {
                let started = Instant::now();
                let guard = mutex.lock().await.expect("the lock");
                longest = longest.max(started.elapsed());
                turns += 1;
                let _ = guard.release().await.expect("it answers");
            }
            (turns, longest)
        })
    });
    let started = Instant::now();
    let (mut turns, mut longest) = (0, Duration::ZERO);
    for run in futures::future::join_all(runs).await {
        let (its, wait) = run.expect("no panic");
        turns += its;
        longest = longest.max(wait);
    }
    let rate = f64::from(turns) / started.elapsed().as_secs_f64();
    println!(
        "{mode:<10}{contenders:>12}{rate:>16.0}{:>13} ms",
        longest.as_millis()
    );
    for locks in clients {
        locks.close().await.expect("closed");
    }
}
