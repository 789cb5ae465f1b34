//! Passwords and certificates that change while locks are held, and the settings of connections.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Locks, Released, Settings};
use dlock_redis::{Config, Login};
use integration_tests::{Folder, Holder, Redis, RedisCluster, RedisServer, Tls};
use redis_support::*;
use rustix::net::sockopt;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

fn users(password: &str) -> String {
    format!("user default on nopass ~* &* +@all\nuser app on >{password} ~* &* +@all\n")
}

/// The password is another now, and connections with the old one end.
async fn rotate(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let change = ["ACL", "SETUSER", "app", "resetpass", &password];
    server.command(&change).await.expect("ACL");
    let end = ["CLIENT", "KILL", "USER", "app"];
    server.command(&end).await.expect("CLIENT KILL");
}

/// A hold that is renewed, a new one, and a release work after the change.
async fn lives_on(locks: &Locks, change: impl AsyncFnOnce()) {
    let locks = locks
        .with(
            Settings::new()
                .lease(seconds(3))
                .retry_unreachable_for(seconds(30)),
        )
        .expect("good settings");
    let guard = lock(&locks, "held").await;
    change().await;
    let lost = tokio::time::timeout(seconds(4), guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let other = locks.mutex("new").expect("a name").lock().await;
    let other = other.expect("the lock");
    assert_eq!(other.release().await.expect("release"), Released::Freed);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
}

#[tokio::test]
async fn a_password_in_a_file_may_change() {
    let server = RedisServer::start_with(Redis {
        acl: Some(users("first")),
        ..Redis::default()
    });
    let server = server.await.expect("redis");
    let folder = Folder::new("password").expect("a folder");
    let file = folder.file("password");
    std::fs::write(&file, "first\n").expect("a file");
    let url = server.url().replace("redis://", "redis://app@");
    let url = format!("{url}?password_file={}", file.display());
    let locks = client(&url).await;
    lives_on(&locks, async || {
        std::fs::write(&file, "second\n").expect("a file");
        rotate(&server, "second").await;
    })
    .await;
    assert!(!format!("{:?}", config(&url)).contains("second"));
}

#[tokio::test]
async fn credentials_are_asked_for_with_each_connection() {
    let server = RedisServer::start_with(Redis {
        acl: Some(users("first")),
        ..Redis::default()
    });
    let server = server.await.expect("redis");
    let current = Arc::new(Mutex::new("first"));
    let given = current.clone();
    let config = config(&server.url()).credentials(move || {
        let password = *given.lock().expect("no panic");
        async move { Ok(Login::new("app", password)) }
    });
    let locks = Locks::new(config.connect().await.expect("a connection")).expect("defaults");
    lives_on(&locks, async || {
        *current.lock().expect("no panic") = "second";
        rotate(&server, "second").await;
    })
    .await;
    // What the provider says when it has none reaches whoever asks.
    let denied = Config::from_url(&server.url()).expect("a URL");
    let denied = denied.credentials(|| async {
        Err(dlock_core::Error::new(
            dlock_core::ErrorKind::Denied,
            "the vault is sealed",
        ))
    });
    let error = denied.connect().await.expect_err("no credentials");
    assert_eq!(error.kind(), dlock_core::ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("the vault is sealed"), "{error}");
}

/// The client of a cluster connects to single nodes again by itself, with what it was given at first.
#[tokio::test]
async fn in_a_cluster_too_the_password_may_change() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    for node in cluster.nodes() {
        let user = ["ACL", "SETUSER", "app", "on", ">first", "~*", "&*", "+@all"];
        node.command(&user).await.expect("ACL");
    }
    let hosts: Vec<_> = cluster.addrs().iter().map(ToString::to_string).collect();
    let current = Arc::new(Mutex::new("first"));
    let given = current.clone();
    let url = format!("redis+cluster://{}?answer_timeout=500ms", hosts.join(","));
    let config = config(&url).credentials(move || {
        let password = *given.lock().expect("no panic");
        async move { Ok(Login::new("app", password)) }
    });
    let locks = Locks::new(config.connect().await.expect("a connection")).expect("defaults");
    lives_on(&locks, async || {
        *current.lock().expect("no panic") = "second";
        for node in cluster.nodes() {
            rotate(node, "second").await;
        }
    })
    .await;
}

async fn with_tls() -> (RedisServer, Folder) {
    let files = authority();
    let server = RedisServer::start_with(Redis {
        tls: Some(Tls {
            certificate: files.file("ca-server.pem"),
            key: files.file("ca-server.key"),
            authority: files.file("ca.pem"),
        }),
        args: ["--tls-auth-clients", "yes"].map(str::to_owned).to_vec(),
        ..Redis::default()
    });
    (
        server.await.expect("redis"),
        Folder::new("tls").expect("a folder"),
    )
}

