//! What locks in MySQL cost, beside what the server itself costs in the same run:
//! `cargo run --release -p integration-tests --example bench_mysql`.
//!
//! Starts a MariaDB, or uses the server in `DLOCK_TEST_MYSQL_URL`. Rounds alternate between all that is compared, so that a noisy machine
//! disturbs all alike; each line is the median of the rounds, with the lowest and the highest. `DLOCK_BENCH` may name parts of the names of
//! the lines to be measured, separated by commas; `DLOCK_BENCH_ROUNDS` says how many rounds there are.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark prints, and ends when something is wrong"
)]

use std::time::{Duration, Instant};

use dlock_core::{Locks, Mutex};
use dlock_mysql::Config;
use futures::future::{BoxFuture, join_all};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

const ROUNDS: usize = 5;
/// Cycles of one round, one after the other.
const CYCLES: usize = 300;
/// Hand-offs of one round.
const HAND_OFFS: usize = 30;
/// How long a crowd is watched in one round.
const RACE: Duration = Duration::from_millis(1000);
const WORKERS: usize = 50;
const TASKS: usize = 64;
const NAMES: usize = 1000;
const MODES: [&str; 4] = ["lease", "unique", "session", "advisory"];

/// One line of the table: its name, its unit, and how a round of it is measured.
struct Line {
    name: String,
    unit: &'static str,
    round: Box<dyn FnMut(usize) -> BoxFuture<'static, f64>>,
    seen: Vec<f64>,
}

impl Line {
    fn new<F>(
        name: impl Into<String>,
        unit: &'static str,
        mut round: impl FnMut(usize) -> F + 'static,
    ) -> Self
    where
        F: Future<Output = f64> + Send + 'static,
    {
        Self {
            name: name.into(),
            unit,
            round: Box::new(move |number| Box::pin(round(number))),
            seen: Vec::new(),
        }
    }
}

