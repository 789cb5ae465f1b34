//! Each server alone: it starts, answers, freezes, dies and comes back.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use integration_tests::server::{Server, Store};
use integration_tests::{
    EtcdServer, FaultProxy, Flavor, MySql, MySqlServer, PostgresServer, Redis, RedisServer, Reply,
    Result, ZooKeeperServer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A frozen server answers nothing. Too short a time could only make the test pass.
const SILENCE: Duration = Duration::from_millis(200);

/// Waits for an event with a limit that only a broken server reaches.
async fn soon<T>(event: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), event)
        .await
        .expect("the server answers in time")
}

fn text(text: &str) -> Reply {
    Reply::Text(text.into())
}

/// Freezes the server, sees that `ask` gets no answer, thaws it, and sees that it does.
async fn freeze_and_thaw<S: Store, T>(server: &Server<S>, ask: impl AsyncFn() -> Result<T>) {
    server.freeze();
    assert!(
        timeout(SILENCE, ask()).await.is_err(),
        "a frozen server answers nothing"
    );
    assert!(server.is_running());
    server.thaw();
    soon(ask()).await.unwrap();
}

/// Kills the server and starts it again, at the same place with another process.
async fn kill_and_restart<S: Store>(server: &Server<S>) {
    let (port, pid) = (server.port(), server.pid());
    server.kill();
    assert!(!server.is_running());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    server.restart().await.unwrap();
    assert!(server.is_running());
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
}

