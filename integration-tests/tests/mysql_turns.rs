//! The tokens of a hold that the tasks of a client pass on: nobody else ever gets one of them, whoever comes next.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use dlock_core::Capability;
use integration_tests::{Flavor, MySqlServer};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use mysql_support::*;

on_both!(
    clients_that_count_by_one_go_on_above_all_tokens_of_a_hold,
    automatic_numbers_go_on_above_all_tokens_of_a_hold_after_a_restart,
    who_asks_by_the_version_before_does_not_take_what_is_held,
    downgraded_hold_keeps_its_token_and_the_next_one_is_above_all,
);

/// How many tokens a hold has.
const TURNS: u64 = 64;

/// A statement as the version before had it, which counted by one: `{turns}` is 1 there.
fn before(sql: &str, mode: &str) -> String {
    let lines = sql.lines().filter(|line| !line.starts_with("--"));
    let text = lines.collect::<Vec<_>>().join(" ");
    text.replace("{turns}", "1")
        .replace("{prefix}", "dlock_")
        .replace("{marks}", &format!("dlock_{mode}_marks"))
        .replace("{takes_writes}", "1")
        .replace("{writable}", "TRUE")
        // That version did not ask who waits, and bound what stands in the text now.
        .replace("{who_waits}", "NULL")
        .replace("{id}", "?")
        .replace("{attempt}", "?")
        .replace("{name}", "?")
}

const LEASE: u64 = 600_000_000;
const STRANGER: [u8; 16] = [7; 16];

/// Takes a free lock as a client of the version before does, gives it back, and tells the token.
async fn taken_by_one_of_before(conn: &mut Conn, mode: &str, name: &str) -> u64 {
    let owner = STRANGER.as_slice();
    match mode {
        "lease" => {
            let take = include_str!("../../crates/dlock-mysql/src/sql/lease_acquire.sql");
            let args = (owner, "", LEASE, LEASE, name);
            conn.exec_drop(before(take, mode), args).await.unwrap();
            assert_eq!(conn.affected_rows(), 1, "{mode}");
            let token = conn.last_insert_id().expect("a token");
            let free = include_str!("../../crates/dlock-mysql/src/sql/lease_release.sql");
            let args = (name, owner);
            conn.exec_drop(before(free, mode), args).await.unwrap();
            assert_eq!(conn.affected_rows(), 1, "{mode}");
            token
        }
        "unique" => {
            let take = include_str!("../../crates/dlock-mysql/src/sql/unique_claim.sql");
            for affected in [1, 2] {
                let args = (name, owner, LEASE, LEASE, "");
                conn.exec_drop(before(take, mode), args).await.unwrap();
                assert_eq!(conn.affected_rows(), affected, "{mode}");
            }
            let token = conn.last_insert_id().expect("a token");
            let free = include_str!("../../crates/dlock-mysql/src/sql/unique_release.sql");
            let args = (token, owner, name);
            conn.exec_drop(before(free, mode), args).await.unwrap();
            assert_eq!(conn.affected_rows(), 1, "{mode}");
            token
        }
        _ => {
            let version = format!(
                "SELECT id, stamp, fence FROM dlock_{mode}_marks WHERE name = ? AND part = 1"
            );
            let mark: Option<(u64, u64, u64)> = conn.exec_first(version, (name,)).await.unwrap();
            let (id, stamp, last) = mark.expect("a mark");
            let take = include_str!("../../crates/dlock-mysql/src/sql/mark_claim.sql");
            let args = (owner, 1_000_000, 5, "", id, stamp);
            conn.exec_drop(before(take, mode), args).await.unwrap();
            assert_eq!(conn.affected_rows(), 1, "{mode}");
            let free = include_str!("../../crates/dlock-mysql/src/sql/mark_abandon.sql");
            let args = (name, owner);
            conn.exec_drop(before(free, mode), args).await.unwrap();
            assert_eq!(conn.affected_rows(), 1, "{mode}");
            last + 1
        }
    }
}

