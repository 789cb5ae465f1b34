//! What the modes do on a server that is well: first uses, dropped futures, sweeps, what a cycle costs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Order, Settings};
use dlock_mysql::Config;
use integration_tests::{Flavor, MySql, MySqlServer};
use mysql_async::prelude::Queryable;
use mysql_support::*;

on_both!(
    dropped_futures_never_give_a_wrong_answer_to_a_later_call,
    first_use_of_a_name_by_a_hundred_clients_shows_no_error,
    sweep_removes_what_is_unused_and_tokens_go_on,
    sweep_spares_readers_and_permits,
    sweep_goes_in_parts_and_finds_all,
    tables_without_a_prefix_may_be_called_like_words_of_sql,
    lease_cycle_is_two_statements_and_a_renewal_one,
    waiters_ask_seldom_while_a_hold_is_long,
    server_that_logs_statements_is_good_for_all_modes_but_session,
);

async fn dropped_futures_never_give_a_wrong_answer_to_a_later_call(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    for mode in MODES {
        let url = with(
            server.url(),
            &format!("mode={mode}&table_prefix=d_&connections=2"),
        );
        let locks = client(&url).await;
        let held = lock(&locks, "held all the time").await;
        let strict = locks.with(Settings::new().order(Order::Strict));
        let strict = strict.expect("settings");
        let mut tokens = HashSet::new();
        for round in 0..200_u64 {
            let mutex = locks.mutex("dropped").expect("a name");
            // Dropped after some polls, at a different place each time.
            let patience = Duration::from_micros(round * 7 % 900);
            if let Ok(guard) = tokio::time::timeout(patience, mutex.lock()).await {
                let guard = guard.expect("it answers");
                let token = guard.token().expect("a token");
                assert!(tokens.insert(token), "{mode}: the token {token} came twice");
            }
            if round % 10 == 0 {
                let busy = strict.mutex("held all the time").expect("a name");
                let busy = busy.try_lock().await.expect("it answers");
                assert!(busy.is_none(), "{mode}: an answer of another call");
            }
        }
        free(held).await;
        soon("all is undone", locks.close()).await.expect("closed");
    }
}

/// First use of a name under concurrency: no deadlock, no duplicate-key error.
async fn first_use_of_a_name_by_a_hundred_clients_shows_no_error(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let url = with(&url(&server, mode), "connections=1");
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.push(client(&url).await);
        }
        let tries = clients.iter().map(|locks| {
            let mutex = locks.mutex("new").expect("a name");
            async move { mutex.try_lock().await }
        });
        let outcomes = futures::future::join_all(tries).await;
        let held = outcomes
            .into_iter()
            .filter_map(|outcome| outcome.unwrap_or_else(|error| panic!("{mode}: {error}")))
            .count();
        assert_eq!(held, 1, "{mode}");
        for locks in clients {
            locks.close().await.expect("closed");
        }
    }
}

/// A sweep removes what nobody uses, and never a live hold.
async fn sweep_removes_what_is_unused_and_tokens_go_on(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    for mode in ["lease", "unique"] {
        let url = with(server.url(), &format!("mode={mode}&table_prefix=s_"));
        let backend = backend(&url).await;
        let locks = Locks::new(backend.clone()).expect("defaults");
        let mut last = None;
        for _ in 0..5 {
            let guard = lock(&locks, "often").await;
            last = guard.token();
            free(guard).await;
        }
        let held = lock(&locks, "held").await;
        let swept = backend.sweep(Duration::from_secs(3600)).await;
        assert_eq!(swept.expect("swept"), 0, "{mode}: used a moment ago");
        let unused = if mode == "lease" { 1 } else { 0 };
        let swept = backend.sweep(Duration::ZERO).await;
        assert_eq!(swept.expect("swept"), unused, "{mode}: all that is free");
        let other = client(&url).await.mutex("held").expect("a name");
        assert!(other.try_lock().await.expect("it answers").is_none());
        let again = lock(&locks, "often").await;
        assert!(again.token() > last, "{:?} after {last:?}", again.token());
        free(held).await;
        free(again).await;
    }
}

