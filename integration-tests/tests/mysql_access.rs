//! Who may use a server, and what it must be: log-ins, certificates, tables, replicas.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[macro_use]
mod mysql_support;

use std::time::{Duration, Instant};

use dlock_core::backend::Backend;
use dlock_core::{ErrorKind, Locks, LossReason, Settings};
use dlock_mysql::{Config, LockMode, MySqlBackend, migration};
use integration_tests::{Flavor, Folder, MySql, MySqlServer};
use mysql_support::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

on_both!(
    mistakes_are_told_apart_and_in_time,
    user_without_the_right_to_create_tables_works_with_a_printed_migration,
    read_only_server_is_refused_with_the_reason_and_a_demoted_one_is_an_outage,
    certificates_of_both_sides_are_checked,
);

fn config(url: &str) -> Config {
    Config::from_url(url).expect("a good URL")
}

async fn mistakes_are_told_apart_and_in_time(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let addr = server.addr();
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_addr = silent.local_addr().expect("an address");
    let stranger = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let stranger_addr = stranger.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = stranger.accept().await {
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                .await;
        }
    });
    let nobody = {
        let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        port.local_addr().expect("an address")
    };
    for (url, kind, expected) in [
        (
            format!("mysql://root:wr0ng@{addr}/dlock"),
            ErrorKind::Denied,
            "password",
        ),
        (
            format!("mysql://root:dlock@{addr}/no_such_database"),
            ErrorKind::Invalid,
            "does not exist",
        ),
        (
            format!("mysql://root:dlock@{nobody}/dlock"),
            ErrorKind::Unreachable,
            "is the server running?",
        ),
        (
            format!("mysql://root:dlock@{stranger_addr}/dlock"),
            ErrorKind::Invalid,
            "does not speak like MySQL",
        ),
        (
            format!("mysql://root:dlock@{silent_addr}/dlock"),
            ErrorKind::TimedOut,
            "no connection within",
        ),
        (
            format!("mysql://root:dlock@{addr}/dlock?tls=true"),
            ErrorKind::Denied,
            // MySQL makes a certificate for itself, and MariaDB 10.11 has none.
            match flavor {
                Flavor::MariaDb => "does not offer TLS",
                Flavor::MySql => "must be given as the setting ca",
            },
        ),
    ] {
        let config = config(&url).connect_timeout(Duration::from_secs(2));
        let started = Instant::now();
        let error = config.connect().await.expect_err(expected);
        assert!(started.elapsed() < Duration::from_secs(10), "{error}");
        assert_eq!(error.kind(), kind, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{text}");
        assert!(
            !text.contains("wr0ng") && !text.contains(":dlock@"),
            "{text}"
        );
    }
}

async fn user_without_the_right_to_create_tables_works_with_a_printed_migration(flavor: Flavor) {
    let server = flavor.start().await.expect("a server");
    let user = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON dlock.* TO app@'127.0.0.1'; \
         CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'reader'; GRANT SELECT ON dlock.* TO reader@'127.0.0.1'";
    server.sql(user).await.expect("users");
    for (mode, name) in [
        (LockMode::Lease, "lease"),
        (LockMode::Unique, "unique"),
        (LockMode::Session, "session"),
        (LockMode::Advisory, "advisory"),
    ] {
        let url = with(&server.url(), &format!("mode={name}&table_prefix=m_"));
        let app = || config(&url).user("app").password("app");
        // It may not, and is told what to do; so is one who does not want to.
        for config in [app(), app().create_tables(false)] {
            let error = config.connect().await.expect_err("no tables");
            assert!(error.to_string().contains("migration"), "{error}");
        }
        let sql = migration(mode, "m_").expect("SQL");
        for _ in 0..2 {
            server.sql(&sql).await.expect("again changes nothing");
        }
        let backend = app().connect().await.expect("tables are there");
        let locks = Locks::new(backend).expect("defaults");
        let guard = lock(&locks, "a").await;
        free(guard).await;
        // What is to be undone needs its rights too.
        let guard = lock(&locks, "a").await;
        let waits = waiter(&client(&url).await, "a");
        tokio::time::sleep(Duration::from_millis(100)).await;
        waits.abort();
        free(guard).await;
        locks.close().await.expect("all is undone");

        let reader = config(&url).user("reader").password("reader");
        let error = match reader.connect().await {
            Err(error) => error,
            Ok(backend) => {
                let locks = Locks::new(backend).expect("defaults");
                let mutex = locks.mutex("a").expect("a name");
                mutex.try_lock().await.expect_err("it may only read")
            }
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

        let newer = format!("UPDATE m_meta SET v = 7 WHERE k = '{name}'");
        server.sql(&newer).await.expect("an update");
        let error = config(&url).connect().await.expect_err("another version");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("version 7"), "{error}");
    }
}

