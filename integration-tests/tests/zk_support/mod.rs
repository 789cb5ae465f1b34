//! What the tests of the ZooKeeper backend share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Guard, Locks, Settings};
use dlock_zk::{Config, ZkBackend};
use integration_tests::{ZooKeeper, ZooKeeperServer, until, zookeeper};
use zookeeper_client::{Acls, Client, CreateMode};

/// Longer than anything takes on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A server that removes empty containers after a second, and not after a minute.
pub(crate) fn with_quick_clean_up() -> ZooKeeper {
    let mut settings = ZooKeeper::default();
    let flags = "-Dznode.container.checkIntervalMs=1000 -Dznode.container.maxPerMinute=60000";
    settings
        .env
        .push(("JAVA_TOOL_OPTIONS".to_owned(), flags.to_owned()));
    settings
}

pub(crate) async fn backend(url: &str) -> Arc<ZkBackend> {
    let config = Config::from_url(url).expect("a good URL");
    Arc::new(config.connect().await.expect("a connection"))
}

/// A client of its own, as another process would have.
pub(crate) async fn client(url: &str) -> Locks {
    Locks::builder(backend(url).await)
        .build()
        .expect("defaults")
}

pub(crate) async fn client_with(url: &str, settings: Settings) -> Locks {
    Locks::builder(backend(url).await)
        .settings(settings)
        .build()
        .expect("good settings")
}

/// Takes a lock that is expected to come soon.
pub(crate) async fn lock(locks: &Locks, name: &str) -> Guard {
    let mutex = locks.mutex(name).expect("a good name");
    let guard = mutex.lock_within(SOON).await.expect("the store answers");
    guard.unwrap_or_else(|| panic!("{name:?} was still held after {SOON:?}"))
}

/// Resolves when `count` attempts stand in the queue of a lock.
pub(crate) async fn waiting(locks: &Locks, name: &str, count: usize) {
    until("waiters in the queue", SOON, || async {
        let info = locks.inspect(name).await.expect("inspect");
        if info.waiters.len() == count {
            return Ok(());
        }
        Err(integration_tests::Error::answer(
            "waiters",
            info.waiters.len().to_string(),
        ))
    })
    .await
    .expect("the waiters come");
}

/// A server of its own.
pub(crate) async fn server() -> ZooKeeperServer {
    ZooKeeperServer::start_with(with_quick_clean_up())
        .await
        .expect("zookeeper")
}

/// Resolves when a client has renewed its holds once more.
pub(crate) async fn renewed(locks: &Locks) {
    let before = locks.stats().renewals;
    until("a renewal", SOON, || async {
        let now = locks.stats().renewals;
        if now > before {
            return Ok(());
        }
        Err(integration_tests::Error::answer(
            "renewals",
            now.to_string(),
        ))
    })
    .await
    .expect("the session lives");
}

/// Resolves when a lock's node has this many children.
pub(crate) async fn queue_of(admin: &Admin, parent: &str, count: usize) -> Vec<String> {
    until("places in the queue", SOON, || async {
        let queue = admin.queue(parent).await;
        if queue.len() == count {
            return Ok(queue);
        }
        Err(integration_tests::Error::answer(
            "queue",
            format!("{queue:?}"),
        ))
    })
    .await
    .expect("the queue")
}

/// Resolves when a server has this many watches.
pub(crate) async fn watched(server: &ZooKeeperServer, expected: u64) {
    until("watches", SOON, || async {
        match count(server, "zk_watch_count").await {
            n if n == expected => Ok(()),
            n => Err(integration_tests::Error::answer(
                "watches",
                format!("{n} of {expected}"),
            )),
        }
    })
    .await
    .expect("the waiters watch");
}

/// The server that all tests of a program share.
pub(crate) async fn shared() -> String {
    zookeeper().await.expect("zookeeper").url().to_owned()
}

/// One number of a server's `mntr`.
pub(crate) async fn count(server: &ZooKeeperServer, word: &str) -> u64 {
    let answer = server.four_letter_word("mntr").await.expect("mntr");
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix(word)?.trim().parse::<f64>().ok());
    line.unwrap_or_else(|| panic!("no {word} in {answer}")) as u64
}

/// A raw client, as an administrator or another program would have.
pub(crate) struct Admin(pub(crate) Client);

impl Admin {
    /// `url` is that of a backend; its parameters and user are ignored.
    pub(crate) async fn connect(url: &str) -> Self {
        let servers = url
            .trim_start_matches("zk://")
            .split('?')
            .next()
            .expect("hosts");
        let servers = servers.rsplit('@').next().expect("hosts");
        let connector = Client::connector().with_session_timeout(Duration::from_secs(20));
        Self(connector.connect(servers).await.expect("a connection"))
    }

    /// The children of a lock's node, in order of their numbers.
    pub(crate) async fn queue(&self, parent: &str) -> Vec<String> {
        self.0.sync("/").await.expect("sync");
        let mut children = self.0.list_children(parent).await.unwrap_or_default();
        children.sort_by_key(|node| node.rsplit('-').next().map(str::to_owned));
        children
    }

    /// Deletes the first node of a lock.
    pub(crate) async fn delete_holder(&self, parent: &str) {
        let queue = self.queue(parent).await;
        let first = queue.first().expect("somebody holds");
        self.0
            .delete(&format!("{parent}/{first}"), None)
            .await
            .expect("delete");
    }

    pub(crate) async fn create(&self, path: &str, data: &str) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        self.0
            .create(path, data.as_bytes(), &options)
            .await
            .expect("create");
    }

    pub(crate) async fn read(&self, path: &str) -> String {
        self.0.sync("/").await.expect("sync");
        let (data, _) = self.0.get_data(path).await.expect("data");
        String::from_utf8(data).expect("text")
    }
}
