//! Users, passwords, permissions and certificates of etcd.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod certificates;
mod etcd_support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::{Error, ErrorKind, Locks, Released};
use dlock_etcd::{Config, Login};
use etcd_support::*;
use integration_tests::{Etcd, EtcdServer, Folder, Holder};

/// A server where `locker` with the password `s3cret` may use keys that start with `dlock/`, and whose log-ins last 2 s.
async fn guarded() -> EtcdServer {
    let mut settings = Etcd::default();
    settings.args = vec!["--auth-token-ttl".to_owned(), "2".to_owned()];
    let server = EtcdServer::start_with(settings).await.expect("a server");
    for words in [
        &["user", "add", "root:r00t"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "locks"],
        &[
            "role",
            "grant-permission",
            "locks",
            "--prefix=true",
            "readwrite",
            "dlock/",
        ],
        &["user", "add", "locker:s3cret"],
        &["user", "grant-role", "locker", "locks"],
        &["user", "add", "nobody:s3cret"],
        &["auth", "enable"],
    ] {
        server.etcdctl(words).await.expect("etcdctl");
    }
    server
}

#[tokio::test]
async fn users_need_their_password_and_permission_and_survive_an_expired_log_in() {
    let server = guarded().await;
    let addr = server.addr();
    for (login, expected) in [
        ("locker:wr0ng@", "did not accept user and password"),
        ("stranger:s3cret@", "did not accept user and password"),
        ("", "did not accept user and password"),
    ] {
        let url = format!("etcd://{login}{addr}");
        let started = Instant::now();
        // Without a log-in the server grants a lease, and refuses the first key.
        let error = match Config::from_url(&url).expect("a good URL").connect().await {
            Err(error) => error,
            Ok(backend) => {
                let locks = dlock_core::Locks::new(std::sync::Arc::new(backend)).expect("defaults");
                let mutex = locks.mutex("a").expect("a name");
                mutex.lock().await.expect_err("refused")
            }
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(5), "{error}");
    }
    let nobody = client(&format!("etcd://nobody:s3cret@{addr}")).await;
    let error = nobody
        .mutex("a")
        .expect("a name")
        .lock()
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("may not read and write"),
        "{error}"
    );

    let url = format!("etcd://locker:s3cret@{addr}?session=6s");
    let (holder, other) = (client(&url).await, client(&url).await);
    let guard = lock(&holder, "a").await;
    let waits = waiter(&other, "a");
    waiting(&holder, "a", 1).await;
    // Longer than a log-in lasts. Renewals go on without one; the next request needs a new one.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_held());
    assert_eq!(
        guard.release().await.expect("logged in again"),
        Released::Freed
    );
    let next = soon(waits).await.expect("no panic").expect("the lock");
    assert_eq!(
        next.release().await.expect("logged in again"),
        Released::Freed
    );
    // A change of permissions makes every log-in outdated.
    let guard = lock(&holder, "b").await;
    let words = ["--user", "root:r00t", "role", "add", "another"];
    server.etcdctl(&words).await.expect("etcdctl");
    assert_eq!(
        guard.release().await.expect("logged in again"),
        Released::Freed
    );
}

#[tokio::test]
async fn login_at_a_server_without_users_is_told() {
    let server = EtcdServer::start().await.expect("a server");
    let url = format!("etcd://me:s3cret@{}", server.addr());
    let error = Config::from_url(&url)
        .expect("a good URL")
        .connect()
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("leave user and password out"),
        "{error}"
    );
}