/// A client with a new name waits for the part of a sweep that is under way, so the parts are small.
async fn sweep_goes_in_parts_and_finds_all(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let backend = backend(&server.url()).await;
    let locks = Locks::new(backend.clone()).expect("defaults");
    let held = lock(&locks, "n0700").await;
    let ten = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 \
         UNION SELECT 8 UNION SELECT 9)";
    let unused = format!(
        "INSERT IGNORE INTO dlock_locks SELECT CONCAT('n', a.d, b.d, c.d, e.d), NULL, 7, 7, 0, '2020-01-01', '2020-01-01', 0, \
         '2020-01-01', '' FROM {ten} a, {ten} b, {ten} c, {ten} e WHERE a.d < 2"
    );
    server.sql(&unused).await.expect("rows");
    let commits = async || -> u64 {
        let told = server.sql("SHOW GLOBAL STATUS LIKE 'Com_commit'").await;
        let told = told.expect("status");
        told.trim()
            .rsplit('\t')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number")
    };
    let before = commits().await;
    let swept = backend.sweep(Duration::from_secs(3600)).await;
    assert_eq!(swept.expect("swept"), 1999, "all but the held one");
    let parts = commits().await - before;
    assert!(parts >= 4, "{parts} parts");
    free(held).await;
    let next = lock(&locks, "n1234").await;
    assert!(
        next.token().expect("a token").get() > 7,
        "tokens start again"
    );
    free(next).await;
}

async fn tables_without_a_prefix_may_be_called_like_words_of_sql(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    for mode in MODES {
        let url = with(&server.url(), &format!("mode={mode}&table_prefix="));
        let locks = client(&url).await;
        free(lock(&locks, "plain").await).await;
    }
}

async fn sweep_spares_readers_and_permits(flavor: Flavor) {
    let server = integration_tests::mysql_of(flavor).await.expect("a server");
    let url = with(server.url(), "table_prefix=r_");
    let backend = backend(&url).await;
    let locks = Locks::new(backend.clone()).expect("defaults");
    let read = locks.rw_lock("read").expect("a name").read().await;
    let read = read.expect("free");
    let permit = locks
        .semaphore("permit", 1)
        .expect("a name")
        .acquire()
        .await;
    let permit = permit.expect("free");
    assert_eq!(backend.sweep(Duration::ZERO).await.expect("swept"), 0);
    let other = client(&url).await;
    let write = other.rw_lock("read").expect("a name").try_write().await;
    assert!(write.expect("it answers").is_none());
    let second = other.semaphore("permit", 1).expect("a name");
    assert!(second.try_acquire().await.expect("it answers").is_none());
    free(read).await;
    free(permit).await;
}

