//! What befalls a server and its users: standbys and promotions, rights, limits and settings that get in the way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod certificates;
mod postgres_support;

use std::time::{Duration, Instant};

use dlock_core::backend::Backend;
use dlock_core::{Capability, ErrorKind, HeldNow, Locks};
use dlock_postgres::{Config, migration};
use integration_tests::{
    FaultProxy, Folder, PgBouncer, PgBouncerServer, Postgres, PostgresServer, until,
};
use postgres_support::*;
use tokio::net::TcpListener;

async fn start() -> PostgresServer {
    PostgresServer::start().await.expect("a server")
}

/// The same server for a user `app` with a password.
fn of_app(server: &PostgresServer) -> String {
    server.url().replace("dlock@", "app:app@")
}

async fn with_app(set: &str) -> PostgresServer {
    let server = start().await;
    let sql =
        format!("CREATE ROLE app LOGIN PASSWORD 'app'; GRANT ALL ON SCHEMA public TO app; {set}");
    server.sql(&sql).await.expect("a user");
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_apart_and_in_time() {
    let server = with_app("").await;
    let addr = server.addr();
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_addr = silent.local_addr().expect("an address");
    let nobody = {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        port.local_addr().expect("an address")
    };
    for (url, kind, expected) in [
        (
            format!("postgres://app:wr0ng@{addr}/dlock"),
            ErrorKind::Denied,
            "password",
        ),
        (
            format!("postgres://app@{addr}/dlock"),
            ErrorKind::Denied,
            "password",
        ),
        (
            format!("postgres://dlock@{addr}/nowhere"),
            ErrorKind::Invalid,
            "does not exist",
        ),
        (
            format!("postgres://dlock@{addr}/dlock?schema=none"),
            ErrorKind::Invalid,
            "schema does not exist",
        ),
        (
            format!("postgres://dlock@{nobody}/dlock"),
            ErrorKind::Unreachable,
            "is the server running?",
        ),
        (
            format!("postgres://dlock@{silent_addr}/dlock"),
            ErrorKind::TimedOut,
            "let nobody in within",
        ),
        (
            format!("postgres://dlock@{addr}/dlock?sslmode=verify-full"),
            ErrorKind::Denied,
            "does not offer TLS",
        ),
        (
            "postgres://dlock@/dlock?host=/nowhere/at/all".to_owned(),
            ErrorKind::Unreachable,
            "right folder",
        ),
    ] {
        let config = Config::from_url(&url).expect("a good URL");
        let config = config.connect_timeout(Duration::from_secs(2));
        let started = Instant::now();
        let error = config.connect().await.expect_err(expected);
        assert!(started.elapsed() < Duration::from_secs(10), "{error}");
        let text = format!("{error} {error:?}");
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(error.held_now(), HeldNow::No, "{text}");
        assert!(!text.contains("wr0ng"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_and_password_files_let_in() {
    let server = with_app("").await;
    let folder = server.socket();
    let url = format!(
        "postgres:///dlock?host={}&port={}&user=dlock",
        folder.display(),
        server.port()
    );
    let locks = client(&url).await;
    free(lock(&locks, "by a socket").await).await;
    let files = Folder::new("passwords").expect("a folder");
    let file = files.file("password");
    std::fs::write(&file, "app\n").expect("a file");
    let url = server.url().replace("dlock@", "app@");
    let url = with(
        &url,
        &format!("table_prefix=p_&password_file={}", file.display()),
    );
    let locks = client(&url).await;
    free(lock(&locks, "by a file").await).await;
    // It is read for each connection: a new password needs no restart.
    std::fs::write(&file, "wrong\n").expect("a file");
    let error = Config::from_url(&url).expect("a good URL").connect().await;
    assert_eq!(
        error.expect_err("a wrong password").kind(),
        ErrorKind::Denied
    );
}

/// Asked for whenever a connection is made, as a vault gives them.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_asked_for_each_connection() {
    let server = with_app("").await;
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = asked.clone();
    let url = server.url().replace("dlock@", "");
    let config = Config::from_url(&url).expect("a good URL");
    let config = config.credentials(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async { Ok(dlock_core::kit::Login::new("app", "app")) }
    });
    let locks = Locks::new(config.connect().await.expect("a connection")).expect("defaults");
    free(lock(&locks, "by a vault").await).await;
    assert!(asked.load(std::sync::atomic::Ordering::Relaxed) > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_both_sides_are_checked() {
    let folder = Folder::new("certificates").expect("a folder");
    certificates::write(&folder);
    let read = |name: &str| std::fs::read_to_string(folder.file(name)).expect("a file");
    let server = PostgresServer::start_with(Postgres {
        set: [
            "ssl=on",
            "ssl_cert_file={folder}/server.pem",
            "ssl_key_file={folder}/server.key",
            "ssl_ca_file={folder}/ca.pem",
        ]
        .map(str::to_owned)
        .to_vec(),
        files: [
            ("server.pem", "ca-server.pem"),
            ("server.key", "ca-server.key"),
            ("ca.pem", "ca.pem"),
        ]
        .map(|(name, source)| (name.to_owned(), read(source)))
        .to_vec(),
        access: "hostssl all client 127.0.0.1/32 cert\nhostssl all dlock 127.0.0.1/32 trust"
            .to_owned(),
        ..Postgres::default()
    })
    .await
    .expect("a server with certificates");
    server
        .sql("CREATE ROLE client LOGIN; GRANT ALL ON SCHEMA public TO client")
        .await
        .expect("a user");
    let file = |name: &str| folder.file(name).display().to_string();
    let url = |user: &str, rest: &str| {
        let addr = server.addr();
        format!("postgres://{user}@{addr}/dlock?sslmode=verify-full&table_prefix={user}_{rest}")
    };
    let ca = format!("&sslrootcert={}", file("ca.pem"));
    let own = format!(
        "{ca}&sslcert={}&sslkey={}",
        file("ca-client.pem"),
        file("ca-client.key")
    );
    for url in [url("dlock", &ca), url("client", &own)] {
        let locks = client(&url).await;
        let guard = lock(&locks, "private").await;
        let waiting = waiter(&locks, "private");
        free(guard).await;
        free(
            soon("the waiter", waiting)
                .await
                .expect("no panic")
                .expect("the lock"),
        )
        .await;
    }
    // Without ca=FILE the machine's own authorities count: another process is told of ours.
    for (roots, expected) in [("ca.pem", "held"), ("stranger.pem", "nobody we trust")] {
        let mut process = tokio::process::Command::new(env!("CARGO_BIN_EXE_hold-lock"))
            .args([url("dlock", "").as_str(), "c", "exclusive"])
            .env("SSL_CERT_FILE", folder.file(roots))
            .env_remove("SSL_CERT_DIR")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        let lines = tokio::io::BufReader::new(process.stdout.take().expect("piped"));
        let mut lines = tokio::io::AsyncBufReadExt::lines(lines);
        let mut output = String::new();
        while !output.contains("held") && !output.contains("failed") {
            let line = soon("a word", lines.next_line()).await;
            output += &line.expect("its output").expect("a word");
        }
        // It ends with its input.
        drop(process.stdin.take());
        process.wait().await.expect("it ends");
        assert!(output.contains(expected), "{roots}: {output}");
    }
    // In the words of every store; whoever answers is taken, and another name than the host's is asked for.
    let ours = |rest: &str| format!("postgres://dlock@{}/dlock?{rest}", server.addr());
    free(lock(&client(&ours("tls=unverified")).await, "private").await).await;
    let ca_file = file("ca.pem");
    let good = format!("tls=true&ca={ca_file}&server_name=127.0.0.1");
    free(lock(&client(&ours(&good)).await, "private").await).await;
    let wrong = ours(&format!(
        "tls=true&ca={ca_file}&server_name=elsewhere.example"
    ));
    let error = Config::from_url(&wrong)
        .expect("a good URL")
        .connect()
        .await;
    let error = error.expect_err("another name").to_string();
    assert!(error.contains("for another name"), "{error}");
    let stranger = format!("&ca={}", file("stranger.pem"));
    let unknown = format!(
        "{ca}&cert={}&key={}",
        file("stranger-client.pem"),
        file("stranger-client.key")
    );
    for (url, expected) in [
        (url("dlock", &stranger), "nobody we trust"),
        (url("client", &ca), "certificate"),
        (url("client", &unknown), ""),
        // The system's roots do not know a CA of our own.
        (url("dlock", ""), ""),
    ] {
        let error = Config::from_url(&url).expect("a good URL").connect().await;
        let error = error.expect_err(&url);
        let text = error.to_string();
        assert_ne!(error.kind(), ErrorKind::TimedOut, "{text}");
        assert!(text.contains(expected), "{url}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn user_without_the_right_to_create_tables_works_with_a_printed_migration() {
    let server = start().await;
    server
        .sql("CREATE ROLE app LOGIN PASSWORD 'app'; CREATE ROLE reader LOGIN PASSWORD 'reader'")
        .await
        .expect("users");
    let url = with(&of_app(&server), "table_prefix=m_");
    let app = || Config::from_url(&url).expect("a good URL");
    // It may not, and is told what to do; so is one who does not want to.
    for (config, kind) in [
        (app(), ErrorKind::Denied),
        (app().create_tables(false), ErrorKind::Invalid),
    ] {
        let error = config.connect().await.expect_err("no tables");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("migration"), "{error}");
    }
    let sql = migration("public", "m_").expect("SQL");
    // Twice: running it again changes nothing.
    for _ in 0..2 {
        server.sql(&sql).await.expect("tables");
    }
    let error = app().connect().await.expect_err("no rights yet");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let grants = "GRANT USAGE ON SCHEMA public TO app, reader; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON m_meta, m_locks, m_holders, m_waiters, m_abandoned TO app; \
         GRANT USAGE ON SEQUENCE m_tokens TO app; GRANT SELECT ON m_meta, m_locks, m_holders, m_waiters TO reader";
    server.sql(grants).await.expect("rights");
    let locks = Locks::new(app().connect().await.expect("a connection")).expect("defaults");
    let guard = lock(&locks, "a").await;
    let waiting = waiter(&locks, "a");
    free(guard).await;
    free(
        soon("the waiter", waiting)
            .await
            .expect("no panic")
            .expect("the lock"),
    )
    .await;
    let reader = url.replace("app:app@", "reader:reader@");
    let error = Config::from_url(&reader)
        .expect("a good URL")
        .connect()
        .await;
    let error = error.expect_err("it may read only");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("lacks a permission"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_vanish_or_are_newer_are_told() {
    let server = start().await;
    let locks = client(&server.url()).await;
    free(lock(&locks, "a").await).await;
    server
        .sql("UPDATE dlock_meta SET v = 7")
        .await
        .expect("another version");
    let error = Config::from_url(&server.url())
        .expect("a good URL")
        .connect()
        .await;
    let error = error.expect_err("another version");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 7"), "{error}");
    server
        .sql("DROP TABLE dlock_locks CASCADE")
        .await
        .expect("gone");
    let error = locks
        .mutex("a")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("no table");
    assert!(
        error
            .to_string()
            .contains("table or function of ours is missing"),
        "{error}"
    );
    assert_eq!(error.held_now(), HeldNow::No);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_come_first_make_the_tables_once() {
    let server = start().await;
    let url = server.url();
    let all = (0..12).map(|_| tokio::spawn(async_client(url.clone())));
    for one in futures::future::join_all(all).await {
        one.expect("no panic");
    }
}

async fn async_client(url: String) {
    let locks = client(&url).await;
    free(lock(&locks, "first").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_encoding_is_refused() {
    let server = start().await;
    server
        .sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        .await
        .expect("a database");
    let url = server
        .url()
        .replace("/dlock", "/latin")
        .replace("//latin@", "//dlock@");
    let error = Config::from_url(&url).expect("a good URL").connect().await;
    let error = error.expect_err("another encoding");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("ENCODING 'UTF8'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_told() {
    let server = with_app("ALTER ROLE app CONNECTION LIMIT 0").await;
    let error = Config::from_url(&of_app(&server))
        .expect("a good URL")
        .connect()
        .await;
    let error = error.expect_err("no connection");
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.to_string().contains("max_connections"), "{error}");
}

/// All places of the server are taken, in both modes: that is neither "busy" nor an outage of the network, and passes with the cause.
#[tokio::test(flavor = "multi_thread")]
async fn max_connections_is_an_error_of_its_own_and_passes() {
    let settings = Postgres::set(&["max_connections=20", "superuser_reserved_connections=3"]);
    let server = PostgresServer::start_with(settings).await.expect("small");
    let sql = "CREATE ROLE app LOGIN PASSWORD 'app'; GRANT ALL ON SCHEMA public TO app";
    server.sql(sql).await.expect("a user");
    for mode in ["lease", "session"] {
        let url = with(&of_app(&server), &format!("mode={mode}"));
        let locks = client(&url).await;
        let held = lock(&locks, "held").await;
        let mut taken = Vec::new();
        let full = loop {
            let plain = of_app(&server);
            match tokio_postgres::connect(&plain, tokio_postgres::NoTls).await {
                Ok((client, connection)) => taken.push((client, tokio::spawn(connection))),
                Err(error) => break error,
            }
        };
        assert_eq!(full.code().map(|code| code.code()), Some("53300"));
        let config = Config::from_url(&url).expect("a good URL");
        let error = config.connect().await.expect_err("no place");
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.to_string().contains("max_connections"), "{error}");
        // What is held goes on, and can be given back without a new connection.
        assert!(held.is_held());
        free(held).await;
        drop(taken);
        drop(
            until("there is room", SOON, || async {
                let taken = locks.mutex("later").expect("a name").try_lock().await;
                taken.map_err(|error| integration_tests::Error::answer("try", error.to_string()))
            })
            .await
            .expect("room")
            .expect("nobody else wants it"),
        );
        locks.close().await.expect("closed");
    }
}

/// What the server undoes because of others is asked for again, within the limit for an answer.
#[tokio::test(flavor = "multi_thread")]
async fn serialization_failures_are_tried_again_within_the_limit() {
    let server = start().await;
    let locks = client(&with(&server.url(), "answer_timeout=2s")).await;
    // A sequence is not rolled back, so it counts the tries.
    let failing = "CREATE SEQUENCE tries; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF nextval('tries') <= 3 THEN RAISE EXCEPTION 'others were quicker' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$; \
        CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON dlock_locks FOR EACH ROW EXECUTE FUNCTION fail()";
    server.sql(failing).await.expect("a trigger");
    let guard = lock(&locks, "a").await;
    let tries = server.sql("SELECT last_value FROM tries").await;
    let tries: u32 = tries.expect("a number").trim().parse().expect("a number");
    assert!(tries >= 4, "{tries} tries");
    free(guard).await;
    // One that does not end is an error in time, and never "busy".
    let sql = "ALTER SEQUENCE tries RESTART WITH -1000000 MINVALUE -2000000";
    server.sql(sql).await.expect("for ever");
    let mutex = locks.mutex("b").expect("a name");
    let error = soon("the limit", mutex.try_lock()).await;
    let error = error.expect_err("no end");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// Somebody keeps the row of a lock for longer than the server lets us wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn time_outs_of_the_server_are_errors_and_never_busy() {
    for (setting, expected) in [
        ("statement_timeout", "statement_timeout"),
        ("lock_timeout", "lock_timeout"),
    ] {
        let server = with_app(&format!("ALTER ROLE app SET {setting} = '300ms'")).await;
        let locks = client(&of_app(&server)).await;
        free(lock(&locks, "a").await).await;
        let mut stranger = connection(&server.url()).await;
        let tx = stranger.transaction().await.expect("a transaction");
        tx.execute("SELECT 1 FROM dlock_locks FOR UPDATE", &[])
            .await
            .expect("the row");
        let mutex = locks.mutex("a").expect("a name");
        let error = mutex.try_lock().await.expect_err("the row is not free");
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.held_now(), HeldNow::No);
        tx.rollback().await.expect("a rollback");
        free(lock(&locks, "a").await).await;
    }
}

/// With the wrong kind of transaction a look at the tables may be older than the lock on the row: two would hold.
#[tokio::test(flavor = "multi_thread")]
async fn other_kinds_of_transactions_change_nothing() {
    for kind in ["repeatable read", "serializable"] {
        let set = format!("ALTER ROLE app SET default_transaction_isolation = '{kind}'");
        let server = with_app(&set).await;
        server
            .sql("CREATE TABLE n (n int); INSERT INTO n VALUES (0)")
            .await
            .expect("a table");
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let locks = client(&of_app(&server)).await;
            let url = server.url();
            tasks.push(tokio::spawn(async move {
                let conn = connection(&url).await;
                for _ in 0..20 {
                    let rwlock = locks.rw_lock("n").expect("a name");
                    let guard = rwlock.write().await.expect("the lock");
                    let n: i32 = conn
                        .query_one("SELECT n FROM n", &[])
                        .await
                        .expect("n")
                        .get(0);
                    conn.execute("UPDATE n SET n = $1", &[&(n + 1)])
                        .await
                        .expect("n");
                    free(guard).await;
                    let guard = rwlock.read().await.expect("the lock");
                    free(guard).await;
                }
            }));
        }
        for task in tasks {
            soon("all turns", task).await.expect("no panic");
        }
        assert_eq!(
            server.sql("SELECT n FROM n").await.expect("n").trim(),
            "80",
            "{kind}"
        );
    }
}

/// Whatever a user has set: who was told to hold holds after a crash of the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_a_crash_although_commits_are_not_synchronous() {
    let server = with_app("ALTER ROLE app SET synchronous_commit = off").await;
    for sql in [
        "ALTER SYSTEM SET wal_writer_delay = '10s'",
        "SELECT pg_reload_conf()",
    ] {
        server.sql(sql).await.expect("reloaded");
    }
    let locks = client(&of_app(&server)).await;
    let guard = lock(&locks, "kept").await;
    server.kill();
    server.restart().await.expect("a server");
    let other = client(&server.url()).await;
    let tried = other
        .mutex("kept")
        .expect("a name")
        .try_lock()
        .await
        .expect("an answer");
    assert!(tried.is_none(), "the hold was lost");
    free(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_idle_connections_wakes_waiters_all_the_same() {
    let server = with_app("ALTER ROLE app SET idle_session_timeout = '1s'; ALTER ROLE app SET idle_in_transaction_session_timeout = '1s'").await;
    let url = with(&of_app(&server), "waiter_lease=1h");
    let (one, other) = (client(&url).await, client(&url).await);
    let guard = lock(&one, "a").await;
    let waiting = waiter(&other, "a");
    let ears = "SELECT 'ear', pid FROM pg_stat_activity WHERE application_name = 'dlock' AND query LIKE '%LISTEN%'";
    let ear = until("it listens", SOON, || async {
        let found = server.sql(ears).await?;
        match found.lines().count() {
            1 => Ok(found),
            _ => Err(integration_tests::Error::answer("ears", found)),
        }
    });
    let ear = ear.await.expect("one that listens");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        server.sql(ears).await.expect("a list"),
        ear,
        "it had to listen anew"
    );
    // With looks a quarter of an hour apart, only a message can wake it.
    free(guard).await;
    free(
        soon("the waiter", waiting)
            .await
            .expect("no panic")
            .expect("the lock"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_noticed() {
    let server = start().await;
    let direct = backend(&server.url()).await;
    assert!(direct.capabilities().has(Capability::Push));
    for (mode, pushes) in [
        ("session", true),
        ("transaction", false),
        ("statement", false),
    ] {
        let bouncer = PgBouncerServer::start_with(PgBouncer {
            to: server.addr(),
            mode,
            size: 10,
        })
        .await
        .expect("a pooler");
        let pooled = backend(&bouncer.url()).await;
        assert_eq!(
            pooled.capabilities().has(Capability::Push),
            pushes,
            "{mode}"
        );
        let locks = Locks::new(pooled).expect("defaults");
        let guard = lock(&locks, "a").await;
        let waiting = waiter(&client(&bouncer.url()).await, "a");
        free(guard).await;
        free(
            soon("the waiter", waiting)
                .await
                .expect("no panic")
                .expect("the lock"),
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_many_holds_do_not_deadlock() {
    let server = start().await;
    let (one, other) = (hasty(&server.url()).await, hasty(&server.url()).await);
    let mut guards = Vec::new();
    for n in 0..60 {
        for (locks, n) in [(&one, n), (&other, 59 - n)] {
            let lock = locks.rw_lock(format!("r{n}")).expect("a name");
            guards.push(lock.read().await.expect("the lock"));
        }
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    for guard in guards {
        free(guard).await;
    }
    assert!(!server.log().contains("deadlock"), "{}", server.log());
}

/// A server that is told to take no writes, as a managed one is before its switch-over.
#[tokio::test(flavor = "multi_thread")]
async fn demotion_under_a_holder_is_an_outage_and_then_a_loss() {
    let server = start().await;
    let locks = hasty(&server.url()).await;
    let guard = lock(&locks, "a").await;
    server
        .sql("ALTER SYSTEM SET default_transaction_read_only = on")
        .await
        .expect("read-only");
    server
        .sql("SELECT pg_reload_conf()")
        .await
        .expect("reloaded");
    soon("the loss", guard.lost()).await;
    assert!(!guard.is_held());
    let error = locks
        .mutex("b")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("no writes");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("takes no writes"), "{error}");
    let error = Config::from_url(&server.url())
        .expect("a good URL")
        .connect()
        .await;
    let error = error.expect_err("no writes");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_goes_on_at_a_standby_that_was_promoted() {
    let primary = start().await;
    let standby = PostgresServer::start_with(Postgres {
        follows: Some(primary.port()),
        ..Postgres::default()
    })
    .await
    .expect("a standby");
    let error = Config::from_url(&standby.url())
        .expect("a good URL")
        .connect()
        .await;
    let error = error.expect_err("a standby");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.to_string().contains("connect to the primary"),
        "{error}"
    );

    let both = format!(
        "postgres://dlock@{},{}/dlock?connect_timeout=1s&target_session_attrs=read-write",
        standby.addr(),
        primary.addr()
    );
    let (one, other) = (client(&both).await, client(&both).await);
    let guard = lock(&one, "a").await;
    let token = guard.token();
    let sent = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
    until("the standby has it", SOON, || async {
        match primary.sql(sent).await?.trim() {
            "1" => Ok(()),
            other => Err(integration_tests::Error::answer("replay", other)),
        }
    })
    .await
    .expect("replicated");
    primary.kill();
    standby.promote().await.expect("a primary");
    let tried = until("an answer", SOON, || async {
        let tried = other.mutex("a").expect("a name").try_lock().await;
        tried.map_err(|error| integration_tests::Error::answer("try", error.to_string()))
    })
    .await
    .expect("an answer");
    assert!(tried.is_none(), "two hold");
    let waiting = waiter(&other, "a");
    assert!(guard.is_held());
    free(guard).await;
    let next = soon("the waiter", waiting)
        .await
        .expect("no panic")
        .expect("the lock");
    assert!(next.token() > token, "{:?} after {token:?}", next.token());
    free(next).await;
}

/// Logical replication leaves sequences behind, and so does a dump of tables alone.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_increase_although_the_sequence_was_set_back() {
    let server = start().await;
    let (one, other) = (client(&server.url()).await, client(&server.url()).await);
    let mut last = 0;
    for turn in 0..12 {
        server
            .sql("ALTER SEQUENCE dlock_tokens RESTART")
            .await
            .expect("set back");
        let guard = match turn % 4 {
            0 => lock(&one, "a").await,
            1 => one
                .rw_lock("a")
                .expect("a name")
                .read()
                .await
                .expect("the lock"),
            // After a wait, alone and shared.
            turn => {
                let guard = lock(&one, "a").await;
                let token = guard.token().expect("a token").get();
                assert!(token > last, "{token} after {last}");
                last = token;
                let waiting = if turn == 2 {
                    waiter(&other, "a")
                } else {
                    let lock = other.rw_lock("a").expect("a name");
                    tokio::spawn(async move { lock.read().await })
                };
                let queued = "SELECT 1 / count(*) FROM dlock_waiters";
                until("it waits", SOON, || server.sql(queued))
                    .await
                    .expect("a waiter");
                free(guard).await;
                soon("the waiter", waiting)
                    .await
                    .expect("no panic")
                    .expect("the lock")
            }
        };
        let token = guard.token().expect("a token").get();
        assert!(token > last, "{token} after {last}");
        last = token;
        free(guard).await;
    }
}

/// The functions look at one table after another, and only at READ COMMITTED each look is as new as the lock on the row.
#[tokio::test(flavor = "multi_thread")]
async fn the_functions_refuse_a_transaction_of_another_kind() {
    let server = start().await;
    backend(&server.url()).await;
    let mut conn = connection(&server.url()).await;
    let nobody = "'00000000-0000-0000-0000-000000000000'";
    for call in [
        format!("SELECT dlock_acquire('a', {nobody}, -1, 1, '', NULL, NULL, 1, 'c')"),
        format!("SELECT dlock_release('a', {nobody}, 0)"),
        format!("SELECT dlock_renew(ARRAY['a'], ARRAY[{nobody}::uuid], false)"),
        format!("SELECT dlock_downgrade('a', {nobody})"),
        format!("SELECT dlock_listen('a', {nobody}, 'c', NULL)"),
        "SELECT dlock_break('a')".to_owned(),
        "SELECT dlock_sweep(1)".to_owned(),
    ] {
        let begin = conn
            .build_transaction()
            .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
        let tx = begin.start().await.expect("a transaction");
        let error = tx.batch_execute(&call).await.expect_err(&call);
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("DLK01"),
            "{call}: {error}"
        );
    }
}

/// With the defaults an answer may take nearly as long as a place is kept: a sign of life has a limit of its own, and then reaches the server by
/// a new connection in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_keeps_its_place_when_its_connections_are_half_open() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let holder = client(&server.url()).await;
    let (first, second) = (
        client(&format!("postgres://dlock@{}/dlock", proxy.addr())).await,
        client(&server.url()).await,
    );
    let guard = lock(&holder, "a").await;
    let mut waiting = Vec::new();
    for locks in [&first, &second] {
        waiting.push(waiter(locks, "a"));
        let n = waiting.len();
        let queued = format!("SELECT 1 / (count(*) / {n}) FROM dlock_waiters");
        until("it waits", SOON, || server.sql(&queued))
            .await
            .expect("a waiter");
    }
    proxy.half_open();
    // The last sign of life on the old connections is older than a waiter lease by then.
    tokio::time::sleep(Duration::from_secs(8)).await;
    free(guard).await;
    let second = waiting.pop().expect("the second");
    let first = waiting.pop().expect("the first");
    let first = soon("the first", first).await.expect("no panic");
    let first = first.expect("the lock");
    assert!(!second.is_finished(), "the second one overtook the first");
    free(first).await;
    let second = soon("the second", second).await.expect("no panic");
    free(second.expect("the lock")).await;
}

/// Its place would be kept for an hour, and its hold for half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_cut_off_is_passed_over() {
    let server = start().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let way = |addr| format!("postgres://dlock@{addr}/dlock?waiter_lease=1h");
    let holder = client(&way(server.addr())).await;
    let (first, second) = (
        client(&way(proxy.addr())).await,
        client(&way(server.addr())).await,
    );
    let guard = lock(&holder, "a").await;
    let mut waiting = Vec::new();
    for locks in [&first, &second] {
        waiting.push(waiter(locks, "a"));
        // In the queue, and with a bell.
        let n = waiting.len();
        let queued =
            format!("SELECT 1 / (count(*) / {n}) FROM dlock_waiters WHERE bell IS NOT NULL");
        until("it waits", SOON, || server.sql(&queued))
            .await
            .expect("a waiter");
    }
    proxy.refuse();
    proxy.reset_all().await;
    let ears = "SELECT 1 / (2 - count(*)) FROM pg_locks WHERE locktype = 'advisory'";
    until("the server knows", SOON, || server.sql(ears))
        .await
        .expect("one bell is left");
    free(guard).await;
    let next = waiting.pop().expect("the second");
    let next = tokio::time::timeout(Duration::from_secs(10), next).await;
    free(
        next.expect("the first is passed over")
            .expect("no panic")
            .expect("the lock"),
    )
    .await;
}

/// The row that a sweep removes is the only place that knows the last token when the sequence is behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_keeps_tokens_that_the_sequence_does_not_know() {
    let server = start().await;
    let backend = backend(&server.url()).await;
    let locks = Locks::new(backend.clone()).expect("defaults");
    free(lock(&locks, "a").await).await;
    let ahead = "UPDATE dlock_locks SET token = 5000 WHERE name = 'a'";
    server.sql(ahead).await.expect("ahead");
    backend.sweep(Duration::ZERO).await.expect("a sweep");
    let guard = lock(&locks, "a").await;
    let token = guard.token().expect("a token").get();
    assert!(token > 5000, "{token} after 5000");
    free(guard).await;
}

/// As on a logical replica, or after a restore of the tables alone.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_go_on_after_a_sweep_though_the_sequence_was_left_behind() {
    let server = start().await;
    let backend = backend(&server.url()).await;
    let locks = Locks::new(backend.clone()).expect("defaults");
    for _ in 0..10 {
        free(lock(&locks, "a").await).await;
    }
    let guard = lock(&locks, "a").await;
    let before = guard.token().expect("a token");
    free(guard).await;
    backend.sweep(Duration::ZERO).await.expect("a sweep");
    let rows = server.sql("SELECT count(*) FROM dlock_locks").await;
    assert_eq!(rows.expect("a count").trim(), "0", "nothing was swept");
    let behind = "SELECT setval('dlock_tokens', 1, false)";
    server.sql(behind).await.expect("the sequence");
    let guard = lock(&locks, "a").await;
    assert!(
        guard.token() > Some(before),
        "{:?} after {before}",
        guard.token()
    );
    free(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_host_that_is_silent_costs_time_and_nothing_else() {
    let server = start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = silent.local_addr().map(|addr| (addr, silent));
    let (addr, _kept) = silent.expect("an address");
    let url = format!(
        "postgres://dlock@{addr},{}/dlock?connect_timeout=2s&answer_timeout=2s",
        server.addr()
    );
    let locks = client(&url).await;
    free(lock(&locks, "a").await).await;
}

/// A statement that waits at the server must not stand in front of the calls for other names.
#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_row_delays_no_other_name() {
    let server = start().await;
    let backend = backend(&server.url()).await;
    let request = |name: &str| {
        let name = dlock_core::Name::new(name).expect("a name");
        let clock = std::sync::Arc::new(dlock_core::SystemClock);
        dlock_core::backend::Request::new(name, dlock_core::Mode::Exclusive, clock)
    };
    let stuck = request("stuck");
    backend.try_acquire(&stuck).await.expect("free");
    let mut stranger = connection(&server.url()).await;
    let tx = stranger.transaction().await.expect("a transaction");
    let keep = "SELECT 1 FROM dlock_locks WHERE name = 'stuck' FOR UPDATE";
    tx.execute(keep, &[]).await.expect("the row");
    let given_up =
        tokio::time::timeout(Duration::from_millis(60), backend.try_acquire(&stuck)).await;
    given_up.expect_err("the row is kept");
    let other = request("other");
    let taken = tokio::time::timeout(Duration::from_secs(3), backend.try_acquire(&other)).await;
    taken.expect("in time").expect("free");
    tx.rollback().await.expect("a rollback");
}

/// Whoever keeps the row of one lock keeps the client's other locks neither from being renewed nor from being released.
#[tokio::test]
async fn a_stuck_row_costs_no_other_hold_its_renewal() {
    let server = start().await;
    let locks = hasty(&server.url()).await;
    let mut guards = Vec::new();
    for name in ["a", "m", "z"] {
        guards.push(
            locks
                .mutex(name)
                .expect("a name")
                .lock()
                .await
                .expect("free"),
        );
    }
    let mut stranger = connection(&server.url()).await;
    let tx = stranger.transaction().await.expect("a transaction");
    let keep = "SELECT 1 FROM dlock_locks WHERE name = 'm' FOR UPDATE";
    tx.execute(keep, &[]).await.expect("the row");
    let stuck = guards.remove(1);
    // Its own lease of 3 s passes: nobody could extend it.
    let reason = tokio::time::timeout(Duration::from_secs(30), stuck.lost()).await;
    assert_eq!(reason.expect("in time"), dlock_core::LossReason::Expired);
    for guard in guards {
        assert!(guard.is_held(), "{:?}", guard.name());
        let released = tokio::time::timeout(Duration::from_secs(5), guard.release()).await;
        let released = released.expect("in time").expect("a release");
        assert_eq!(released, dlock_core::Released::Freed);
    }
    tx.rollback().await.expect("a rollback");
}
