//! Connections of every kind, and what a person is told when there is none.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Released, kit};
use dlock_redis::Config;
use integration_tests::{
    Direction, FaultProxy, Redis, RedisCluster, RedisServer, SentinelGroup, Tls,
};
use redis_support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Fails as it should, within the connect time-out and something for a loaded machine.
async fn refused(config: Config, kind: ErrorKind, says: &str) {
    let start = Instant::now();
    let error = config
        .connect_timeout(Duration::from_secs(2))
        .connect()
        .await
        .expect_err(says);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}: {error}",
        start.elapsed()
    );
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("redis: connect: "), "{text}");
    assert!(text.contains(says), "{text}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
}

#[tokio::test]
async fn a_slow_server_has_the_connect_time_out_for_everything_together() {
    let server = RedisServer::start().await.expect("redis");
    let proxy = FaultProxy::start(server.addr()).await.expect("proxy");
    // No single answer is too late, but there are at least six of them before the first lock.
    proxy.delay(Direction::ToClient, Duration::from_millis(400));
    refused(
        config(&through(&server, &proxy)),
        ErrorKind::TimedOut,
        "within 2s",
    )
    .await;
}

/// Something that answers every request with the same words.
async fn impostor(words: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|n| n > 0) {
                    if stream.write_all(words).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    refused(
        Config::single("127.0.0.1", port),
        ErrorKind::Unreachable,
        "nobody listens there",
    )
    .await;
    refused(
        Config::single("no-such-host.invalid", 6379),
        ErrorKind::Unreachable,
        "",
    )
    .await;
    refused(
        Config::unix("/no/such/socket"),
        ErrorKind::Unreachable,
        "nobody listens there",
    )
    .await;
}

#[tokio::test]
async fn somebody_who_never_answers() {
    let silent = impostor(b"").await;
    refused(
        Config::single("127.0.0.1", silent),
        ErrorKind::TimedOut,
        "no connection within 2s",
    )
    .await;
}