#[tokio::test]
async fn certificates_of_both_sides_are_checked() {
    let folder = Folder::new("etcd-tls").expect("a folder");
    certificates::write(&folder);
    let file = |name: &str| folder.file(name).display().to_string();
    let (_server, clients) = secured(&folder);

    let connect = async |parameters: &str| {
        let url = format!("etcds://localhost:{clients}?connect_timeout=2s&{parameters}");
        Config::from_url(&url).expect("a good URL").connect().await
    };
    let identity = |of: &str| {
        format!(
            "cert={}&key={}",
            file(&format!("{of}.pem")),
            file(&format!("{of}.key"))
        )
    };
    let good = format!("ca={}&{}", file("ca.pem"), identity("ca-client"));
    let backend = soon(async {
        loop {
            // It takes a moment to start.
            if let Ok(backend) = connect(&good).await {
                return backend;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let locks = dlock_core::Locks::new(std::sync::Arc::new(backend)).expect("defaults");
    let guard = lock(&locks, "a").await;
    assert_eq!(
        guard.release().await.expect("the store answers"),
        Released::Freed
    );

    // Without ca=FILE, the machine's own authorities count: another process is told of ours.
    let url = format!(
        "etcds://localhost:{clients}?connect_timeout=2s&{}",
        identity("ca-client")
    );
    let hold_lock = env!("CARGO_BIN_EXE_hold-lock");
    for (roots, trusted) in [("ca.pem", true), ("stranger.pem", false)] {
        let roots = folder.file(roots);
        let env = [("SSL_CERT_FILE", roots.as_path())];
        let started = Holder::start_in(&env, hold_lock, &url, "by system", "exclusive", None).await;
        let held = match started {
            Ok(mut process) => soon(process.held()).await.is_ok(),
            Err(_) => false,
        };
        assert_eq!(held, trusted, "{}", roots.display());
    }

    let untrusted = format!("ca={}&{}", file("stranger.pem"), identity("ca-client"));
    let error = connect(&untrusted).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    for bad in [
        format!("ca={}", file("ca.pem")),
        format!("ca={}&{}", file("ca.pem"), identity("stranger-client")),
    ] {
        let error = connect(&bad)
            .await
            .expect_err("the server does not trust us");
        assert!(
            matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable),
            "{error}"
        );
        assert!(error.to_string().contains("client certificate"), "{error}");
    }
    // One side speaks TLS and the other does not.
    let plain = Config::from_url(&format!("etcd://localhost:{clients}?connect_timeout=2s"))
        .expect("a good URL");
    let error = plain.connect().await.expect_err("no TLS");
    assert!(error.to_string().contains("TLS"), "{error}");
    let server = EtcdServer::start().await.expect("a server");
    let url = format!(
        "etcds://{}?ca={}&connect_timeout=2s",
        server.addr(),
        file("ca.pem")
    );
    let error = Config::from_url(&url)
        .expect("a good URL")
        .connect()
        .await
        .expect_err("TLS");
    assert!(error.to_string().contains("without TLS"), "{error}");
}

/// The password file is read for each log-in: who changes the password at the server and in the file costs nobody a hold.
#[tokio::test]
async fn password_may_change_in_its_file() {
    let server = guarded().await;
    let folder = Folder::new("etcd-password").expect("a folder");
    let file = folder.file("password");
    std::fs::write(&file, "s3cret\n").expect("a file");
    let url = format!(
        "etcd://locker@{}?session=6s&password_file={}",
        server.addr(),
        file.display()
    );
    let locks = client(&url).await;
    let guard = lock(&locks, "a").await;
    change_password(&server).await;
    std::fs::write(&file, "changed").expect("a file");
    // Longer than a log-in lasts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_held());
    let next = lock(&locks, "b").await;
    for guard in [guard, next] {
        let released = guard.release().await.expect("logged in again");
        assert_eq!(released, Released::Freed);
    }
}

/// `locker` has the password `changed` from now on, and no log-in from before counts.
async fn change_password(server: &EtcdServer) {
    for words in [
        ["user", "delete", "locker"].as_slice(),
        &["user", "add", "locker:changed"],
        &["user", "grant-role", "locker", "locks"],
    ] {
        let words: Vec<&str> = ["--user", "root:r00t"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        server.etcdctl(&words).await.expect("etcdctl");
    }
}

/// Whoever gives the password is asked for each connection: a hold and a new acquire survive that it changes.
#[tokio::test]
async fn password_is_asked_for_with_each_connection() {
    let server = guarded().await;
    let url = format!("etcd://{}?session=6s", server.addr());
    let asked = Arc::new(Mutex::new((0, "s3cret")));
    let config = Config::from_url(&url).expect("a good URL").credentials({
        let asked = asked.clone();
        move || {
            let asked = asked.clone();
            async move {
                let mut asked = asked.lock().expect("no panic");
                asked.0 += 1;
                Ok(Login::new("locker", asked.1))
            }
        }
    });
    assert!(!format!("{config:?}").contains("s3cret"));
    let locks = Locks::new(config.connect().await.expect("logged in")).expect("defaults");
    let guard = lock(&locks, "a").await;
    let before = asked.lock().expect("no panic").0;
    assert!(before > 0);
    change_password(&server).await;
    asked.lock().expect("no panic").1 = "changed";
    // Longer than a log-in lasts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_held());
    let next = lock(&locks, "b").await;
    for guard in [guard, next] {
        let released = guard.release().await.expect("logged in again");
        assert_eq!(released, Released::Freed);
    }
    assert!(asked.lock().expect("no panic").0 > before);

    let refused = Config::from_url(&url)
        .expect("a good URL")
        .credentials(|| async { Err(Error::new(ErrorKind::Denied, "the vault is sealed")) });
    let error = refused.connect().await.expect_err("no password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("the vault is sealed"), "{error}");
}