#[tokio::test]
async fn redis_starts_freezes_and_forgets_when_killed() {
    let server = RedisServer::start().await.unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(
        server.command(&["SET", "k", "v"]).await.unwrap(),
        text("OK")
    );
    assert_eq!(server.command(&["GET", "k"]).await.unwrap(), text("v"));
    freeze_and_thaw(&server, async || server.command(&["PING"]).await).await;
    kill_and_restart(&server).await;
    assert_eq!(server.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
    assert!(server.log().contains("Ready to accept connections"));
}

#[tokio::test]
async fn a_durable_redis_remembers_when_killed() {
    let server = RedisServer::start_with(Redis {
        durable: true,
        ..Redis::default()
    })
    .await
    .unwrap();
    server.command(&["SET", "k", "v"]).await.unwrap();
    kill_and_restart(&server).await;
    assert_eq!(server.command(&["GET", "k"]).await.unwrap(), text("v"));
}

#[tokio::test]
async fn redis_takes_a_password_and_users() {
    let acl = "user default on >secret ~* &* +@all\nuser reader on >word ~* +get\n";
    let settings = Redis {
        password: Some("secret".into()),
        acl: Some(acl.into()),
        args: vec!["--maxmemory".into(), "16mb".into()],
        ..Redis::default()
    };
    let server = RedisServer::start_with(settings).await.unwrap();
    assert_eq!(
        server.url(),
        format!("redis://:secret@127.0.0.1:{}", server.port())
    );
    assert_eq!(
        server
            .command(&["CONFIG", "GET", "maxmemory"])
            .await
            .unwrap()
            .field("maxmemory")
            .unwrap(),
        "16777216"
    );
    assert_eq!(
        server
            .command(&["ACL", "USERS"])
            .await
            .unwrap()
            .list()
            .len(),
        2
    );
}

#[tokio::test]
async fn mariadb_starts_freezes_and_remembers() {
    a_database_starts_freezes_and_remembers(Flavor::MariaDb).await;
}

#[tokio::test]
async fn mysql_starts_freezes_and_remembers() {
    if Flavor::MySql.is_tested() {
        a_database_starts_freezes_and_remembers(Flavor::MySql).await;
    }
}

async fn a_database_starts_freezes_and_remembers(flavor: Flavor) {
    let server = flavor.start().await.unwrap();
    let version = server.sql("SELECT VERSION()").await.unwrap();
    assert_eq!(
        version.contains("MariaDB"),
        flavor == Flavor::MariaDb,
        "{version}"
    );
    assert_eq!(
        server.url(),
        format!("mysql://root:dlock@127.0.0.1:{}/dlock", server.port())
    );
    server
        .sql("CREATE TABLE t (v INT); INSERT INTO t VALUES (42)")
        .await
        .unwrap();
    freeze_and_thaw(&server, async || server.sql("SELECT 1").await).await;
    kill_and_restart(&server).await;
    assert_eq!(server.sql("SELECT v FROM t").await.unwrap(), "42\n");
    assert_eq!(
        server.sql("SELECT CURRENT_USER()").await.unwrap(),
        "root@127.0.0.1\n"
    );
    let error = server.sql("SELEKT").await.unwrap_err();
    assert!(error.to_string().contains("syntax"), "{error}");
}

#[tokio::test]
async fn etcd_starts_freezes_and_remembers() {
    let server = EtcdServer::start().await.unwrap();
    assert_eq!(server.url(), format!("etcd://127.0.0.1:{}", server.port()));
    assert_eq!(server.etcdctl(&["put", "k", "v"]).await.unwrap(), "OK\n");
    freeze_and_thaw(&server, async || {
        server.settings().probe(server.site()).await
    })
    .await;
    kill_and_restart(&server).await;
    assert_eq!(server.etcdctl(&["get", "k"]).await.unwrap(), "k\nv\n");
}

#[tokio::test]
async fn zookeeper_starts_freezes_and_remembers() {
    let server = ZooKeeperServer::start().await.unwrap();
    assert_eq!(server.url(), format!("zk://127.0.0.1:{}", server.port()));
    assert_eq!(server.four_letter_word("ruok").await.unwrap(), "imok");
    let configuration = server.four_letter_word("conf").await.unwrap();
    assert!(
        configuration.contains("minSessionTimeout=400"),
        "{configuration}"
    );

    let created = zookeeper::create(server.addr(), "/node").await;
    assert_eq!(created, 0);
    freeze_and_thaw(&server, async || server.four_letter_word("ruok").await).await;
    kill_and_restart(&server).await;
    assert_eq!(
        zookeeper::create(server.addr(), "/node").await,
        zookeeper::NODE_EXISTS
    );
}

#[tokio::test]
async fn two_servers_of_a_kind_run_at_once() {
    let settings = MySql {
        args: vec!["--wait-timeout=77".into()],
        ..MySql::default()
    };
    let (one, two, first, second) = tokio::try_join!(
        RedisServer::start(),
        RedisServer::start(),
        MySqlServer::start(),
        MySqlServer::start_with(settings),
    )
    .unwrap();
    one.command(&["SET", "k", "v"]).await.unwrap();
    assert_eq!(two.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
    first.sql("CREATE TABLE only_here (v INT)").await.unwrap();
    assert_eq!(second.sql("SHOW TABLES").await.unwrap(), "");
    assert_eq!(
        second.sql("SELECT @@global.wait_timeout").await.unwrap(),
        "77\n"
    );
}

/// The processes that serve clients end a moment after the first one was killed; until then a new server finds their memory in use, and ends.
#[tokio::test]
async fn postgres_comes_back_when_all_processes_of_the_one_before_have_gone() {
    let server = PostgresServer::start().await.unwrap();
    server.sql("CREATE TABLE kept (v INT)").await.unwrap();
    server.freeze_all();
    server.kill();
    // Long enough for a server that does not wait to have ended. Too short a time could only make the test pass.
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.thaw_all();
    };
    let (back, ()) = tokio::join!(server.restart(), later);
    back.unwrap();
    assert_eq!(server.sql("SELECT v FROM kept").await.unwrap(), "");
}

#[tokio::test]
async fn a_terminated_server_can_be_restarted_and_a_running_one_too() {
    let server = EtcdServer::start().await.unwrap();
    server.terminate().await.unwrap();
    assert!(!server.is_running());
    server.restart().await.unwrap();
    let pid = server.pid();
    server.restart().await.unwrap();
    assert_ne!(server.pid(), pid);
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_log() {
    let settings = Redis {
        args: vec!["--no-such-setting".into(), "1".into()],
        ..Redis::default()
    };
    let error = RedisServer::start_with(settings)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("redis ended before it was ready"), "{error}");
    assert!(error.contains("no-such-setting"), "{error}");
}

#[tokio::test]
async fn a_write_whose_reply_the_proxy_drops_is_in_the_server() {
    let server = RedisServer::start().await.unwrap();
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.drop_reply(1);
    client.write_all(b"SET k v\r\n").await.unwrap();
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(server.command(&["GET", "k"]).await.unwrap(), text("v"));
}

#[tokio::test]
async fn the_shared_servers_are_started_once() {
    let (redis, again) =
        tokio::try_join!(integration_tests::redis(), integration_tests::redis()).unwrap();
    assert!(std::ptr::eq(redis, again));
    let mysql = integration_tests::mysql().await.unwrap();
    let etcd = integration_tests::etcd().await.unwrap();
    let zookeeper = integration_tests::zookeeper().await.unwrap();
    for (addr, url) in [
        (redis.addr().unwrap(), redis.url()),
        (mysql.addr().unwrap(), mysql.url()),
        (etcd.addr().unwrap(), etcd.url()),
        (zookeeper.addr().unwrap(), zookeeper.url()),
    ] {
        TcpStream::connect(addr)
            .await
            .unwrap_or_else(|error| panic!("{url}: {error}"));
    }
}

/// As much of ZooKeeper's protocol as creates a node.
mod zookeeper {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// The node is there already.
    pub(super) const NODE_EXISTS: i32 = -110;

    /// Creates a persistent node in a session of its own, and returns the error code of the server.
    pub(super) async fn create(addr: SocketAddr, path: &str) -> i32 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        // Protocol 0, last zxid 0, session time-out 5 s, session 0, a password of 16 bytes, not read-only.
        let hello = [
            &[0; 12][..],
            &5000_i32.to_be_bytes(),
            &[0; 8],
            &16_i32.to_be_bytes(),
            &[0; 17],
        ]
        .concat();
        exchange(&mut stream, &hello).await;

        // Transaction 1, operation 1 (create), path, no data, one rule: all rights to world:anyone; persistent.
        let rule = [
            &31_i32.to_be_bytes()[..],
            &string("world"),
            &string("anyone"),
        ]
        .concat();
        let one = 1_i32.to_be_bytes();
        let create = [
            &one[..],
            &one,
            &string(path),
            &string(""),
            &one,
            &rule,
            &[0; 4],
        ]
        .concat();
        let reply = exchange(&mut stream, &create).await;
        // Transaction (4 bytes), zxid (8 bytes), error.
        i32::from_be_bytes(reply[12..16].try_into().unwrap())
    }

    fn string(text: &str) -> Vec<u8> {
        [
            &i32::try_from(text.len()).unwrap().to_be_bytes()[..],
            text.as_bytes(),
        ]
        .concat()
    }

    async fn exchange(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
        stream
            .write_i32(i32::try_from(request.len()).unwrap())
            .await
            .unwrap();
        stream.write_all(request).await.unwrap();
        let mut reply = vec![0; usize::try_from(stream.read_i32().await.unwrap()).unwrap()];
        stream.read_exact(&mut reply).await.unwrap();
        reply
    }
}