#[tokio::main]
async fn main() {
    let server = integration_tests::mysql().await.expect("a server");
    let url = server.url().to_owned();
    let rounds = std::env::var("DLOCK_BENCH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let wanted = std::env::var("DLOCK_BENCH").unwrap_or_default();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|w| name.contains(w));
    set_up(&url).await;
    let mut lines = baselines(&url);
    for mode in MODES {
        lines.extend(of_mode(&url, mode));
    }
    lines.retain(|line| is_wanted(&line.name));
    for number in 0..=rounds {
        for line in &mut lines {
            let value = (line.round)(number).await;
            // The first one warms up.
            if number > 0 {
                line.seen.push(value);
            }
        }
    }
    println!(
        "{:<44}{:>10}{:>10}{:>10}",
        "", "median", "lowest", "highest"
    );
    for line in &mut lines {
        line.seen.sort_by(f64::total_cmp);
        let at = |index: usize| line.seen.get(index).copied().unwrap_or_default();
        let (middle, last) = (line.seen.len() / 2, line.seen.len().saturating_sub(1));
        println!(
            "{:<44}{:>10.0}{:>10.0}{:>10.0} {}",
            line.name,
            at(middle),
            at(0),
            at(last),
            line.unit
        );
    }
}

async fn set_up(url: &str) {
    let mut conn = raw(url).await;
    conn.query_drop(
        "CREATE TABLE IF NOT EXISTS b_raw (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB",
    )
    .await
    .expect("a table");
    for id in 0..NAMES {
        conn.exec_drop("REPLACE INTO b_raw VALUES (?, 0)", (id,))
            .await
            .expect("a row");
    }
    conn.disconnect().await.expect("an end");
}

/// A connection of the client below, which does not know our parameters.
async fn raw(url: &str) -> Conn {
    let plain = url.split('?').next().unwrap_or(url);
    let opts = Opts::from_url(plain).expect("a URL");
    Conn::new(opts).await.expect("a connection")
}

async fn client(url: &str, mode: &str, more: &str) -> Locks {
    let sign = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{sign}mode={mode}&table_prefix=b_{more}");
    let config = Config::from_url(&url).expect("a URL");
    Locks::new(config.connect().await.expect("a connection")).expect("defaults")
}

/// What the server itself takes.
fn baselines(url: &str) -> Vec<Line> {
    let cycle = |name: &str, statements: &'static [&'static str]| {
        let url = url.to_owned();
        Line::new(format!("raw {name}, cycle"), "µs", move |_| {
            let url = url.clone();
            async move {
                let mut conn = raw(&url).await;
                let mut times = Vec::new();
                for _ in 0..CYCLES {
                    let started = Instant::now();
                    for sql in statements {
                        conn.exec_drop(*sql, ()).await.expect("an answer");
                    }
                    times.push(started.elapsed());
                }
                conn.disconnect().await.expect("an end");
                micros(median(times))
            }
        })
    };
    let many = |name: &str, first: &'static str, second: &'static str| {
        let url = url.to_owned();
        Line::new(format!("raw {name}, {TASKS} × {NAMES}"), "/s", move |_| {
            let url = url.clone();
            async move {
                let mut conns = Vec::new();
                // As many connections as a client of ours shares.
                for _ in 0..16 {
                    conns.push(raw(&url).await);
                }
                let started = Instant::now();
                let end = started + RACE;
                let runs = conns.into_iter().map(|mut conn| {
                    tokio::spawn(async move {
                        let mut pairs = 0_u32;
                        while Instant::now() < end {
                            let id = pairs as usize * 7919 % NAMES;
                            for sql in [first, second] {
                                conn.exec_drop(sql, (id,)).await.expect("an answer");
                            }
                            pairs += 1;
                        }
                        conn.disconnect().await.expect("an end");
                        pairs
                    })
                });
                rate(join_all(runs).await, started)
            }
        })
    };
    let url_of_race = url.to_owned();
    let race = Line::new(
        format!("raw GET_LOCK, {WORKERS} workers one lock"),
        "/s",
        move |_| {
            let url = url_of_race.clone();
            async move {
                let mut conns = Vec::new();
                for _ in 0..WORKERS {
                    conns.push(raw(&url).await);
                }
                let started = Instant::now();
                let end = started + RACE;
                let runs = conns.into_iter().map(|mut conn| {
                    tokio::spawn(async move {
                        let mut turns = 0_u32;
                        while Instant::now() < end {
                            for sql in ["DO GET_LOCK('b_race', 60)", "DO RELEASE_LOCK('b_race')"] {
                                conn.exec_drop(sql, ()).await.expect("an answer");
                            }
                            turns += 1;
                        }
                        conn.disconnect().await.expect("an end");
                        turns
                    })
                });
                rate(join_all(runs).await, started)
            }
        },
    );
    let url_of_hand_off = url.to_owned();
    let hand_off = Line::new("raw GET_LOCK, hand-off", "µs", move |_| {
        let url = url_of_hand_off.clone();
        async move {
            let (mut holder, mut waiter) = (raw(&url).await, raw(&url).await);
            let mut times = Vec::new();
            for _ in 0..HAND_OFFS {
                holder
                    .query_drop("DO GET_LOCK('b_hand', 60)")
                    .await
                    .expect("free");
                let waits = tokio::spawn(async move {
                    waiter
                        .query_drop("DO GET_LOCK('b_hand', 60)")
                        .await
                        .expect("it");
                    (waiter, Instant::now())
                });
                tokio::time::sleep(Duration::from_millis(20)).await;
                let started = Instant::now();
                holder
                    .query_drop("DO RELEASE_LOCK('b_hand')")
                    .await
                    .expect("ours");
                let woke;
                (waiter, woke) = waits.await.expect("no panic");
                times.push(woke.saturating_duration_since(started));
                waiter
                    .query_drop("DO RELEASE_LOCK('b_hand')")
                    .await
                    .expect("ours");
            }
            holder.disconnect().await.expect("an end");
            waiter.disconnect().await.expect("an end");
            micros(median(times))
        }
    });
    vec![
        cycle(
            "GET_LOCK pair",
            &["DO GET_LOCK('b_pair', 0)", "DO RELEASE_LOCK('b_pair')"],
        ),
        cycle(
            "GET_LOCK + update + RELEASE_LOCK",
            &[
                "DO GET_LOCK('b_pair', 0)",
                "UPDATE b_raw SET n = n + 1 WHERE id = 1",
                "DO RELEASE_LOCK('b_pair')",
            ],
        ),
        cycle(
            "two updates",
            &[
                "UPDATE b_raw SET n = n + 1 WHERE id = 1",
                "UPDATE b_raw SET n = n + 1 WHERE id = 1",
            ],
        ),
        many(
            "GET_LOCK pairs",
            "DO GET_LOCK(CONCAT('b_', ?), 60)",
            "DO RELEASE_LOCK(CONCAT('b_', ?))",
        ),
        many(
            "pairs of updates",
            "UPDATE b_raw SET n = n + 1 WHERE id = ?",
            "UPDATE b_raw SET n = n - 1 WHERE id = ?",
        ),
        race,
        hand_off,
    ]
}

