//! Who may come in, and what those are told who may not.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod certificates;
mod zk_support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::{Error, ErrorKind, Locks, Released};
use dlock_zk::{Access, Auth, Config, Login};
use integration_tests::{Direction, FaultProxy, Folder, Tls, ZooKeeper, ZooKeeperServer, until};
use zk_support::*;

/// The error of a connect, and that it came within the connect time-out.
async fn refused(url: &str) -> dlock_core::Error {
    let limit = Duration::from_secs(2);
    let config = Config::from_url(url)
        .expect("a good URL")
        .connect_timeout(limit);
    let started = Instant::now();
    let error = config.connect().await.expect_err("no connection");
    let took = started.elapsed();
    assert!(
        took < limit + Duration::from_secs(2),
        "{error} after {took:?}"
    );
    assert!(error.to_string().starts_with("zk: connect: "), "{error}");
    error
}

#[tokio::test]
async fn what_cannot_be_reached_is_said_within_the_connect_time_out() {
    let error = refused("zk://127.0.0.1:1").await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    // Somebody who takes the connection and says nothing.
    let silent = FaultProxy::start("127.0.0.1:1".parse().expect("an address"))
        .await
        .expect("a proxy");
    silent.black_hole(Direction::Both);
    let error = refused(&format!("zk://{}", silent.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let error = refused("zk://no.such.host.invalid").await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn chroot_that_does_not_exist_is_invalid() {
    let error = refused(&format!("{}/no/such/root", shared().await)).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(
        error
            .to_string()
            .contains("\"/no/such/root\" does not exist"),
        "{error}"
    );
}

#[tokio::test]
async fn authentication_that_fails_is_denied() {
    let mut settings = ZooKeeper::default();
    let flags = "-Dzookeeper.enforce.auth.enabled=true -Dzookeeper.enforce.auth.schemes=digest";
    settings
        .env
        .push(("JAVA_TOOL_OPTIONS".to_owned(), flags.to_owned()));
    let server = ZooKeeperServer::start_with(settings)
        .await
        .expect("zookeeper");
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("authentication failed"),
        "{error}"
    );
    let locks = client(&server.url().replace("zk://", "zk://app:s3cret@")).await;
    assert_eq!(
        lock(&locks, "a").await.release().await.expect("release"),
        Released::Freed
    );
}

/// A server that knows the users `app` with the password `s3cret` and `other` with `0ther`.
async fn with_users() -> (Folder, ZooKeeperServer) {
    let folder = Folder::new("zk-sasl").expect("a folder");
    let jaas = folder.file("jaas.conf");
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let users = r#"user_app="s3cret" user_other="0ther""#;
    std::fs::write(&jaas, format!("Server {{ {module} required {users}; }};\n")).expect("a file");
    let mut settings = ZooKeeper::default();
    let flags = format!("-Djava.security.auth.login.config={}", jaas.display());
    settings.env.push(("JAVA_TOOL_OPTIONS".to_owned(), flags));
    let provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider";
    settings.config.push(format!("authProvider.1={provider}"));
    let server = ZooKeeperServer::start_with(settings)
        .await
        .expect("zookeeper");
    (folder, server)
}

#[tokio::test]
async fn users_whom_the_server_knows_come_in_by_sasl() {
    let (_folder, server) = with_users().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = |user: &str| {
        format!(
            "zk://{user}@{}?auth=sasl&access=creator-read&session=10s",
            proxy.addr()
        )
    };
    let locks = client(&url("app:s3cret")).await;
    let guard = lock(&locks, "a").await;
    // The nodes are that user's, and a new connection has to show it again.
    let acl = Admin::connect(&server.url())
        .await
        .0
        .get_acl("/dlock")
        .await;
    let (acl, _) = acl.expect("whoever may read may know");
    assert_eq!((acl[0].scheme(), acl[0].id()), ("sasl", "app"));
    proxy.reset_all().await;
    renewed(&locks).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let error = refused(&url("app:wrong")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let other = client(&url("other:0ther")).await;
    let error = other.mutex("a").expect("a name").lock().await;
    let error = error.expect_err("not its nodes");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    // Unless it is let in, by the name that the server knows it by.
    let let_in =
        |user: &str, whom: &str| format!("{}&folder=both&allow=sasl:{whom}:cdrwa", url(user));
    let (mine, its) = (let_in("app:s3cret", "other"), let_in("other:0ther", "app"));
    share(&client(&mine).await, &client(&its).await).await;
    let stranger = client(&format!("{}?folder=both", server.url())).await;
    let error = stranger.mutex("shared").expect("a name").lock().await;
    let error = error.expect_err("nobody has let it in");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

/// One holds, and the other waits behind it and is granted the lock; then the first may take it away.
async fn share(first: &Locks, second: &Locks) {
    let guard = lock(first, "shared").await;
    let waits = second.mutex("shared").expect("a name");
    let waits = tokio::spawn(async move { waits.lock().await });
    waiting(first, "shared", 1).await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = tokio::time::timeout(SOON, waits).await.expect("soon");
    let next = next.expect("no panic").expect("the lock");
    // Its node may be taken away by the first.
    assert!(first.break_lock("shared").await.expect("it may"));
    drop(next);
}

#[tokio::test]
async fn nodes_are_the_creators_and_others_are_denied() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let user =
        |user: &str, more: &str| server.url().replace("zk://", &format!("zk://{user}@")) + more;
    let mine = client(&user("app:s3cret", "")).await;
    let guard = lock(&mine, "a").await;
    for stranger in [
        user("app:wrong", ""),
        user("other:s3cret", ""),
        server.url(),
    ] {
        let stranger = client(&stranger).await;
        for name in ["a", "new"] {
            let error = stranger
                .mutex(name)
                .expect("a name")
                .lock()
                .await
                .expect_err("denied");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains("no permission"), "{error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
        let error = stranger.inspect("a").await.expect_err("denied");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let colleague = client(&user("app:s3cret", "")).await;
    assert!(
        colleague
            .mutex("a")
            .expect("a name")
            .try_lock()
            .await
            .expect("allowed")
            .is_none()
    );
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn readers_may_look_where_they_are_let() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let config = Config::from_url(&server.url()).expect("a URL");
    let config = config
        .user("app")
        .password("s3cret")
        .access(Access::CreatorAndReaders);
    let mine = Locks::new(config.connect().await.expect("a connection"));
    let guard = lock(&mine.expect("defaults"), "a").await;
    let stranger = client(&server.url()).await;
    let info = stranger.inspect("a").await.expect("it may look");
    assert_eq!(info.holders[0].owner, guard.owner_id());
    let error = stranger.break_lock("a").await.expect_err("it may not");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn others_come_in_as_they_are_let() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    // Two users who let each other in, by the hashes of "user:password"; and everybody of this host may look.
    let (app, ops) = (
        "digest:app:e2nIdT66oYnDgbYIwoOP6SxOio4=:cdrwa",
        "digest:ops:BUSOGGHozVi0fzX5GrXh2VjuRrU=:cdrwa",
    );
    let user = |login: &str, allow: &str| {
        let at = server.url().replace("zk://", &format!("zk://{login}@"));
        format!("{at}?allow={allow};ip:127.0.0.1:r")
    };
    let first = client(&user("app:s3cret", ops)).await;
    let second = client(&user("ops:0psword", app)).await;
    let guard = lock(&first, "a").await;
    let waits = second.mutex("a").expect("a name");
    let waits = tokio::spawn(async move { waits.lock().await });
    waiting(&first, "a", 1).await;
    let stranger = client(&server.url()).await;
    let info = stranger.inspect("a").await.expect("it may look");
    assert_eq!(info.waiters.len(), 1);
    let error = stranger.break_lock("a").await.expect_err("it may not");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let next = waits.await.expect("no panic").expect("the lock");
    assert!(first.break_lock("a").await.expect("it may"));
    drop(next);
}

#[tokio::test]
async fn certificates_of_both_sides_are_checked() {
    let folder = Folder::new("zk-tls").expect("a folder");
    certificates::write(&folder);
    let mut settings = ZooKeeper::default();
    settings.tls = Some(Tls {
        certificate: folder.file("ca-server.pem"),
        key: folder.file("ca-server.key"),
        authority: folder.file("ca.pem"),
    });
    let server = ZooKeeperServer::start_with(settings)
        .await
        .expect("zookeeper");
    let file = |name: &str| folder.file(name).display().to_string();
    let identity = |of: &str| {
        let (cert, key) = (format!("{of}.pem"), format!("{of}.key"));
        format!("cert={}&key={}", file(&cert), file(&key))
    };
    let ca = format!("ca={}", file("ca.pem"));
    let good = format!("{ca}&{}", identity("ca-client"));

    // The same lock, with TLS and without; and a connection that breaks is made again.
    let secure = ([127, 0, 0, 1], server.tls_port()).into();
    let proxy = FaultProxy::start(secure).await.expect("a proxy");
    let locks = client(&format!("zks://{}?session=10s&{good}", proxy.addr())).await;
    let guard = lock(&locks, "a").await;
    let other = client(&server.url()).await;
    let tried = other.mutex("a").expect("a name").try_lock().await;
    assert!(tried.expect("the store answers").is_none());
    proxy.reset_all().await;
    renewed(&locks).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);

    let at = |parameters: &str| format!("zks://localhost:{}?{parameters}", server.tls_port());
    let stranger = format!("ca={}&{}", file("stranger.pem"), identity("ca-client"));
    // The name is the certificate's own, or the one that is asked for.
    let named = |name: &str| at(&format!("{good}&server_name={name}"));
    let guard = lock(&client(&named("localhost")).await, "b").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    // Who comes with a certificate is known by its subject, and may be let in by it.
    let of = |identity_of: &str, parameters: &str| {
        at(&format!(
            "{ca}&{}&folder=by-certificate{parameters}",
            identity(identity_of)
        ))
    };
    let both = "&allow=x509:CN%3Dclient:cdrwa;x509:CN%3Dserver:cdrwa";
    let (first, second) = (
        client(&of("ca-client", both)).await,
        client(&of("ca-server", both)).await,
    );
    share(&first, &second).await;
    let nobody = client(&format!("{}?folder=by-certificate", server.url())).await;
    let error = nobody.mutex("shared").expect("a name").lock().await;
    let error = error.expect_err("it has no certificate");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    // Without ca=FILE, the machine's own authorities count: another process is told of ours.
    let url = at(&identity("ca-client"));
    for (roots, expected) in [("ca.pem", "held"), ("stranger.pem", "is not to be trusted")] {
        let mut process = tokio::process::Command::new(env!("CARGO_BIN_EXE_hold-lock"))
            .args([url.as_str(), "c", "exclusive"])
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
            let line = tokio::time::timeout(SOON, lines.next_line()).await;
            let line = line.expect("a word").expect("its output");
            output += &line.expect("a word");
        }
        // It ends with its input.
        drop(process.stdin.take());
        process.wait().await.expect("it ends");
        assert!(output.contains(expected), "{roots}: {output}");
    }
    for (url, kind, words) in [
        (
            named("elsewhere.test"),
            ErrorKind::Denied,
            "the name its own",
        ),
        (
            at(&stranger),
            ErrorKind::Denied,
            "authority the one of ca=FILE",
        ),
        (at(&ca), ErrorKind::Denied, "may want a client certificate"),
        (
            at(&format!("{ca}&{}", identity("stranger-client"))),
            ErrorKind::Denied,
            "the authority of our client certificate",
        ),
        (
            format!("zk://localhost:{}", server.tls_port()),
            ErrorKind::Invalid,
            "write zks:// instead of zk://",
        ),
        (
            format!("zks://{}?{good}", server.addr()),
            ErrorKind::Unreachable,
            "its secure client port?",
        ),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

/// The password file is read for each connection.
#[tokio::test]
async fn password_is_read_from_its_file_for_each_connection() {
    let folder = Folder::new("zk-password").expect("a folder");
    let file = folder.file("password");
    std::fs::write(&file, "s3cret\n").expect("a file");
    let server = server().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let at = |addr| format!("zk://app@{addr}?password_file={}", file.display());
    let locks = client(&at(proxy.addr())).await;
    let guard = lock(&locks, "a").await;
    // It is the same user as with the password in the URL.
    let same = client(&format!("zk://app:s3cret@{}", server.addr())).await;
    assert!(same.inspect("a").await.expect("it may").is_locked());
    // With digest, another password is another user, who may not use the locks of the first.
    std::fs::write(&file, "changed").expect("a file");
    proxy.reset_all().await;
    renewed(&locks).await;
    let denied = locks.mutex("b").expect("a name").lock().await;
    assert_eq!(denied.expect_err("another").kind(), ErrorKind::Denied);
    std::fs::write(&file, "s3cret").expect("a file");
    proxy.reset_all().await;
    renewed(&locks).await;
    let next = lock(&locks, "b").await;
    for guard in [guard, next] {
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
    }
}

/// Whoever gives the password is asked for each connection. Who opens a session hears why there is none; an open session outlives it.
#[tokio::test]
async fn password_is_asked_for_with_each_connection() {
    let (_folder, server) = with_users().await;
    let proxy = FaultProxy::start(server.addr()).await.expect("a proxy");
    let url = format!("zk://{}?session=30s", proxy.addr());
    let (password, asked) = (
        Arc::new(Mutex::new(Some("s3cret"))),
        Arc::new(Mutex::new(0)),
    );
    let config = Config::from_url(&url).expect("a good URL");
    let config = config.auth(Auth::Sasl).credentials({
        let (password, asked) = (password.clone(), asked.clone());
        move || {
            *asked.lock().expect("no panic") += 1;
            let password = *password.lock().expect("no panic");
            async move {
                let sealed = || Error::new(ErrorKind::Denied, "the vault is sealed");
                Ok(Login::new("app", password.ok_or_else(sealed)?))
            }
        }
    });
    assert!(!format!("{config:?}").contains("s3cret"));
    let backend = config.clone().connect().await.expect("a connection");
    assert_eq!(
        *asked.lock().expect("no panic"),
        1,
        "once for one connection"
    );
    let locks = Locks::new(backend).expect("defaults");
    let guard = lock(&locks, "a").await;
    *password.lock().expect("no panic") = None;
    proxy.reset_all().await;
    let error = config.connect().await.expect_err("no password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("the vault is sealed"), "{error}");
    let before = *asked.lock().expect("no panic");
    until("another try", Duration::from_secs(20), || async {
        match *asked.lock().expect("no panic") {
            more if more > before => Ok(()),
            _ => Err(integration_tests::Error::answer(
                "asked",
                "no more than before",
            )),
        }
    })
    .await
    .expect("the session goes on");
    *password.lock().expect("no panic") = Some("s3cret");
    renewed(&locks).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}
