//! Nodes that want TLS, certificates, users and passwords; and what is told when one of them refuses.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use dlock_core::{Error, ErrorKind, Locks, Released, Settings};
use dlock_redlock::Config;
use integration_tests::{Redis, RedisServer, Tls};
use redis_support::{authority, lock};
use redlock_support::*;

/// Served by TLS to those who show a certificate of our authority.
fn tls() -> Redis {
    let files = authority();
    Redis {
        tls: Some(Tls {
            certificate: files.file("ca-server.pem"),
            key: files.file("ca-server.key"),
            authority: files.file("ca.pem"),
        }),
        args: ["--tls-auth-clients", "yes"].map(str::to_owned).to_vec(),
        ..Redis::default()
    }
}

fn hosts(five: &Five) -> String {
    let hosts = five.servers.iter();
    let hosts: Vec<String> = hosts
        .map(|server| format!("localhost:{}", server.tls_port()))
        .collect();
    hosts.join(",")
}

fn files() -> String {
    let file = |name| authority().file(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("ca-client.pem"), file("ca-client.key"));
    format!("ca={ca}&cert={cert}&key={key}")
}

async fn open(config: Config) -> Locks {
    let backend = config.persistent(true).connect().await;
    Locks::new(backend.expect("a connection")).expect("defaults")
}

async fn refusal(config: Config) -> Error {
    let refused = config.persistent(true).connect().await;
    refused.expect_err("refused")
}

#[tokio::test]
async fn a_url_with_tls_an_authority_and_a_certificate_of_our_own() {
    let three = start_with(3, |_| tls()).await.expect("servers");
    let (hosts, files) = (hosts(&three), files());
    let url = |url: String| Config::from_url(&url).expect("a good URL");
    for good in [
        format!("redlocks://{hosts}?{files}"),
        format!("redlock://{hosts}?tls=true&{files}"),
    ] {
        let locks = open(url(good)).await;
        cycle(&locks, "a").await;
        // A node less is a quorum still, by TLS too.
        let guard = lock(&locks, "b").await;
        three.servers[1].kill();
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        cycle(&locks, "a").await;
        three.servers[1].restart().await.expect("restart");
    }
    let error = refusal(url(format!("redlocks://{hosts}"))).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    for server in &three.servers {
        let place = format!("localhost:{}", server.tls_port());
        assert!(error.to_string().contains(&place), "{error}");
    }
    let ca = authority().file("ca.pem").display().to_string();
    let error = refusal(url(format!("redlocks://{hosts}?ca={ca}"))).await;
    assert!(
        matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable),
        "{error}"
    );
}

