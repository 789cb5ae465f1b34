//! What the tests of the Redis backend share.
#![allow(dead_code, reason = "each test program uses a part of it")]

#[path = "../certificates/mod.rs"]
mod certificates;
pub(crate) mod harness;
pub(crate) mod rooms;
pub(crate) mod sale;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Guard, Locks, Settings};
use dlock_redis::{Config, RedisBackend};
use integration_tests::{FaultProxy, RedisServer, Reply};

/// Longer than anything takes on a loaded machine, and far shorter than the default lease.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The server's URL by way of a proxy.
pub(crate) fn through(server: &RedisServer, proxy: &FaultProxy) -> String {
    server
        .url()
        .replace(&server.addr().to_string(), &proxy.addr().to_string())
}

pub(crate) fn config(url: &str) -> Config {
    Config::from_url(url).expect("a good URL")
}

pub(crate) async fn backend(url: &str) -> Arc<RedisBackend> {
    Arc::new(config(url).connect().await.expect("a connection"))
}

/// A client of its own, as another process would have.
pub(crate) async fn client(url: &str) -> Locks {
    Locks::new(backend(url).await).expect("defaults")
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
    integration_tests::until("waiters in the queue", SOON, || async {
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

/// What a server says of the time to live of a key that is not there.
const GONE: i64 = -2;

/// Every key at the server, with those of fence counters, of the memory of abandoned attempts and of marks that end in a moment left
/// out.
pub(crate) async fn residue(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).await.expect("KEYS");
    let mut left = Vec::new();
    for key in keys.list().iter().filter_map(Reply::text) {
        if key.starts_with("dlock-abandoned:") {
            continue;
        }
        let kept = match server
            .command(&["TYPE", &key])
            .await
            .expect("TYPE")
            .text()
            .as_deref()
        {
            // A counter alone, or a counter beside the memory of an abandoned attempt.
            Some("string") => {
                let value = server
                    .command(&["GET", &key])
                    .await
                    .expect("GET")
                    .text()
                    .unwrap_or_default();
                let ttl = number(&server.command(&["PTTL", &key]).await.expect("PTTL"));
                // What has ended since it was listed is not left.
                ttl == GONE || value.trim_end_matches('+').len() == 16 && ttl > 0
            }
            Some("none") => true,
            // The mark of somebody who waited a moment ago ends by itself within two seconds.
            _ if key.ends_with(":m") => {
                let ttl = number(&server.command(&["PTTL", &key]).await.expect("PTTL"));
                ttl == GONE || (0..=2000).contains(&ttl)
            }
            _ => key.ends_with(":t"),
        };
        if !kept {
            left.push(key);
        }
    }
    left
}

pub(crate) fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Number(number) => *number,
        other => panic!("not a number: {other:?}"),
    }
}

/// How often the server was called by `command` since its statistics were reset.
pub(crate) async fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server
        .command(&["INFO", "commandstats"])
        .await
        .expect("INFO")
        .text()
        .unwrap_or_default();
    let start = format!("cmdstat_{command}:calls=");
    stats
        .lines()
        .find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

/// A user with no more than locks need: the line in the documentation of the crate, with its password, and what `fenced_set` needs.
pub(crate) fn acl() -> String {
    const README: &str = include_str!("../../../crates/dlock-redis/README.md");
    let (_, rest) = README
        .split_once("```text\nuser locker on >password ")
        .expect("the user");
    let (rules, _) = rest.split_once("```").expect("the end");
    let rules: Vec<&str> = rules.split_whitespace().collect();
    format!(
        "user default on nopass ~* &* +@all\nuser locker on >s3cret ~dlock-fence:* {}\n",
        rules.join(" ")
    )
}

/// A certificate authority and certificates of it, as files.
pub(crate) fn authority() -> &'static integration_tests::Folder {
    static FILES: std::sync::OnceLock<integration_tests::Folder> = std::sync::OnceLock::new();
    FILES.get_or_init(|| {
        let folder = integration_tests::Folder::new("certificates").expect("a folder");
        certificates::write(&folder);
        folder
    })
}