#[tokio::test]
async fn another_protocol() {
    let web = impostor(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    refused(
        Config::single("127.0.0.1", web),
        ErrorKind::Store,
        "does not speak the Redis protocol",
    )
    .await;
    refused(
        Config::single("127.0.0.1", web).tls(kit::Tls::new()),
        ErrorKind::Store,
        "does not speak TLS",
    )
    .await;
}

#[tokio::test]
async fn a_redis_that_is_too_old() {
    // Once for each command of the greeting.
    let old = impostor(
        b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n-ERR unknown command `CLIENT`\r\n-ERR unknown command `CLIENT`\r\n",
    )
    .await;
    refused(
        Config::single("127.0.0.1", old),
        ErrorKind::Unsupported,
        "6.0 or newer",
    )
    .await;
}

#[tokio::test]
async fn a_wrong_password() {
    let server = RedisServer::start_with(Redis {
        password: Some("s3cret".to_owned()),
        ..Redis::default()
    })
    .await
    .expect("redis");
    let at = || Config::single("127.0.0.1", server.port());
    refused(
        at().password("hunter2"),
        ErrorKind::Denied,
        "user and password",
    )
    .await;
    refused(at(), ErrorKind::Denied, "user and password").await;
    refused(
        at().user("nobody").password("hunter2"),
        ErrorKind::Denied,
        "user and password",
    )
    .await;
    let good = at()
        .password("s3cret")
        .connect()
        .await
        .expect("the right password");
    assert!(!format!("{good:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_missing_permission() {
    let users = [
        ("script", "~* &* +@all -evalsha -eval"),
        ("keys", "~other:* &* +@all"),
        ("channel", "~* resetchannels +@all"),
        ("write", "~* &* +@all -set"),
        ("publish", "~* &* +@all -publish"),
    ];
    let mut acl = "user default on nopass ~* &* +@all\n".to_owned();
    for (user, rules) in users {
        acl += &format!("user {user} on >hunter2 {rules}\n");
    }
    let server = RedisServer::start_with(Redis {
        acl: Some(acl),
        ..Redis::default()
    })
    .await
    .expect("redis");
    for (user, _) in users {
        let config = Config::single("127.0.0.1", server.port())
            .user(user)
            .password("hunter2");
        refused(config, ErrorKind::Denied, "lacks a permission").await;
    }
}

#[tokio::test]
async fn a_server_of_another_kind() {
    let group = SentinelGroup::start().await.expect("sentinels");
    let sentinel = group.sentinels()[0].port();
    refused(
        Config::single("127.0.0.1", sentinel),
        ErrorKind::Invalid,
        "redis+sentinel://",
    )
    .await;
    let replica = group.nodes()[1].port();
    refused(
        Config::single("127.0.0.1", replica),
        ErrorKind::Unreachable,
        "is a replica",
    )
    .await;
    refused(
        Config::sentinel([("127.0.0.1", sentinel)], "nonsense"),
        ErrorKind::Invalid,
        "knows no master named \"nonsense\"",
    )
    .await;
    let server = RedisServer::start().await.expect("redis");
    refused(
        Config::cluster([("127.0.0.1", server.port())]),
        ErrorKind::Invalid,
        "use redis://",
    )
    .await;
    let cluster = RedisCluster::start().await.expect("a cluster");
    let node = cluster.nodes()[0].port();
    refused(
        Config::single("127.0.0.1", node),
        ErrorKind::Invalid,
        "redis+cluster://",
    )
    .await;
}

async fn works(config: Config) {
    let locks = dlock_core::Locks::new(std::sync::Arc::new(
        config.connect().await.expect("a connection"),
    ))
    .expect("defaults");
    let guard = lock(&locks, "a").await;
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    locks.close().await.expect("close");
    let error = locks.inspect("a").await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[tokio::test]
async fn a_unix_socket_and_a_database() {
    let folder = integration_tests::Folder::new("socket").expect("a folder");
    let path = folder.file("redis.sock");
    let server = RedisServer::start_with(Redis {
        args: vec!["--unixsocket".to_owned(), path.display().to_string()],
        ..Redis::default()
    })
    .await
    .expect("redis");
    works(Config::unix(&path).db(3)).await;
    works(config(&format!("redis+unix://{}?db=5", path.display()))).await;
    for db in [3, 5] {
        let answers = server
            .commands(&[&["SELECT", &db.to_string()], &["EXISTS", "dlock:{a}"]])
            .await
            .expect("EXISTS");
        assert_eq!(number(&answers[1]), 1, "a counter in database {db}");
    }
}

#[tokio::test]
async fn tls_with_an_authority_and_a_certificate_of_our_own() {
    let files = authority();
    let read = |name: &str| std::fs::read(files.file(name)).expect("a file");
    let server = RedisServer::start_with(Redis {
        tls: Some(Tls {
            certificate: files.file("ca-server.pem"),
            key: files.file("ca-server.key"),
            authority: files.file("ca.pem"),
        }),
        args: ["--tls-auth-clients", "yes"].map(str::to_owned).to_vec(),
        ..Redis::default()
    })
    .await
    .expect("redis");
    let at = || Config::single("localhost", server.tls_port());
    works(
        at().tls(
            kit::Tls::new()
                .ca(read("ca.pem"))
                .client_certificate(read("ca-client.pem"), read("ca-client.key")),
        ),
    )
    .await;
    // Without a certificate of ours the server hangs up; without its authority we do.
    refused(at().tls(kit::Tls::new()), ErrorKind::Denied, "certificate").await;
    let error = at()
        .tls(kit::Tls::new().ca(read("ca.pem")))
        .connect()
        .await
        .expect_err("no client certificate");
    assert!(
        matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable),
        "{error}"
    );
}

#[tokio::test]
async fn a_fail_over_by_sentinel() {
    let group = SentinelGroup::start().await.expect("sentinels");
    let hosts: Vec<(String, u16)> = group
        .sentinels()
        .iter()
        .map(|s| ("127.0.0.1".to_owned(), s.port()))
        .collect();
    let backend = Config::sentinel(hosts, SentinelGroup::MASTER_NAME)
        .answer_timeout(Duration::from_millis(500))
        .replicas(1, Duration::from_secs(2))
        .connect()
        .await
        .expect("a connection");
    let settings = dlock_core::Settings::new().retry_unreachable_for(Duration::from_secs(60));
    let locks = dlock_core::Locks::builder(std::sync::Arc::new(backend))
        .settings(settings)
        .build()
        .expect("good");
    let guard = lock(&locks, "a").await;
    let token = guard.token();
    let master = group.master().await.expect("a master");
    master.kill();
    let new = group.master_after(master).await.expect("a new master");
    // The hold was replicated before it counted, so it is there; the same client finds the new master by itself.
    let release = integration_tests::until(
        "a release at the new master",
        Duration::from_secs(30),
        || async {
            match locks.inspect("a").await {
                Ok(info) => Ok(info),
                Err(error) => Err(integration_tests::Error::answer(
                    "inspect",
                    error.to_string(),
                )),
            }
        },
    )
    .await
    .expect("the new master answers");
    assert_eq!(release.holders[0].token, token);
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let keys = new.command(&["EXISTS", "dlock:{a}"]).await.expect("EXISTS");
    assert_eq!(number(&keys), 1);
}

#[tokio::test]
async fn a_slot_that_moved_to_another_node() {
    let cluster = RedisCluster::start().await.expect("a cluster");
    let nodes: Vec<(String, u16)> = cluster
        .nodes()
        .iter()
        .map(|n| ("127.0.0.1".to_owned(), n.port()))
        .collect();
    let backend = Config::cluster(nodes)
        .connect()
        .await
        .expect("a connection");
    let locks = dlock_core::Locks::new(std::sync::Arc::new(backend)).expect("defaults");
    let guard = lock(&locks, "moved").await;
    let key = "dlock:{moved}";
    let from = cluster.master_of(key).await.expect("a master");
    let to = cluster
        .nodes()
        .iter()
        .find(|node| node.port() != from.port())
        .expect("another");
    let slot = number(
        &from
            .command(&["CLUSTER", "KEYSLOT", key])
            .await
            .expect("KEYSLOT"),
    )
    .to_string();
    let id = async |node: &RedisServer| {
        node.command(&["CLUSTER", "MYID"])
            .await
            .expect("MYID")
            .text()
            .expect("an id")
    };
    let (from_id, to_id) = (id(from).await, id(to).await);
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id])
        .await
        .expect("importing");
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id])
        .await
        .expect("migrating");
    let port = to.port().to_string();
    from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
        .await
        .expect("migrate");
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id])
            .await
            .expect("setslot");
    }
    let info = locks.inspect("moved").await.expect("inspect");
    assert_eq!(info.holders[0].token, guard.token());
    assert_eq!(guard.release().await.expect("release"), Released::Freed);
    let again = lock(&locks, "moved").await;
    assert_eq!(again.release().await.expect("release"), Released::Freed);
    let listed = lock(&locks, "listed").await;
    assert_eq!(locks.list("").await.expect("list").len(), 1);
    drop(listed);
}
