//! Curator's `InterProcessMutex`, and its read-write lock, and our locks on one path exclude each other. Needs Debian's `libcurator-recipes-java` and a JDK.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::path::Path;
use std::process::Stdio;

use dlock_core::Released;
use integration_tests::{Folder, ZooKeeperServer};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use zk_support::*;

const CLASS_PATH: &[&str] = &[
    "/usr/share/java/curator-recipes.jar",
    "/usr/share/java/curator-framework.jar",
    "/usr/share/java/curator-client.jar",
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/guava.jar",
    "/usr/share/java/slf4j-simple.jar",
];

/// A Java process with Curator in it.
struct Curator {
    _child: Child,
    _classes: Folder,
    commands: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
}

impl Curator {
    /// `recipe` is "mutex", "reader" or "writer".
    async fn start(server: &ZooKeeperServer, path: &str, recipe: &str) -> Self {
        for jar in CLASS_PATH {
            let there = Path::new(jar).exists();
            assert!(there, "{jar} is missing: install libcurator-recipes-java");
        }
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zk_support/CuratorHolder.java");
        let classes = Folder::new("curator").expect("a folder");
        let output = classes.path().to_owned();
        let class_path = CLASS_PATH.join(":");
        let compiled = Command::new("javac")
            .args(["-cp", &class_path, "-d"])
            .arg(&output)
            .arg(source)
            .status()
            .await
            .expect("javac is missing: install default-jdk-headless");
        assert!(compiled.success(), "javac");
        let mut child = Command::new("java")
            .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp"])
            .arg(format!("{class_path}:{}", output.display()))
            .args(["CuratorHolder", &server.addr().to_string(), path, recipe])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("java is missing: install default-jre-headless");
        let commands = child.stdin.take().expect("piped");
        let events = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut curator = Self {
            _child: child,
            _classes: classes,
            commands,
            events,
        };
        curator.says("ready").await;
        curator
    }

    async fn tell(&mut self, command: &str) {
        let line = format!("{command}\n");
        self.commands
            .write_all(line.as_bytes())
            .await
            .expect("it listens");
    }

    async fn says(&mut self, expected: &str) {
        let line = timeout(SOON, self.events.next_line())
            .await
            .expect("it says something");
        assert_eq!(line.expect("a line").as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn curators_mutex_and_ours_exclude_each_other_and_take_turns() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let locks = client(&server.url()).await;
    let mut curator = Curator::start(&server, "/dlock/a", "mutex").await;
    let mutex = locks.mutex("a").expect("a name");
    let lock_rw = locks.rw_lock("a").expect("a name");
    let semaphore = locks.semaphore("a", 5).expect("a name");
    for _ in 0..3 {
        // Curator holds: nobody of ours gets in, in any mode; a waiter gets it afterwards.
        curator.tell("lock").await;
        curator.says("asking").await;
        curator.says("held").await;
        assert!(mutex.try_lock().await.expect("try").is_none());
        assert!(lock_rw.try_read().await.expect("try").is_none());
        assert!(semaphore.try_acquire().await.expect("try").is_none());
        assert_eq!(locks.inspect("a").await.expect("inspect").holders.len(), 1);
        let waits = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        waiting(&locks, "a", 1).await;
        curator.tell("unlock").await;
        curator.says("released").await;
        let guard = timeout(SOON, waits)
            .await
            .expect("soon")
            .expect("no panic")
            .expect("the lock");

        // We hold, in each mode: Curator waits.
        curator.tell("lock").await;
        curator.says("asking").await;
        waiting(&locks, "a", 1).await;
        assert!(guard.is_held());
        assert_eq!(guard.release().await.expect("release"), Released::Freed);
        curator.says("held").await;
        curator.tell("unlock").await;
        curator.says("released").await;
        for mode in ["reader", "permit"] {
            let guard = match mode {
                "reader" => lock_rw.read().await.expect("a reader"),
                _ => semaphore.acquire().await.expect("a permit"),
            };
            curator.tell("lock").await;
            curator.says("asking").await;
            waiting(&locks, "a", 1).await;
            assert_eq!(
                guard.release().await.expect("release"),
                Released::Freed,
                "{mode}"
            );
            curator.says("held").await;
            curator.tell("unlock").await;
            curator.says("released").await;
        }
    }
}

#[tokio::test]
async fn curators_read_write_lock_and_ours_share_and_exclude_each_other() {
    let server = ZooKeeperServer::start().await.expect("zookeeper");
    let locks = client(&(server.url() + "?style=read-write")).await;
    let mut reader = Curator::start(&server, "/dlock/a", "reader").await;
    let mut writer = Curator::start(&server, "/dlock/a", "writer").await;
    let ours = locks.rw_lock("a").expect("a name");

    // Readers of both share; whoever writes waits for all of them.
    let reads = ours.read().await.expect("a reader");
    reader.tell("lock").await;
    reader.says("asking").await;
    reader.says("held").await;
    assert!(ours.try_write().await.expect("try").is_none());
    writer.tell("lock").await;
    writer.says("asking").await;
    waiting(&locks, "a", 1).await;
    // Whoever comes to read later waits behind it.
    let late = tokio::spawn({
        let ours = ours.clone();
        async move { ours.read().await }
    });
    waiting(&locks, "a", 2).await;
    assert_eq!(reads.release().await.expect("release"), Released::Freed);
    assert!(!late.is_finished(), "a reader beside a writer that waits");
    reader.tell("unlock").await;
    reader.says("released").await;
    writer.says("held").await;
    assert!(ours.try_read().await.expect("try").is_none());
    assert!(ours.try_write().await.expect("try").is_none());
    assert!(!late.is_finished(), "a reader beside a writer");
    writer.tell("unlock").await;
    writer.says("released").await;
    let late = timeout(SOON, late).await.expect("soon").expect("no panic");
    let late = late.expect("the lock");
    assert_eq!(late.release().await.expect("release"), Released::Freed);

    // We write: both of theirs wait, and come in the order in which they asked.
    let writes = ours.write().await.expect("a writer");
    reader.tell("lock").await;
    reader.says("asking").await;
    waiting(&locks, "a", 1).await;
    writer.tell("lock").await;
    writer.says("asking").await;
    waiting(&locks, "a", 2).await;
    assert!(writes.is_held());
    assert_eq!(writes.release().await.expect("release"), Released::Freed);
    reader.says("held").await;
    reader.tell("unlock").await;
    reader.says("released").await;
    writer.says("held").await;
    writer.tell("unlock").await;
    writer.says("released").await;
}
