//! Programs of two versions and one set of tables: the newer brings the tables up to date when nobody holds anything, and the older is kept out.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use dlock_core::{ErrorKind, Locks};
use dlock_postgres::{Config, migration};
use integration_tests::{PostgresServer, until};
use postgres_support::*;

/// What the version before made.
const OLD: &str = include_str!("postgres_support/version_1.sql");

/// A free lock, a hold and a mark of the version before. Their tokens were the numbers themselves.
const USED: &str = "INSERT INTO dlock_locks (name, token) VALUES ('free', 1000); \
    INSERT INTO dlock_sessions (name, key, token) VALUES ('free', 7, 1000); SELECT setval('dlock_tokens', 1000)";

const ACQUIRE: &str =
    "SELECT dlock_acquire('a', '00000000-0000-0000-0000-000000000000', -1, 1, '', NULL, NULL, 1)";

async fn old() -> PostgresServer {
    let server = PostgresServer::start().await.expect("a server");
    server.sql(OLD).await.expect("the tables of version 1");
    server.sql(USED).await.expect("used");
    server
}

async fn versions(server: &PostgresServer) -> String {
    let all = "SELECT k, v FROM dlock_meta WHERE k IN ('lease', 'session') ORDER BY k";
    server.sql(all).await.expect("versions")
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_the_version_before_are_brought_up_to_date() {
    for mode in ["lease", "session"] {
        let server = old().await;
        assert_eq!(versions(&server).await, "lease\t1\nsession\t1\n");
        let locks = client(&with(&server.url(), &format!("mode={mode}"))).await;
        let guard = lock(&locks, "free").await;
        let token = guard.token().expect("a token").get();
        assert!(token > 1000, "{mode}: {token} after 1000");
        free(guard).await;
        // A program of the version before finds another version, and stops; one that runs finds its functions gone, and does not go on with tokens
        // that are too low.
        assert_eq!(versions(&server).await, "lease\t2\nsession\t2\n");
        let error = connection(&server.url()).await.batch_execute(ACQUIRE).await;
        let error = error.expect_err("the function of version 1");
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("42883"),
            "{error}"
        );
        // The other mode was brought along.
        let other = if mode == "lease" { "session" } else { "lease" };
        let locks = client(&with(&server.url(), &format!("mode={other}"))).await;
        free(lock(&locks, "free").await).await;
    }
}