fn of_mode(url: &str, mode: &'static str) -> Vec<Line> {
    let with_url = |measure: fn(String, &'static str) -> BoxFuture<'static, f64>| {
        let url = url.to_owned();
        move |_: usize| measure(url.clone(), mode)
    };
    vec![
        Line::new(
            format!("{mode}, cycle"),
            "µs",
            with_url(|url, mode| Box::pin(cycle(url, mode))),
        ),
        Line::new(
            format!("{mode}, statements of a cycle"),
            "",
            with_url(|url, mode| Box::pin(statements(url, mode))),
        ),
        Line::new(
            format!("{mode}, hand-off"),
            "µs",
            with_url(|url, mode| Box::pin(hand_off(url, mode))),
        ),
        Line::new(
            format!("{mode}, {WORKERS} workers one lock, one client"),
            "/s",
            with_url(|url, mode| Box::pin(race(url, mode, 1))),
        ),
        Line::new(
            format!("{mode}, {WORKERS} workers one lock, a client each"),
            "/s",
            with_url(|url, mode| Box::pin(race(url, mode, WORKERS))),
        ),
        Line::new(
            format!("{mode}, {TASKS} × {NAMES}"),
            "/s",
            with_url(|url, mode| Box::pin(many_names(url, mode))),
        ),
    ]
}

async fn once(mutex: &Mutex) {
    let guard = mutex.lock().await.expect("the lock");
    let _ = guard.release().await.expect("it answers");
}

async fn cycle(url: String, mode: &'static str) -> f64 {
    let locks = client(&url, mode, "").await;
    let mutex = locks.mutex("cycle").expect("a name");
    once(&mutex).await;
    let mut times = Vec::new();
    for _ in 0..CYCLES {
        let started = Instant::now();
        once(&mutex).await;
        times.push(started.elapsed());
    }
    locks.close().await.expect("closed");
    micros(median(times))
}

async fn statements(url: String, mode: &'static str) -> f64 {
    let (locks, mut conn) = (client(&url, mode, "").await, raw(&url).await);
    let mut questions = async || -> u64 {
        let row: Option<(String, u64)> = conn
            .query_first("SHOW GLOBAL STATUS LIKE 'Questions'")
            .await
            .expect("status");
        row.expect("a row").1
    };
    let mutex = locks.mutex("cycle").expect("a name");
    once(&mutex).await;
    let before = questions().await;
    for _ in 0..10 {
        once(&mutex).await;
    }
    // Asking is a statement too.
    let asked = questions().await - before - 1;
    locks.close().await.expect("closed");
    asked as f64 / 10.0
}

/// From the call of the release to the moment at which one that waits, at another client, has the lock.
async fn hand_off(url: String, mode: &'static str) -> f64 {
    let (holder, waiter) = (client(&url, mode, "").await, client(&url, mode, "").await);
    let ours = holder.mutex("hand").expect("a name");
    let mut times = Vec::new();
    for _ in 0..HAND_OFFS {
        let guard = ours.lock().await.expect("free");
        let theirs = waiter.mutex("hand").expect("a name");
        let waits = tokio::spawn(async move {
            let guard = theirs.lock().await.expect("the lock");
            (guard, Instant::now())
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let started = Instant::now();
        let _ = guard.release().await.expect("it answers");
        let (guard, woke) = waits.await.expect("no panic");
        times.push(woke.saturating_duration_since(started));
        let _ = guard.release().await.expect("it answers");
    }
    holder.close().await.expect("closed");
    waiter.close().await.expect("closed");
    micros(median(times))
}

async fn race(url: String, mode: &'static str, clients: usize) -> f64 {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(client(&url, mode, "&connections=2").await);
    }
    let started = Instant::now();
    let end = started + RACE;
    let runs = (0..WORKERS).map(|worker| {
        let mutex = all
            .get(worker % clients)
            .expect("a client")
            .mutex("race")
            .expect("a name");
        tokio::spawn(async move {
            let mut turns = 0_u32;
            while Instant::now() < end {
                once(&mutex).await;
                turns += 1;
            }
            turns
        })
    });
    let rate = rate(join_all(runs).await, started);
    for locks in all {
        locks.close().await.expect("closed");
    }
    rate
}

async fn many_names(url: String, mode: &'static str) -> f64 {
    let locks = client(&url, mode, "").await;
    let mutexes = (0..NAMES).map(|n| locks.mutex(format!("many {n}")).expect("a name"));
    let mutexes: Vec<Mutex> = mutexes.collect();
    let started = Instant::now();
    let end = started + RACE;
    let runs = (0..TASKS).map(|task| {
        let mutexes = mutexes.clone();
        tokio::spawn(async move {
            let mut cycles = 0_u32;
            let mut at = task * NAMES / TASKS;
            while Instant::now() < end {
                at = (at + 7919) % NAMES;
                once(mutexes.get(at).expect("a name")).await;
                cycles += 1;
            }
            cycles
        })
    });
    let rate = rate(join_all(runs).await, started);
    locks.close().await.expect("closed");
    rate
}

fn rate(runs: Vec<Result<u32, tokio::task::JoinError>>, started: Instant) -> f64 {
    let turns: u32 = runs.into_iter().map(|run| run.expect("no panic")).sum();
    f64::from(turns) / started.elapsed().as_secs_f64()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