#[tokio::test]
async fn a_password_in_a_file_may_change_at_all_nodes() {
    let users = "user default on nopass ~* &* +@all\nuser app on >first ~* &* +@all\n";
    let three = start_with(3, |_| Redis {
        acl: Some(users.to_owned()),
        ..Redis::default()
    });
    let three = three.await.expect("servers");
    let folder = integration_tests::Folder::new("password").expect("a folder");
    let file = folder.file("password");
    std::fs::write(&file, "first\n").expect("a file");
    let parameters = format!("?persistent=true&password_file={}", file.display());
    let url = three
        .url(&parameters)
        .replace("redlock://", "redlock://app@");
    let locks = client_with(
        &url,
        Settings::new()
            .lease(seconds(3))
            .retry_unreachable_for(seconds(30)),
    )
    .await;
    let guard = lock(&locks, "held").await;
    std::fs::write(&file, "second\n").expect("a file");
    for server in &three.servers {
        for command in [
            ["ACL", "SETUSER", "app", "resetpass", ">second"].as_slice(),
            &["CLIENT", "KILL", "USER", "app"],
        ] {
            server.command(command).await.expect("rotated");
        }
    }
    let lost = tokio::time::timeout(seconds(4), guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    cycle(&locks, "new").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn nodes_of_every_kind_in_one_quorum() {
    let mut with_password = tls();
    with_password.password = Some("hunter2".to_owned());
    let user = Redis {
        acl: Some(users()),
        ..Redis::default()
    };
    let settings = [tls(), with_password, user, Redis::default()];
    let four = start_with(4, |node| settings[node].clone())
        .await
        .expect("servers");
    let [one, two, three, plain] = four.servers.as_slice() else {
        panic!("four");
    };
    let urls = [
        format!("rediss://localhost:{}?{}", one.tls_port(), files()),
        format!("rediss://:hunter2@localhost:{}?{}", two.tls_port(), files()),
        format!("redis://locker:password@{}", three.addr()),
        plain.url(),
    ];
    let locks = open(Config::from_urls(&urls).expect("good URLs")).await;
    cycle(&locks, "a").await;
    // Every one of them is needed for a quorum of three when another is down.
    for down in &four.servers {
        down.kill();
        cycle(&locks, "a").await;
        down.restart().await.expect("restart");
    }
    assert!(!format!("{locks:?}").contains("hunter2"));
}

/// The user that the crate's README describes, as it stands there.
fn users() -> String {
    let readme = include_str!("../../crates/dlock-redlock/README.md");
    let (_, rest) = readme.split_once("```text\nuser locker").expect("the user");
    let (line, _) = rest.split_once("```").expect("its end");
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("user default on nopass ~* &* +@all\nuser locker {line}\n")
}

/// What the servers refused to anybody.
async fn refusals(server: &RedisServer) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]).await.expect("ACL LOG");
    log.list()
        .iter()
        .map(|entry| {
            let words = entry
                .list()
                .iter()
                .filter_map(integration_tests::Reply::text);
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[tokio::test]
async fn the_user_of_the_readme_may_do_everything_that_is_needed() {
    let three = start_with(3, |_| Redis {
        acl: Some(users()),
        ..Redis::default()
    })
    .await
    .expect("servers");
    for (parameters, lease) in [("?persistent=true", 3), ("?longest_lease=2s", 2)] {
        let url = three.url(parameters);
        let url = url.replace("redlock://", "redlock://locker:password@");
        let settings = Settings::new()
            .lease(seconds(lease))
            .retry_unreachable_for(seconds(30));
        let (locks, other) = (
            client_with(&url, settings.clone()).await,
            client_with(&url, settings).await,
        );
        everything(&locks, &other).await;
    }
    for server in &three.servers {
        assert_eq!(refusals(server).await, [""; 0]);
    }
    clean(&three).await;
}

#[tokio::test]
async fn nodes_that_keep_every_write_need_not_tell_their_age() {
    let three = start_with(3, |_| Redis {
        acl: Some(users().replace(" +info ", " ")),
        ..Redis::default()
    })
    .await
    .expect("servers");
    let url = three.url("");
    let url = url.replace("redlock://", "redlock://locker:password@");
    cycle(&client(&format!("{url}{PERSISTENT}")).await, "a").await;
    let error = dlocks::connect(&url)
        .await
        .expect_err("their age is needed");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("INFO"), "{error}");
}

/// Every request that a client can make of a node.
async fn everything(locks: &Locks, other: &Locks) {
    let guard = lock(locks, "a").await;
    let mutex = other.mutex("a").expect("a name");
    let busy = mutex.try_lock().await.expect("an answer");
    assert!(busy.is_none());
    // A waiter that gives up is undone.
    let waited = mutex.lock_within(ms(200)).await.expect("an answer");
    assert!(waited.is_none());
    let dropped = tokio::time::timeout(ms(200), mutex.lock()).await;
    assert!(dropped.is_err());
    let before = locks.stats().renewals;
    integration_tests::until("a renewal", redis_support::SOON, || async {
        match locks.stats().renewals {
            now if now > before => Ok(()),
            now => Err(integration_tests::Error::answer(
                "renewals",
                now.to_string(),
            )),
        }
    })
    .await
    .expect("a renewal");
    let info = other.inspect("a").await.expect("inspect");
    assert_eq!(info.holders[0].token, guard.token());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);

    let shared = "b";
    let handle = |locks: &Locks| locks.rw_lock(shared).expect("a name");
    let reader = handle(locks).read().await.expect("to read");
    let second = handle(other).read().await.expect("to read");
    let writer = handle(locks).try_write().await.expect("an answer");
    assert!(writer.is_none());
    assert_eq!(other.list("").await.expect("list").len(), 1);
    assert_eq!(reader.release().await.expect("release"), Released::Freed);
    assert_eq!(second.release().await.expect("release"), Released::Freed);
    let writer = handle(locks).write().await.expect("to write");
    writer.downgrade().await.expect("downgrade");
    let second = handle(other).read().await.expect("to read");
    assert!(other.break_lock(shared).await.expect("break"));
    drop((writer, second));
    // Many at once, so that votes are split and counters differ.
    let cycles = (0..40).map(|n| {
        let locks = if n % 2 == 0 { locks } else { other };
        cycle(locks, "c")
    });
    futures::future::join_all(cycles).await;
}

fn password(password: &str) -> Redis {
    Redis {
        password: Some(password.to_owned()),
        ..Redis::default()
    }
}

#[tokio::test]
async fn a_node_with_another_password_is_missed_by_nobody_and_two_are_named() {
    let three = start_with(3, |node| password(["hunter2", "other", "hunter2"][node]))
        .await
        .expect("servers");
    let url = three.url(PERSISTENT);
    let url = url.replace("redlock://", "redlock://:hunter2@");
    let locks = client(&url).await;
    for _ in 0..3 {
        cycle(&locks, "a").await;
    }
    let guard = lock(&locks, "a").await;
    three.servers[2].kill();
    let error = locks
        .mutex("b")
        .expect("a name")
        .try_lock()
        .await
        .expect_err("one of three");
    // The two decide it, perhaps before the third has answered; the one that is down is what may pass.
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    named(&error, &three.servers[1]);
    named(&error, &three.servers[2]);
    drop(guard);
    // Where nothing but passwords is wrong, that is the error.
    let three = start_with(3, |node| password(["hunter2", "other", "others"][node]))
        .await
        .expect("servers");
    let url = three.url(PERSISTENT);
    let error = dlocks::connect(&url.replace("redlock://", "redlock://:hunter2@"))
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error
            .to_string()
            .contains("1 of 3 nodes agreed, 2 are needed"),
        "{error}"
    );
    named(&error, &three.servers[1]);
    named(&error, &three.servers[2]);
    // Each node may have its own.
    let urls = three.servers.iter().map(RedisServer::url);
    cycle(
        &open(Config::from_urls(urls).expect("good URLs")).await,
        "a",
    )
    .await;
}

/// The error tells the node, and no password.
fn named(error: &Error, server: &RedisServer) {
    let text = format!("{error} {error:?}");
    assert!(text.contains(&server.addr().to_string()), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}