async fn read_only_server_is_refused_with_the_reason_and_a_demoted_one_is_an_outage(
    flavor: Flavor,
) {
    let server = flavor.start().await.expect("a server");
    // Root may write all the same; others may not.
    let user =
        "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'; GRANT ALL ON dlock.* TO app@'127.0.0.1'";
    server.sql(user).await.expect("a user");
    let mut before = Vec::new();
    for mode in MODES {
        let app = config(&url(&server, mode)).user("app").password("app");
        let backend = app.connect().await.expect("it takes writes");
        let settings = match mode {
            "lease" | "unique" => Settings::new().lease(Duration::from_secs(3)),
            _ => Settings::new(),
        };
        let locks = Locks::builder(backend).settings(settings).build();
        let locks = locks.expect("settings");
        let held = lock(&locks, "held across it").await;
        before.push((mode, locks, held));
    }
    server.sql("SET GLOBAL read_only = 1").await.expect("set");
    for (mode, locks, held) in &before {
        let error = config(&url(&server, mode))
            .connect()
            .await
            .expect_err("it takes no writes");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error.to_string().contains("connect to the primary"),
            "{error}"
        );
        let mutex = locks.mutex("demoted").expect("a name");
        let error = mutex.try_lock().await.expect_err("it takes no writes now");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{mode}: {error}");
        // Nobody proves to a holder that it holds: its time runs out, and it is told.
        let why = soon("the holder is told", held.lost()).await;
        assert_ne!(why, LossReason::Gone, "{mode}: nobody took it");
        assert!(!held.is_held(), "{mode}");
    }
    server.sql("SET GLOBAL read_only = 0").await.expect("set");
    for (_, locks, held) in before {
        let _ = held.release().await;
        free(lock(&locks, "demoted").await).await;
        free(lock(&locks, "held across it").await).await;
    }
}

/// A certificate authority, and certificates of it, as files.
fn certificates(folder: &Folder) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    for authority in ["ca", "stranger"] {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("a CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, authority);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        let ca = ca.expect("a CA");
        std::fs::write(folder.file(&format!("{authority}.pem")), ca.pem()).expect("a file");
        for name in ["server", "client"] {
            // By its address alone: by its name it is another one.
            let names = vec!["127.0.0.1".to_owned()];
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new(names).expect("names");
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.signed_by(&key, &ca).expect("a signature");
            let file = |end: &str| folder.file(&format!("{authority}-{name}.{end}"));
            std::fs::write(file("pem"), certificate.pem()).expect("a file");
            std::fs::write(file("key"), key.serialize_pem()).expect("a file");
        }
    }
}

async fn certificates_of_both_sides_are_checked(flavor: Flavor) {
    let folder = Folder::new("mysql-tls").expect("a folder");
    certificates(&folder);
    let file = |name: &str| folder.file(name).display().to_string();
    let server = MySqlServer::start_with(MySql {
        flavor,
        args: vec![
            format!("--ssl-ca={}", file("ca.pem")),
            format!("--ssl-cert={}", file("ca-server.pem")),
            format!("--ssl-key={}", file("ca-server.key")),
        ],
        ..MySql::default()
    })
    .await
    .expect("a server");
    let users = "CREATE USER tls@'127.0.0.1' IDENTIFIED BY 'tls' REQUIRE SSL; GRANT ALL ON dlock.* TO tls@'127.0.0.1'; \
         CREATE USER known@'127.0.0.1' IDENTIFIED BY 'known' REQUIRE X509; GRANT ALL ON dlock.* TO known@'127.0.0.1'";
    server.sql(users).await.expect("users");
    let connect = async |user: &str, parameters: &str| {
        let url = with(&server.url(), parameters);
        config(&url).user(user).password(user).connect().await
    };
    let ca = format!("tls=true&ca={}", file("ca.pem"));
    let known = format!(
        "{ca}&cert={}&key={}",
        file("ca-client.pem"),
        file("ca-client.key")
    );
    for mode in MODES {
        for (user, parameters) in [("tls", &ca), ("known", &known)] {
            let backend = connect(user, &format!("{parameters}&mode={mode}")).await;
            let backend = backend.expect("a trusted connection");
            let locks = Locks::new(backend).expect("defaults");
            free(lock(&locks, "a").await).await;
            locks.close().await.expect("closed");
        }
    }
    // Encrypted, with whoever answers.
    for parameters in ["tls=unverified", "tls=unverified&mode=session"] {
        let backend = connect("tls", parameters).await.expect("any certificate");
        backend.close().await.expect("closed");
    }
    let stranger = |of: &str| {
        format!(
            "{of}&cert={}&key={}",
            file("stranger-client.pem"),
            file("stranger-client.key")
        )
    };
    for (user, parameters, expected) in [
        // It takes no one without TLS.
        ("tls", "connect_timeout=2s".to_owned(), "login"),
        // A certificate that nobody we trust has signed.
        (
            "tls",
            format!("tls=true&ca={}", file("stranger.pem")),
            "certificate",
        ),
        ("tls", "tls=true".to_owned(), "certificate"),
        // It wants a certificate of ours, and one that somebody it trusts has signed; whether ours is checked or not.
        ("known", ca.clone(), "login"),
        ("known", "tls=unverified".to_owned(), "login"),
        ("known", stranger(&ca), "refused our certificate"),
        (
            "known",
            stranger("tls=unverified"),
            "refused our certificate",
        ),
    ] {
        refused(connect(user, &parameters).await, expected);
    }
    // A file that is not there is told before anybody is asked.
    let url = with(&server.url(), "tls=true&ca=/no/such/file");
    let error = Config::from_url(&url).expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    // The right certificate, of a server that we call by another name.
    let named = with(&server.url().replace("127.0.0.1", "localhost"), &ca);
    let named = config(&named).user("tls").password("tls").connect().await;
    refused(named, "certificate");
}

fn refused(outcome: dlock_core::Result<MySqlBackend>, expected: &str) {
    let error = outcome.expect_err(expected);
    let kind = error.kind();
    assert!(
        matches!(kind, ErrorKind::Denied | ErrorKind::Invalid),
        "{kind:?} {error}"
    );
    assert!(error.to_string().contains(expected), "{expected}: {error}");
}
