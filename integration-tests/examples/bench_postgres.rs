//! What locks in PostgreSQL cost, as ratios within one run: `cargo run --release -p integration-tests --example bench_postgres`.
//!
//! Starts a PostgreSQL, or uses the server in `DLOCK_TEST_POSTGRES_URL`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark prints, and ends when something is wrong"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::Locks;
use dlock_postgres::Config;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

const CYCLES: usize = 4000;
const HAND_OFFS: usize = 1500;
const WARM_UP: usize = 200;
const WORKERS: usize = 50;
const RACE: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    let server = integration_tests::postgres().await.expect("a server");
    let url = server.url();
    uncontended(url).await;
    hand_off(url).await;
    println!(
        "\n{:<42}{:>16}{:>16}",
        "50 workers on one lock", "hand-overs/s", "longest wait"
    );
    let one = client(url).await;
    race("tasks of one client", vec![one; WORKERS]).await;
    let mut many = Vec::new();
    for _ in 0..WORKERS {
        many.push(client(url).await);
    }
    race("a client each", many).await;
    advisory(url).await;
}

async fn client(url: &str) -> Locks {
    let sign = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{sign}table_prefix=b_&connections=4");
    let config = Config::from_url(&url).expect("a URL");
    Locks::new(config.connect().await.expect("a connection")).expect("defaults")
}

/// A connection of the client crate alone, and what it hears.
async fn raw(url: &str) -> (Client, mpsc::UnboundedReceiver<String>) {
    // The raw client does not know our parameters.
    let plain = url.split('?').next().unwrap_or(url);
    let (client, mut connection) = tokio_postgres::connect(plain, NoTls)
        .await
        .expect("a connection");
    let (sink, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(message) = message {
                let _ = sink.send(message.payload().to_owned());
            }
        }
    });
    (client, heard)
}

fn median(mut times: Vec<Duration>) -> Duration {
    let mut times = times.split_off(WARM_UP);
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn ratio(what: &str, raw_name: &str, raw: Duration, ours: Duration) {
    let times = ours.as_secs_f64() / raw.as_secs_f64();
    println!("{raw_name} {raw:?}, {what} {ours:?}: {times:.2} times");
}

/// Interleaved, so that a noisy machine disturbs both alike.
async fn uncontended(url: &str) {
    let (conn, _) = raw(url).await;
    conn.batch_execute(
        "CREATE TABLE IF NOT EXISTS b_raw (id int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50); \
         INSERT INTO b_raw VALUES (1, 0) ON CONFLICT DO NOTHING",
    )
    .await
    .expect("a table");
    let update = "UPDATE b_raw SET n = n + 1 WHERE id = $1 RETURNING n";
    let update = conn.prepare(update).await.expect("a statement");
    let locks = client(url).await;
    let mutex = locks.mutex("uncontended").expect("a name");
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..CYCLES + WARM_UP {
        let started = Instant::now();
        for _ in 0..2 {
            conn.query_one(&update, &[&1]).await.expect("an update");
        }
        raw.push(started.elapsed());
        let started = Instant::now();
        let guard = mutex.lock().await.expect("free");
        let released = guard.release().await.expect("it answers");
        ours.push(started.elapsed());
        assert_eq!(released, dlock_core::Released::Freed);
    }
    ratio(
        "lock and release",
        "two raw prepared updates",
        median(raw),
        median(ours),
    );
}

/// From the release to the moment at which a waiter of another client holds, beside a statement that notifies.
async fn hand_off(url: &str) {
    let (sender, _) = raw(url).await;
    let (listener, mut heard) = raw(url).await;
    listener
        .batch_execute("LISTEN b_raw")
        .await
        .expect("it listens");
    let tell = "WITH u AS (UPDATE b_raw SET n = n + 1 WHERE id = $1 RETURNING n) SELECT pg_notify('b_raw', n::text) FROM u";
    let tell = sender.prepare(tell).await.expect("a statement");
    let (one, other) = (client(url).await, client(url).await);
    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    let name = "hand-off";
    let mut guard = one.mutex(name).expect("a name").lock().await.expect("free");
    let mut next = other;
    let mut last = one;
    for _ in 0..HAND_OFFS + WARM_UP {
        let started = Instant::now();
        sender.query_one(&tell, &[&1]).await.expect("an update");
        heard.recv().await.expect("a message");
        raw.push(started.elapsed());
        let mutex = next.mutex(name).expect("a name");
        let waiting = tokio::spawn(async move {
            let guard = mutex.lock().await.expect("the lock");
            (guard, Instant::now())
        });
        // It is in the queue, and listens: the server says so.
        loop {
            let row =
                sender.query_one("SELECT count(*) FROM b_waiters WHERE bell IS NOT NULL", &[]);
            if row.await.expect("a count").get::<_, i64>(0) == 1 {
                break;
            }
        }
        let started = Instant::now();
        let release = guard.release();
        let (released, (held, at)) =
            tokio::join!(release, async { waiting.await.expect("no panic") });
        assert_eq!(released.expect("it answers"), dlock_core::Released::Freed);
        ours.push(at - started);
        guard = held;
        std::mem::swap(&mut next, &mut last);
    }
    ratio(
        "hand-off",
        "one raw statement and its notification",
        median(raw),
        median(ours),
    );
}

async fn race(what: &str, clients: Vec<Locks>) {
    let end = Instant::now() + RACE;
    let runs = clients.iter().map(|locks| {
        let mutex = locks.mutex(format!("race {what}")).expect("a name");
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
    report(what, runs.collect()).await;
}

/// What others do: `pg_advisory_lock` on a connection for each worker, as sqlx's advisory lock does.
async fn advisory(url: &str) {
    let mut clients = Vec::new();
    for _ in 0..WORKERS {
        clients.push(Arc::new(raw(url).await.0));
    }
    let end = Instant::now() + RACE;
    let runs = clients.into_iter().map(|client| {
        tokio::spawn(async move {
            let lock = client
                .prepare("SELECT pg_advisory_lock(42)")
                .await
                .expect("a statement");
            let unlock = client
                .prepare("SELECT pg_advisory_unlock(42)")
                .await
                .expect("a statement");
            let (mut turns, mut longest) = (0_u32, Duration::ZERO);
            while Instant::now() < end {
                let started = Instant::now();
                client.query_one(&lock, &[]).await.expect("the lock");
                longest = longest.max(started.elapsed());
                turns += 1;
                client.query_one(&unlock, &[]).await.expect("it answers");
            }
            (turns, longest)
        })
    });
    report("raw pg_advisory_lock, a connection each", runs.collect()).await;
}

async fn report(what: &str, runs: Vec<tokio::task::JoinHandle<(u32, Duration)>>) {
    let started = Instant::now();
    let (mut turns, mut longest) = (0, Duration::ZERO);
    for run in futures::future::join_all(runs).await {
        let (its, wait) = run.expect("no panic");
        turns += its;
        longest = longest.max(wait);
    }
    let rate = f64::from(turns) / started.elapsed().as_secs_f64();
    println!("{what:<42}{rate:>16.0}{:>13} ms", longest.as_millis());
}