#[tokio::test]
async fn certificates_are_read_again_for_each_connection() {
    let files = authority();
    let (server, folder) = with_tls().await;
    let renew = |authority: &str| {
        for (from, to) in [
            (format!("{authority}.pem"), "ca.pem"),
            (format!("{authority}-client.pem"), "client.pem"),
            (format!("{authority}-client.key"), "client.key"),
        ] {
            std::fs::copy(files.file(&from), folder.file(to)).expect("a copy");
        }
    };
    renew("ca");
    let file = |name: &str| folder.file(name).display().to_string();
    let url = format!(
        "rediss://localhost:{}?ca={}&cert={}&key={}",
        server.tls_port(),
        file("ca.pem"),
        file("client.pem"),
        file("client.key")
    );
    let locks = client(&url).await;
    lives_on(&locks, async || {
        // Server and client go over to another authority.
        renew("stranger");
        let path = |name: &str| files.file(name).display().to_string();
        let set = [
            "CONFIG",
            "SET",
            "tls-cert-file",
            &path("stranger-server.pem"),
            "tls-key-file",
            &path("stranger-server.key"),
            "tls-ca-cert-file",
            &path("stranger.pem"),
        ];
        server.command(&set).await.expect("CONFIG SET");
        let end = ["CLIENT", "KILL", "TYPE", "normal"];
        server.command(&end).await.expect("CLIENT KILL");
        let end = ["CLIENT", "KILL", "TYPE", "pubsub"];
        server.command(&end).await.expect("CLIENT KILL");
    })
    .await;
}

/// The variable that other programs read too stands for the system's list here: in another process, since it counts for a whole one.
#[tokio::test]
async fn the_systems_authorities_are_trusted_if_asked_for() {
    let files = authority();
    let (server, _folder) = with_tls().await;
    let url = |ca: &str| {
        format!(
            "rediss://localhost:{}?{ca}cert={}&key={}",
            server.tls_port(),
            files.file("ca-client.pem").display(),
            files.file("ca-client.key").display()
        )
    };
    let system = files.file("ca.pem");
    let env = [("SSL_CERT_FILE", system.as_path())];
    let program = env!("CARGO_BIN_EXE_hold-lock");
    let good = url("ca=system&");
    let holder = Holder::start_in(&env, program, &good, "a", "exclusive", None).await;
    let mut holder = holder.expect("a holder");
    holder.held().await.expect("held");
    assert_eq!(holder.release().await.expect("release"), "Freed");
    // Not by default, and not when the system trusts somebody else.
    let other = files.file("stranger.pem");
    for (ca, system) in [("", &system), ("ca=system&", &other)] {
        let env = [("SSL_CERT_FILE", system.as_path())];
        let refused = Holder::start_in(&env, program, &url(ca), "a", "exclusive", None).await;
        let error = refused.expect_err("an unknown authority").to_string();
        assert!(error.contains("certificate"), "{error}");
    }
}

/// Copies of this process's sockets that are connected to a server.
fn sockets_to(server: &RedisServer) -> Vec<OwnedFd> {
    let myself = pidfd_open(getpid(), PidfdFlags::empty()).expect("myself");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").expect("files") {
        let number = entry.expect("a file").file_name();
        let number = number.to_str().and_then(|number| number.parse().ok());
        let copy = pidfd_getfd(&myself, number.expect("a number"), PidfdGetfdFlags::empty());
        let Ok(copy) = copy else { continue };
        let peer = rustix::net::getpeername(&copy).ok().flatten();
        let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
        if peer == Some(server.addr()) {
            found.push(copy);
        }
    }
    found
}

#[tokio::test]
async fn keep_alive_and_user_time_out_reach_the_socket() {
    let server = RedisServer::start().await.expect("redis");
    let plain = client(&server.url()).await;
    let sockets = sockets_to(&server);
    assert!(!sockets.is_empty());
    for socket in &sockets {
        assert!(!sockopt::socket_keepalive(socket).expect("an option"));
        assert_eq!(sockopt::tcp_user_timeout(socket).expect("an option"), 0);
    }
    plain.close().await.expect("closed");
    drop((plain, sockets));
    let other = RedisServer::start().await.expect("redis");
    let url = format!("{}?keepalive=30s&user_timeout=4s", other.url());
    let _locks = client(&url).await;
    let sockets = sockets_to(&other);
    assert!(!sockets.is_empty());
    for socket in &sockets {
        assert!(sockopt::socket_keepalive(socket).expect("an option"));
        let idle = sockopt::tcp_keepidle(socket).expect("an option");
        assert_eq!(idle, Duration::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(socket).expect("an option"), 4000);
    }
}