/// Its holder would find its functions gone, and lose the lock with its lease.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_the_version_before_is_using_are_left_alone() {
    let server = old().await;
    let keeper = connection(&server.url()).await;
    let nobody = "'00000000-0000-0000-0000-000000000001'";
    let far = "clock_timestamp() + interval '1 hour'";
    for (hold, end) in [
        (
            format!("UPDATE dlock_locks SET owner = {nobody}, expires_at = {far}"),
            "UPDATE dlock_locks SET owner = NULL".to_owned(),
        ),
        (
            format!(
                "INSERT INTO dlock_holders VALUES ('free', {nobody}, 0, 1001, 1, now(), {far}, '')"
            ),
            "DELETE FROM dlock_holders".to_owned(),
        ),
        (
            format!(
                "SELECT pg_advisory_lock(77); UPDATE dlock_sessions SET owner = {nobody}, sign = 77"
            ),
            "SELECT pg_advisory_unlock(77)".to_owned(),
        ),
    ] {
        keeper.batch_execute(&hold).await.expect("a hold");
        let config = Config::from_url(&server.url()).expect("a good URL");
        let error = config.connect().await.expect_err("it is in use");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for part in ["version 1", "needs 2", "holds a lock"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(versions(&server).await, "lease\t1\nsession\t1\n");
        keeper
            .batch_execute(ACQUIRE)
            .await
            .expect("the function of version 1");
        keeper
            .batch_execute("DELETE FROM dlock_locks WHERE name = 'a'")
            .await
            .expect("as before");
        keeper.batch_execute(&end).await.expect("its end");
    }
    free(lock(&client(&server.url()).await, "free").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_change_the_tables_is_told_who_must() {
    let server = old().await;
    let rights = "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT USAGE ON SCHEMA public TO app; \
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; GRANT USAGE ON SEQUENCE dlock_tokens TO app";
    server.sql(rights).await.expect("a user");
    let url = server.url().replace("dlock@", "app:app@");
    let app = || Config::from_url(&url).expect("a good URL");
    for (config, kind) in [
        (app(), ErrorKind::Denied),
        (app().create_tables(false), ErrorKind::Unsupported),
    ] {
        let error = config.connect().await.expect_err("old tables");
        assert_eq!(error.kind(), kind, "{error}");
        for part in ["version 1", "needs 2", "dlock_postgres::migration"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    assert_eq!(versions(&server).await, "lease\t1\nsession\t1\n");
    let sql = migration("public", "dlock_").expect("SQL");
    // Twice: running it again changes nothing.
    for _ in 0..2 {
        server.sql(&sql).await.expect("new tables");
    }
    let locks = Locks::new(app().connect().await.expect("a connection")).expect("defaults");
    free(lock(&locks, "free").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_tables_are_refused() {
    let server = old().await;
    server
        .sql("UPDATE dlock_meta SET v = 9")
        .await
        .expect("newer");
    let config = Config::from_url(&server.url()).expect("a good URL");
    let error = config.connect().await.expect_err("newer tables");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for part in ["version 9", "needs 2", "the same version of dlock"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(versions(&server).await, "lease\t9\nsession\t9\n");
}

/// Calls of a program of the version before that came while the tables were changed. They are inside a function that is gone afterwards, and wait for
/// the tables: a token that they got then would be lower than those that the new version has given out (C11).
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_version_before_that_waited_for_the_change_takes_nothing() {
    let server = old().await;
    let call = |kind: i32| {
        format!(
            "SELECT said, number FROM dlock_acquire('free', '00000000-0000-0000-0000-00000000000{}', {kind}, 60000000, '', NULL, NULL, 1)",
            kind + 2
        )
    };
    let mut calls = Vec::new();
    for kind in [-1, 0, 3] {
        // One that comes for the first time, and one that the server has planned already.
        let (first, again) = (
            connection(&server.url()).await,
            connection(&server.url()).await,
        );
        let undo = format!(
            "{}; SELECT dlock_release('free', '00000000-0000-0000-0000-00000000000{}', 0)",
            call(kind),
            kind + 2
        );
        again.batch_execute(&undo).await.expect("version 1");
        calls.extend([(kind, first), (kind, again)]);
    }
    let change = connection(&server.url()).await;
    let sql = migration("public", "dlock_").expect("SQL");
    let begin = format!("BEGIN; {sql}");
    change.batch_execute(&begin).await.expect("new tables");
    let calls: Vec<_> = calls
        .into_iter()
        .map(|(kind, connection)| {
            let sql = call(kind);
            tokio::spawn(async move { (kind, connection.query(&sql, &[]).await) })
        })
        .collect();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("they wait", SOON, || async {
        match server.sql(waiting).await?.trim() {
            "6" => Ok(()),
            found => Err(integration_tests::Error::answer("waiting", found)),
        }
    })
    .await
    .expect("they wait");
    change.batch_execute("COMMIT").await.expect("new tables");
    for call in calls {
        let (kind, taken) = soon("an answer", call).await.expect("no panic");
        let taken = taken.map(|rows| {
            let row = rows.first().expect("a row");
            (row.get::<_, Option<i32>>(0), row.get::<_, Option<i64>>(1))
        });
        assert!(taken.is_err(), "kind {kind}: {taken:?}");
    }
    let locks = client(&server.url()).await;
    free(lock(&locks, "free").await).await;
}

/// A newer program comes between the look of this one and its change of the tables.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_program_that_was_quicker_wins() {
    let server = old().await;
    let newer = connection(&server.url()).await;
    // What everybody who makes the tables locks first.
    let begin = "BEGIN; SELECT pg_advisory_xact_lock(4983251072931170125)";
    newer.batch_execute(begin).await.expect("the newer one");
    let config = Config::from_url(&server.url()).expect("a good URL");
    let connecting = tokio::spawn(config.connect());
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("it waits", SOON, || async {
        match server.sql(waiting).await?.trim() {
            "1" => Ok(()),
            found => Err(integration_tests::Error::answer("waiting", found)),
        }
    })
    .await
    .expect("it waits");
    let end = "UPDATE dlock_meta SET v = 9 WHERE k IN ('lease', 'session'); COMMIT";
    newer.batch_execute(end).await.expect("newer tables");
    let connected = soon("an answer", connecting).await.expect("no panic");
    let error = connected.expect_err("newer tables");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for part in ["version 9", "needs 2", "the same version of dlock"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(versions(&server).await, "lease\t9\nsession\t9\n");
    // Nor by hand, statement by statement.
    let functions = "SELECT md5(string_agg(prosrc, '' ORDER BY proname)) FROM pg_proc WHERE proname LIKE 'dlock%'";
    let before = server.sql(functions).await.expect("functions");
    let sql = migration("public", "dlock_").expect("SQL");
    let refused = server.sql(&sql).await.expect_err("newer tables");
    assert!(refused.to_string().contains("have version 9"), "{refused}");
    assert_eq!(versions(&server).await, "lease\t9\nsession\t9\n");
    assert_eq!(server.sql(functions).await.expect("functions"), before);
}