/// Clients of both versions take turns, in every order.
async fn clients_that_count_by_one_go_on_above_all_tokens_of_a_hold(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let mut conn = connection(&server.url()).await;
    for mode in MODES {
        let locks = client(&url(&server, mode)).await;
        assert!(locks.capabilities().has(Capability::PassOn), "{mode}");
        let mut last = 0;
        for round in 0..4 {
            let guard = lock(&locks, "a").await;
            let first = guard.token().expect("a token").get();
            assert!(first > last, "{mode}: {first} after {last}, round {round}");
            let shown = locks.inspect("a").await.expect("it answers");
            assert_eq!(shown.holders[0].token, guard.token(), "{mode}");
            let listed = locks.list("a").await.expect("it answers");
            assert_eq!(listed[0].holders[0].token, guard.token(), "{mode}");
            free(guard).await;
            last = first + TURNS - 1;
            for _ in 0..round {
                let token = taken_by_one_of_before(&mut conn, mode, "a").await;
                assert!(token > last, "{mode}: {token} after {last}, round {round}");
                last = token;
            }
        }
    }
}

/// The server counts on after a restart from what it has on disk, which is the number that it drew last.
async fn automatic_numbers_go_on_above_all_tokens_of_a_hold_after_a_restart(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for orderly in [true, false] {
        let locks = client(&url(&server, "unique")).await;
        free(lock(&locks, "a").await).await;
        let guard = lock(&locks, "a").await;
        let last = guard.token().expect("a token").get() + TURNS - 1;
        free(guard).await;
        locks.close().await.expect("closed");
        restart(&server, orderly).await;
        let locks = client(&url(&server, "unique")).await;
        let guard = lock(&locks, "a").await;
        let next = guard.token().expect("a token").get();
        assert!(next > last, "{next} after {last}");
        free(guard).await;
        locks.close().await.expect("closed");
    }
}

async fn restart(server: &MySqlServer, orderly: bool) {
    if orderly {
        server.terminate().await.expect("it ends");
    } else {
        server.kill();
    }
    server.restart().await.expect("it comes back");
}

/// For a client that looks closely, a counter that is above the row's token means that it has just taken the lock.
async fn who_asks_by_the_version_before_does_not_take_what_is_held(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let mut conn = connection(&server.url()).await;
    let locks = client(&url(&server, "lease")).await;
    // The first use of a name looks closely itself; the next one takes it by the short statement.
    free(lock(&locks, "a").await).await;
    let guard = lock(&locks, "a").await;
    let holder = locks.inspect("a").await.expect("it answers").holders[0].clone();
    let closely = include_str!("../../crates/dlock-mysql/src/sql/lease_acquire_closely.sql");
    let closely = before(closely, "lease");
    let other = STRANGER.as_slice();
    let args = (other, other, other, "", LEASE, other, LEASE, "a");
    conn.exec_drop(closely, args).await.unwrap();
    let answer = conn.last_insert_id().expect("an answer");
    assert!(answer & (1 << 62) != 0, "busy, and it said {answer}");
    let now = locks.inspect("a").await.expect("it answers").holders[0].clone();
    assert_eq!((now.owner, now.token), (holder.owner, holder.token));
    free(guard).await;
}

/// A reader that was a writer shows the token it had, and the next writer's are above all that the first could have used.
async fn downgraded_hold_keeps_its_token_and_the_next_one_is_above_all(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let locks = client(&url(&server, "lease")).await;
    let lock = locks.rw_lock("a").expect("a name");
    let guard = soon("to write", lock.write()).await.expect("to write");
    let first = guard.token().expect("a token").get();
    guard.downgrade().await.expect("to read");
    let shown = locks.inspect("a").await.expect("it answers");
    assert_eq!(shown.holders[0].token, guard.token());
    let reader = soon("to read", lock.read()).await.expect("to read");
    let theirs = reader.token().expect("a token").get();
    assert!(theirs > first + TURNS - 1, "{theirs} after {first}");
    free(reader).await;
    free(guard).await;
    let next = soon("to write", lock.write()).await.expect("to write");
    assert!(next.token().expect("a token").get() > theirs);
    free(next).await;
}
