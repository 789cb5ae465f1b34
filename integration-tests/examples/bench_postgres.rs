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
use integration_tests::{Postgres, PostgresServer};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

/// Rounds of each figure; within one, ours and the raw one go by turns.
const ROUNDS: usize = 5;
const CYCLES: usize = 800;
const HAND_OFFS: usize = 300;
const WARM_UP: usize = 50;
const WORKERS: usize = 50;
const RACE: Duration = Duration::from_millis(1500);

#[tokio::main]
async fn main() {
    let server = match std::env::var("DLOCK_TEST_POSTGRES_URL") {
        Ok(_) => None,
        Err(_) => {
            let settings = Postgres::set(&["max_connections=800"]);
            Some(
                PostgresServer::start_with(settings)
                    .await
                    .expect("a server"),
            )
        }
    };
    let given = || std::env::var("DLOCK_TEST_POSTGRES_URL").unwrap_or_default();
    let url = server.as_ref().map_or_else(given, |server| server.url());
    uncontended(&url).await;
    hand_off(&url).await;
    races(&url).await;
}

/// Fifty workers on one lock. The ways go by turns, so that a noisy machine disturbs all of them alike.
async fn races(url: &str) {
    let one = client(url).await;
    let (mut many, mut sessions) = (Vec::new(), Vec::new());
    for _ in 0..WORKERS {
        many.push(client(url).await);
        sessions.push(client(&format!("{url}?mode=session")).await);
    }
    let raw = Advisory::of_each(url).await;
    let pool = sqlx_pool(url).await;
    println!(
        "\n{WORKERS} workers on one lock: hand-overs/s (lowest to highest of {ROUNDS} rounds), longest wait"
    );
    let mut ways: Vec<(&str, Vec<(f64, Duration)>)> = [
        "tasks of one client",
        "a client each, mode=lease",
        "a client each, mode=session",
        "raw pg_advisory_lock, a connection each",
        "sqlx's PgAdvisoryLock, a connection each",
    ]
    .map(|what| (what, Vec::new()))
    .to_vec();
    // The first round makes the connections that waiters need.
    for round in 0..=ROUNDS {
        for (way, (_, rounds)) in ways.iter_mut().enumerate() {
            let figures = match way {
                0 => race("one", vec![one.clone(); WORKERS]).await,
                1 => race("many", many.clone()).await,
                2 => race("sessions", sessions.clone()).await,
                3 => advisory(&raw).await,
                _ => sqlx_advisory(&pool).await,
            };
            rounds.push(figures);
            if round == 0 {
                let (rate, longest) = rounds.pop().unwrap_or_default();
                let longest = longest.as_millis();
                println!("  warm-up, way {way}: {rate:.0}/s, {longest} ms");
            }
        }
    }
    let middle = |rounds: &[(f64, Duration)]| {
        let mut rates: Vec<f64> = rounds.iter().map(|(rate, _)| *rate).collect();
        rates.sort_by(f64::total_cmp);
        let at = |n: usize| rates.get(n).copied().unwrap_or_default();
        (at(rates.len() / 2), at(0), at(rates.len() - 1))
    };
    let sqlx = ways.last().map_or(1.0, |(_, rounds)| middle(rounds).0);
    for (what, rounds) in &ways {
        let (rate, low, high) = middle(rounds);
        let longest = rounds.iter().map(|(_, longest)| longest.as_millis()).max();
        println!(
            "{what:<42}{rate:>8.0} ({low:.0} to {high:.0}), {} ms, {:.2} times sqlx",
            longest.unwrap_or_default(),
            rate / sqlx
        );
    }
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

/// The medians of the rounds, and their ratio: its median, and the lowest and the highest of all rounds.
fn ratio(what: &str, raw_name: &str, rounds: Vec<(Duration, Duration)>) {
    let mut ratios: Vec<f64> = rounds
        .iter()
        .map(|(raw, ours)| ours.as_secs_f64() / raw.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |n: usize| ratios.get(n).copied().unwrap_or_default();
    let (low, middle, high) = (at(0), at(ratios.len() / 2), at(ratios.len() - 1));
    for (raw, ours) in rounds {
        println!("  {raw_name} {raw:?}, {what} {ours:?}");
    }
    println!("{what} / {raw_name}: {middle:.2} ({low:.2} to {high:.2})");
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
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
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
        rounds.push((median(raw), median(ours)));
    }
    ratio("lock and release", "two raw prepared updates", rounds);
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
    let mut rounds = Vec::new();
    let name = "hand-off";
    let mut guard = one.mutex(name).expect("a name").lock().await.expect("free");
    let mut next = other;
    let mut last = one;
    for turn in 1..=ROUNDS * (HAND_OFFS + WARM_UP) {
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
        if turn % (HAND_OFFS + WARM_UP) == 0 {
            let taken = (std::mem::take(&mut raw), std::mem::take(&mut ours));
            rounds.push((median(taken.0), median(taken.1)));
        }
    }
    ratio("hand-off", "one raw statement and its notification", rounds);
}

async fn race(what: &str, clients: Vec<Locks>) -> (f64, Duration) {
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
    report(runs.collect()).await
}

/// What others do: `pg_advisory_lock` on a connection for each worker, as sqlx's advisory lock does.
struct Advisory {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

impl Advisory {
    async fn of_each(url: &str) -> Vec<Arc<Self>> {
        let mut all = Vec::new();
        for _ in 0..WORKERS {
            let (client, _) = raw(url).await;
            let lock = client.prepare("SELECT pg_advisory_lock(42)").await;
            let unlock = client.prepare("SELECT pg_advisory_unlock(42)").await;
            all.push(Arc::new(Self {
                lock: lock.expect("a statement"),
                unlock: unlock.expect("a statement"),
                client,
            }));
        }
        all
    }
}

async fn advisory(clients: &[Arc<Advisory>]) -> (f64, Duration) {
    let end = Instant::now() + RACE;
    let runs = clients.iter().map(|one| {
        let one = one.clone();
        tokio::spawn(async move {
            let (mut turns, mut longest) = (0_u32, Duration::ZERO);
            while Instant::now() < end {
                let started = Instant::now();
                let locked = one.client.query_one(&one.lock, &[]).await;
                locked.expect("the lock");
                longest = longest.max(started.elapsed());
                turns += 1;
                let freed = one.client.query_one(&one.unlock, &[]).await;
                freed.expect("it answers");
            }
            (turns, longest)
        })
    });
    report(runs.collect()).await
}

async fn sqlx_pool(url: &str) -> sqlx::PgPool {
    let plain = url.split('?').next().unwrap_or(url);
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(WORKERS as u32);
    options.connect(plain).await.expect("a pool")
}

/// The lock of the crate sqlx itself, on a connection for each worker.
async fn sqlx_advisory(pool: &sqlx::PgPool) -> (f64, Duration) {
    let end = Instant::now() + RACE;
    let runs = (0..WORKERS).map(|_| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let lock = sqlx::postgres::PgAdvisoryLock::new("race");
            let mut conn = pool.acquire().await.expect("a connection");
            let (mut turns, mut longest) = (0_u32, Duration::ZERO);
            while Instant::now() < end {
                let started = Instant::now();
                let guard = lock.acquire(conn).await.expect("the lock");
                longest = longest.max(started.elapsed());
                turns += 1;
                conn = guard.release_now().await.expect("it answers");
            }
            (turns, longest)
        })
    });
    report(runs.collect()).await
}

/// Hand-overs per second, and the longest wait.
async fn report(runs: Vec<tokio::task::JoinHandle<(u32, Duration)>>) -> (f64, Duration) {
    let started = Instant::now();
    let (mut turns, mut longest) = (0, Duration::ZERO);
    for run in futures::future::join_all(runs).await {
        let (its, wait) = run.expect("no panic");
        turns += its;
        longest = longest.max(wait);
    }
    (f64::from(turns) / started.elapsed().as_secs_f64(), longest)
}
