//! What waiting costs the server, counted in statements.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use dlock_core::Locks;
use integration_tests::{Postgres, PostgresServer, until};
use postgres_support::*;

const CLIENTS: usize = 24;

/// A server that writes down each statement that it is asked for, before it answers.
async fn start() -> PostgresServer {
    let settings = Postgres::set(&["log_statement=all", "track_functions=none"]);
    PostgresServer::start_with(settings)
        .await
        .expect("a server")
}

/// How often a function of ours was called by clients.
fn calls(server: &PostgresServer, function: &str) -> usize {
    let call = format!("FROM \"public\".\"dlock_{function}\"($1");
    let select = format!("SELECT \"public\".\"dlock_{function}\"($1");
    let log = server.log();
    let executes = log.lines().filter(|line| line.contains("execute"));
    executes
        .filter(|line| line.contains(&call) || line.contains(&select))
        .count()
}

/// Clients that look after their places so seldom that every call that is counted has another reason.
async fn clients(server: &PostgresServer) -> Vec<Locks> {
    let url = with(&server.url(), "waiter_lease=1h&connections=2");
    let all = (0..CLIENTS).map(|_| client(&url));
    futures::future::join_all(all).await
}

async fn all_listen(server: &PostgresServer, waiters: usize) {
    let sql =
        format!("SELECT 1 / (count(*) / {waiters}) FROM dlock_waiters WHERE bell IS NOT NULL");
    until("they listen", SOON, || server.sql(&sql))
        .await
        .expect("they listen");
}

/// Fifty new clients that asked all the time while the server made their connections kept it from making them, and from everything else.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_asks_all_the_time_while_the_connection_that_listens_is_made() {
    let server = start().await;
    let holder = client(&server.url()).await;
    let guard = lock(&holder, "a").await;
    let clients = clients(&server).await;
    let before = calls(&server, "acquire");
    let waiting: Vec<_> = clients.iter().map(|locks| waiter(locks, "a")).collect();
    all_listen(&server, CLIENTS).await;
    let asked = calls(&server, "acquire") - before;
    // Once to find the lock busy, once to say where to tell it; a few may have found the server slow.
    assert!(
        (2 * CLIENTS..=3 * CLIENTS).contains(&asked),
        "{CLIENTS} waiters asked {asked} times"
    );
    for task in &waiting {
        task.abort();
    }
    free(guard).await;
}

/// Once everybody listens, a turn is one call to stand in the queue and one to hand the lock on: nobody asks whether it is its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_two_calls_however_many_wait() {
    const TURNS: usize = 20;
    let server = start().await;
    let holder = client(&server.url()).await;
    let guard = lock(&holder, "a").await;
    let clients = clients(&server).await;
    let run = |locks: Locks| async move {
        for _ in 0..TURNS {
            free(lock(&locks, "a").await).await;
        }
    };
    let all: Vec<_> = clients.into_iter().map(run).map(tokio::spawn).collect();
    all_listen(&server, CLIENTS).await;
    let before = (calls(&server, "acquire"), calls(&server, "release"));
    free(guard).await;
    for task in all {
        soon("all turns", task).await.expect("no panic");
    }
    let turns = CLIENTS * TURNS;
    let asked = calls(&server, "acquire") - before.0;
    let released = calls(&server, "release") - before.1;
    // The first of the queue looks when the lease of the holder ends, and a grant that is late by a quarter of it is confirmed.
    assert!(
        asked <= turns + CLIENTS && released <= turns + 1,
        "{turns} turns: {asked} acquires, {released} releases"
    );
}
