//! Mode `session`: advisory locks on connections of their own, what ends them, and who may not have them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Guard, Locks};
use dlock_postgres::Config;
use integration_tests::{PgBouncer, PgBouncerServer, Postgres, PostgresServer, until};
use postgres_support::*;

const VALIDITY: Duration = Duration::from_secs(2);

async fn start() -> PostgresServer {
    PostgresServer::start().await.expect("a server")
}

async fn session(url: &str) -> Locks {
    client(&with(url, "mode=session&session_validity=2s")).await
}

/// Ends the connections that hold a name, as an administrator does.
async fn kill_holders(server: &PostgresServer, name: &str) {
    let sql = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_locks l, dlock_sessions s WHERE l.locktype = 'advisory' AND l.granted \
         AND (l.classid::bigint << 32 | l.objid::bigint) = s.key AND s.name = '{name}'"
    );
    assert_eq!(server.sql(&sql).await.expect("a count").trim(), "1");
}

async fn waits(server: &PostgresServer) {
    let sql = "SELECT 1 / count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("it waits", SOON, || server.sql(sql))
        .await
        .expect("a waiter");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_connections_is_refused() {
    let server = start().await;
    for (mode, good) in [
        ("session", true),
        ("transaction", false),
        ("statement", false),
    ] {
        let bouncer = PgBouncerServer::start_with(PgBouncer {
            to: server.addr(),
            mode,
            size: 20,
        })
        .await
        .expect("a pooler");
        let url = with(&bouncer.url(), "mode=session");
        let config = Config::from_url(&url).expect("a good URL");
        match config.connect().await {
            Ok(backend) => {
                assert!(good, "{mode}");
                let locks = Locks::new(backend).expect("defaults");
                free(lock(&locks, "a").await).await;
            }
            Err(error) => {
                assert!(!good, "{mode}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("pool_mode=session"), "{error}");
            }
        }
    }
}

/// A key is drawn by lot and kept beside the name: two names never share one, and a stranger who uses the hash of a name meets nobody.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_names_share_a_key() {
    let server = start().await;
    let locks = session(&server.url()).await;
    let first = lock(&locks, "name 0").await;
    for n in 1..200 {
        free(lock(&locks, &format!("name {n}")).await).await;
    }
    let same = "SELECT count(*) = 200 AND count(DISTINCT key) = 200 AND count(*) FILTER (WHERE key IN \
        (hashtextextended(name, 0), hashtext(name))) = 0 FROM dlock_sessions";
    assert_eq!(server.sql(same).await.expect("a row").trim(), "t");
    // And nobody can make them so.
    let share = "UPDATE dlock_sessions SET key = (SELECT key FROM dlock_sessions WHERE name = 'name 0') WHERE name = 'name 1'";
    server.sql(share).await.expect_err("a key is unique");
    free(first).await;
}

/// The server gives the lock to the next one in the moment in which it ends the connection, and its holder learns of it later.
#[tokio::test(flavor = "multi_thread")]
async fn two_never_hold_when_a_connection_is_killed() {
    let server = start().await;
    let (one, other) = (session(&server.url()).await, session(&server.url()).await);
    let guard = lock(&one, "a").await;
    let waiting = waiter(&other, "a");
    waits(&server).await;
    let killed = Instant::now();
    kill_holders(&server, "a").await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    let next = next.expect("the lock");
    assert!(!guard.is_held(), "two hold, {:?} later", killed.elapsed());
    assert!(next.is_held());
    assert!(next.token() > guard.token());
    free(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_goes_on_at_another_connection_if_nobody_has_asked() {
    let server = start().await;
    let (one, other) = (session(&server.url()).await, session(&server.url()).await);
    let guard = lock(&one, "a").await;
    kill_holders(&server, "a").await;
    let again = "SELECT 1 / count(*) FROM pg_locks l, dlock_sessions s WHERE l.locktype = 'advisory' AND l.granted \
        AND (l.classid::bigint << 32 | l.objid::bigint) = s.key AND s.name = 'a'";
    until("it is held again", SOON, || server.sql(again))
        .await
        .expect("held");
    let lost = tokio::time::timeout(VALIDITY * 2, guard.lost()).await;
    lost.expect_err("the hold was lost");
    let tried = other.mutex("a").expect("a name").try_lock().await;
    assert!(tried.expect("an answer").is_none(), "two hold");
    free(guard).await;
    free(lock(&other, "a").await).await;
}

/// The old primary is killed; what its standby has received goes on there.
#[tokio::test(flavor = "multi_thread")]
async fn promotion_under_a_holder_never_lets_two_hold() {
    let primary = start().await;
    let standby = PostgresServer::start_with(Postgres {
        follows: Some(primary.port()),
        ..Postgres::default()
    })
    .await
    .expect("a standby");
    let both = format!(
        "postgres://dlock@{},{}/dlock?connect_timeout=1s",
        primary.addr(),
        standby.addr()
    );
    let (one, other) = (session(&both).await, session(&both).await);
    let guard = lock(&one, "a").await;
    let token = guard.token();
    let sent =
        "SELECT 1 / count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
    until("the standby has it", SOON, || primary.sql(sent))
        .await
        .expect("replicated");
    primary.kill();
    standby.promote().await.expect("a primary");
    let mutex = other.mutex("a").expect("a name");
    let first = Arc::new(Mutex::new(Some(guard)));
    let is_held = move |first: &Mutex<Option<Guard>>| {
        let first = first.lock().expect("no panic");
        first.as_ref().is_some_and(Guard::is_held)
    };
    let seen = first.clone();
    let next = tokio::spawn(async move {
        loop {
            // While no host takes writes it is an error.
            if let Ok(guard) = mutex.lock().await {
                assert!(!(guard.is_held() && is_held(&seen)), "two hold");
                return guard;
            }
        }
    });
    // It goes on, or is lost: in both cases it ends, at the latest when we let go.
    let _ = tokio::time::timeout(VALIDITY * 3, async {
        while is_held(&first) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let guard = first.lock().expect("no panic").take();
    drop(guard);
    let next = soon("the next one", next).await.expect("no panic");
    assert!(next.token() > token, "{:?} after {token:?}", next.token());
    free(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_free_session_says_so() {
    let server = start().await;
    let locks = session(&with(&server.url(), "max_sessions=1")).await;
    let guard = lock(&locks, "a").await;
    let error = locks.mutex("b").expect("a name").try_lock().await;
    let error = error.expect_err("no session");
    assert!(error.to_string().contains("max_sessions"), "{error}");
    free(guard).await;
    free(lock(&locks, "b").await).await;
}

/// A user who may use the tables and not the sequence is told at connect.
#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_told_at_connect() {
    let server = start().await;
    free(lock(&session(&server.url()).await, "a").await).await;
    server
        .sql("CREATE ROLE app LOGIN PASSWORD 'app'; GRANT SELECT ON dlock_meta TO app")
        .await
        .expect("a user");
    let url = server.url().replace("dlock@", "app:app@");
    let error = Config::from_url(&with(&url, "mode=session")).expect("a good URL");
    let error = error.connect().await.expect_err("no rights");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

/// The same steps as in mode lease: told what to do, and good once somebody has run the migration.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_create_nothing_works_with_a_printed_migration() {
    let server = start().await;
    let user = "CREATE ROLE app LOGIN PASSWORD 'app'";
    server.sql(user).await.expect("a user");
    let url = server.url().replace("dlock@", "app:app@");
    let url = with(&url, "mode=session&table_prefix=m_");
    let app = || Config::from_url(&url).expect("a good URL");
    for (config, kind) in [
        (app(), ErrorKind::Denied),
        (app().create_tables(false), ErrorKind::Invalid),
    ] {
        let error = config.connect().await.expect_err("no tables");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("migration"), "{error}");
    }
    let sql = dlock_postgres::migration("public", "m_").expect("SQL");
    server.sql(&sql).await.expect("tables");
    let grants = "GRANT SELECT, INSERT, UPDATE, DELETE ON m_meta, m_sessions TO app; GRANT USAGE ON SEQUENCE m_tokens TO app";
    server.sql(grants).await.expect("rights");
    let locks = Locks::new(app().connect().await.expect("a connection")).expect("defaults");
    let guard = lock(&locks, "a").await;
    let waiting = waiter(&locks, "a");
    free(guard).await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    free(next.expect("the lock")).await;
}

/// A server that takes no writes renews nothing, and there is no other: the hold ends in time, and nobody is let in.
#[tokio::test(flavor = "multi_thread")]
async fn demotion_under_a_holder_is_an_outage_and_then_a_loss() {
    let server = start().await;
    let locks = session(&server.url()).await;
    let guard = lock(&locks, "a").await;
    for sql in [
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "SELECT pg_reload_conf()",
    ] {
        server.sql(sql).await.expect("read-only");
    }
    soon("the loss", guard.lost()).await;
    assert!(!guard.is_held());
    let error = locks.mutex("b").expect("a name").try_lock().await;
    let error = error.expect_err("no writes");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let config = Config::from_url(&with(&server.url(), "mode=session")).expect("a good URL");
    let error = config.connect().await.expect_err("no writes");
    assert!(error.to_string().contains("takes no writes"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused() {
    let primary = start().await;
    free(lock(&session(&primary.url()).await, "a").await).await;
    let standby = PostgresServer::start_with(Postgres {
        follows: Some(primary.port()),
        ..Postgres::default()
    })
    .await
    .expect("a standby");
    let config = Config::from_url(&with(&standby.url(), "mode=session")).expect("a good URL");
    let error = config.connect().await.expect_err("a standby");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.to_string().contains("connect to the primary"),
        "{error}"
    );
}

/// A wait is one statement and a hold is an idle connection, and both last: what the user's statements are given is not for them.
#[tokio::test(flavor = "multi_thread")]
async fn time_outs_of_the_user_end_neither_a_wait_nor_a_hold() {
    let server = start().await;
    let user = "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT ALL ON SCHEMA public TO app";
    server.sql(user).await.expect("a user");
    for setting in [
        "statement_timeout",
        "lock_timeout",
        "idle_session_timeout",
        "idle_in_transaction_session_timeout",
    ] {
        let set = format!("ALTER ROLE app SET {setting} = '400ms'");
        server.sql(&set).await.expect("a setting");
    }
    let url = server.url().replace("dlock@", "app:app@");
    let (one, other) = (session(&url).await, session(&url).await);
    let guard = lock(&one, "a").await;
    let waiting = waiter(&other, "a");
    waits(&server).await;
    let old = "SELECT 1 / count(*) FROM pg_locks l, pg_stat_activity a WHERE l.pid = a.pid AND l.locktype = 'advisory' \
        AND NOT l.granted AND now() - a.query_start > interval '1200 milliseconds'";
    until("it has waited for longer", SOON, || server.sql(old))
        .await
        .expect("the same statement");
    assert!(guard.is_held());
    free(guard).await;
    let next = soon("the waiter", waiting).await.expect("no panic");
    free(next.expect("the lock")).await;
}

/// A statement that the server undid may have taken the key, which no rollback gives back: so the connection ends, and nothing stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_server_undid_keeps_no_key() {
    let server = start().await;
    let (one, other) = (session(&server.url()).await, session(&server.url()).await);
    free(lock(&one, "a").await).await;
    let failing = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        RAISE EXCEPTION 'others were quicker' USING ERRCODE = '40001'; END $$; \
        CREATE TRIGGER fail BEFORE UPDATE ON dlock_sessions FOR EACH ROW EXECUTE FUNCTION fail()";
    server.sql(failing).await.expect("a trigger");
    let error = one.mutex("a").expect("a name").try_lock().await;
    let error = error.expect_err("it was undone");
    assert!(error.is_retryable(), "{error}");
    let drop = "DROP TRIGGER fail ON dlock_sessions";
    server.sql(drop).await.expect("no trigger");
    let keys = "SELECT 1 / (1 - count(*)) FROM pg_locks l, dlock_sessions s WHERE l.locktype = 'advisory' \
        AND (l.classid::bigint << 32 | l.objid::bigint) = s.key";
    until("nobody has the key", SOON, || server.sql(keys))
        .await
        .expect("no key");
    free(lock(&other, "a").await).await;
}

/// As others who change the same rows make it happen.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_the_server_undoes_is_made_again() {
    let server = start().await;
    let (one, other) = (session(&server.url()).await, session(&server.url()).await);
    free(lock(&one, "a").await).await;
    let failing = "CREATE SEQUENCE failures; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF nextval('failures') > 2 THEN RETURN NEW; END IF; RAISE EXCEPTION 'others were quicker' USING ERRCODE = '40001'; END $$; \
        CREATE TRIGGER fail BEFORE UPDATE ON dlock_sessions FOR EACH ROW EXECUTE FUNCTION fail()";
    server.sql(failing).await.expect("a trigger");
    let guard = one.mutex("a").expect("a name").try_lock().await;
    free(guard.expect("in the end").expect("free")).await;
    // What was undone has kept no key.
    free(lock(&other, "a").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_permits_are_not_for_this_mode() {
    let server = start().await;
    let locks = session(&server.url()).await;
    let error = locks.rw_lock("a").and_then(|_| locks.semaphore("b", 2));
    assert_eq!(error.expect_err("not here").kind(), ErrorKind::Unsupported);
}