/// One statement takes a lock, one gives it back, and one renews all locks of a client.
async fn lease_cycle_is_two_statements_and_a_renewal_one(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let locks = client(&server.url()).await;
    let mut conn = connection(&server.url()).await;
    let mut questions = async || -> u64 {
        let row: Option<(String, u64)> = conn
            .query_first("SHOW GLOBAL STATUS LIKE 'Questions'")
            .await
            .expect("status");
        row.expect("a row").1
    };
    free(lock(&locks, "count").await).await;
    // Asking costs one itself.
    let before = questions().await + 1;
    for _ in 0..10 {
        free(lock(&locks, "count").await).await;
    }
    assert_eq!(questions().await - before, 20);

    let settings = Settings::new().lease(Duration::from_secs(6));
    let many = locks.with(settings).expect("settings");
    let mut held = Vec::new();
    for n in 0..8 {
        held.push(lock(&many, &format!("many {n}")).await);
    }
    let (renewals, before) = (many.stats().renewals, questions().await + 1);
    soon("a renewal of all", async {
        while many.stats().renewals < renewals + 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let statements = questions().await - before;
    assert!(
        (1..=2).contains(&statements),
        "{statements} statements for one renewal of eight locks"
    );
    for guard in held {
        free(guard).await;
    }
}

/// What a server writes to its log for a change grows when the row moves for it. MySQL counts whole blocks.
#[tokio::test(flavor = "multi_thread")]
async fn cycle_changes_its_row_in_place() {
    const NAMES: u64 = 300;
    let server = Flavor::MariaDb.start().await.expect("a server");
    let mut conn = connection(&server.url()).await;
    let mut logged = async || -> u64 {
        let status = "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'";
        let row: Option<(String, u64)> = conn.query_first(status).await.expect("status");
        row.expect("a row").1
    };
    for mode in ["lease", "session", "advisory"] {
        let locks = client(&url(&server, mode)).await;
        let all = async || {
            for number in 0..NAMES {
                free(lock(&locks, &format!("place {number}")).await).await;
            }
        };
        all().await;
        let before = logged().await;
        all().await;
        let each = (logged().await - before) / NAMES;
        println!("{mode}: {each} bytes of log for a cycle");
        assert!(each < 900, "{mode}: {each} bytes of log for a cycle");
    }
}

/// How many statements the server has carried out, this one too.
async fn questions(conn: &mut mysql_async::Conn) -> u64 {
    let row: Option<(String, u64)> = conn
        .query_first("SHOW GLOBAL STATUS LIKE 'Questions'")
        .await
        .expect("status");
    row.expect("a row").1
}

/// A crowd that waits for a long hold must not cost the server a core: counted at the server.
async fn waiters_ask_seldom_while_a_hold_is_long(flavor: Flavor) {
    const WAITERS: usize = 64;
    let server = flavor.start().await.expect("a server");
    let mut conn = connection(&server.url()).await;
    for (mode, table) in [("lease", "dlock_locks"), ("unique", "dlock_unique")] {
        let url = with(&url(&server, mode), "connections=1");
        let guard = lock(&client(&url).await, "long").await;
        let old = format!(
            "UPDATE {table} SET taken_at = taken_at - INTERVAL 1 MINUTE WHERE name = 'long'"
        );
        conn.query_drop(old).await.expect("an older hold");
        let mut clients = Vec::new();
        for _ in 0..WAITERS {
            clients.push(client(&url).await);
        }
        let waits = clients.iter().map(|locks| {
            let mutex = locks.mutex("long").expect("a name");
            tokio::spawn(async move { free(mutex.lock().await.expect("the lock")).await })
        });
        let waits: Vec<_> = waits.collect();
        soon("all wait", async {
            while clients.iter().any(|locks| locks.stats().waiting == 0) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        // The first question of each, and the one that tells how old the hold is.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, started) = (questions(&mut conn).await, std::time::Instant::now());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let statements = questions(&mut conn).await - before;
        let rate = statements as f64 / started.elapsed().as_secs_f64();
        assert!(
            rate < 150.0,
            "{mode}: {rate:.0} statements/s of {WAITERS} waiters"
        );
        free(guard).await;
        // Each of them gets it, one after the other.
        let all = futures::future::join_all(waits);
        for waited in soon("all had it", all).await {
            waited.expect("no panic");
        }
    }
}

/// Such a server locks no rows at READ COMMITTED, and takes no writes.
async fn server_that_logs_statements_is_good_for_all_modes_but_session(flavor: Flavor) {
    let server = MySqlServer::start_with(MySql {
        flavor,
        args: [
            "--log-bin=log",
            "--binlog-format=STATEMENT",
            "--server-id=1",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..MySql::default()
    })
    .await
    .expect("a server");
    let session = Config::from_url(&url(&server, "session")).expect("a good URL");
    let error = session.connect().await.expect_err("it cannot");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("ROW or MIXED"), "{error}");
    for mode in ["lease", "unique", "advisory"] {
        let (locks, other) = (
            client(&url(&server, mode)).await,
            client(&url(&server, mode)).await,
        );
        let mut last = None;
        for _ in 0..5 {
            let guard = lock(&locks, "logged").await;
            let waits = waiter(&other, "logged");
            assert!(guard.token() > last, "{mode}");
            free(guard).await;
            let next = soon("the waiter", waits).await.expect("no panic");
            let next = next.expect("it answers");
            last = next.token();
            free(next).await;
        }
    }
}
