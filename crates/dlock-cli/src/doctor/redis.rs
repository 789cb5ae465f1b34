//! What makes locks in a Redis unsafe.

use dlock::BackendUrl;
use redis::aio::MultiplexedConnection;

use crate::doctor::{Finding, Level, Patient};
use crate::redis_link;

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let mut connection = match redis_link::connect(patient.url).await {
        Ok(Some(connection)) => connection,
        Ok(None) => {
            return vec![Finding::new(
                Level::Note,
                "server",
                "settings are looked at on one plain server only: ask each node by its own redis:// URL",
            )];
        }
        Err(failure) => return vec![Finding::new(Level::Note, "server", failure.message)],
    };
    let info = Info::read(&mut connection).await;
    let mut findings = vec![version(&info), replicas(&info, patient.url)];
    findings.push(eviction(&mut connection, &info).await);
    findings.push(persistence(&mut connection, &info).await);
    findings
}

/// The answer of INFO.
struct Info(String);

impl Info {
    async fn read(connection: &mut MultiplexedConnection) -> Self {
        let answer = redis::cmd("INFO").query_async(connection).await;
        Self(answer.unwrap_or_default())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == key).then(|| value.trim())
        })
    }
}

/// One setting; `None` when the server does not tell (managed services forbid CONFIG).
async fn setting(connection: &mut MultiplexedConnection, key: &str) -> Option<String> {
    let answer: redis::RedisResult<Vec<String>> = redis::cmd("CONFIG")
        .arg("GET")
        .arg(key)
        .query_async(connection)
        .await;
    answer.ok()?.into_iter().nth(1)
}

fn version(info: &Info) -> Finding {
    let Some(version) = info.get("redis_version") else {
        return Finding::new(
            Level::Note,
            "version",
            "the server does not tell (INFO is forbidden)",
        );
    };
    let numbers: Vec<u32> = version
        .split('.')
        .filter_map(|part| part.parse().ok())
        .collect();
    if numbers.first().is_some_and(|major| *major < 6) {
        return Finding::new(
            Level::Unsafe,
            "version",
            format!("{version} is no longer maintained: use 6.2 or later"),
        );
    }
    Finding::new(Level::Good, "version", version)
}

fn replicas(info: &Info, url: &str) -> Finding {
    let waits = BackendUrl::parse(url)
        .and_then(|mut url| url.take::<u32>("replicas"))
        .ok()
        .flatten()
        .unwrap_or(0);
    match (info.get("role"), info.get("connected_slaves")) {
        (Some("slave"), _) => Finding::new(
            Level::Unsafe,
            "replicas",
            "this server is a replica: locks belong on the master",
        ),
        (_, None | Some("0")) => Finding::new(
            Level::Good,
            "replicas",
            "none, so no fail-over can lose a lock",
        ),
        (_, Some(n)) if waits == 0 => Finding::new(
            Level::Unsafe,
            "replicas",
            format!(
                "{n} replicas, and replies do not wait for them: a fail-over can lose a lock; add ?replicas=1"
            ),
        ),
        (_, Some(n)) => Finding::new(
            Level::Note,
            "replicas",
            format!("{n} replicas, and replies wait for {waits}: a fail-over seldom loses a lock"),
        ),
    }
}

async fn eviction(connection: &mut MultiplexedConnection, info: &Info) -> Finding {
    let asked = setting(connection, "maxmemory-policy").await;
    let policy = asked.as_deref().or(info.get("maxmemory_policy"));
    let limit = info.get("maxmemory").unwrap_or("0");
    match policy {
        None => Finding::new(
            Level::Note,
            "eviction",
            "the server does not tell (INFO is forbidden)",
        ),
        Some("noeviction") => Finding::new(Level::Good, "eviction", "noeviction"),
        Some(policy) if limit == "0" => Finding::new(
            Level::Note,
            "eviction",
            format!("{policy}, but without a limit on memory: set noeviction before there is one"),
        ),
        Some(policy) => Finding::new(
            Level::Unsafe,
            "eviction",
            format!(
                "{policy} throws locks away when memory is short: set maxmemory-policy noeviction"
            ),
        ),
    }
}

async fn persistence(connection: &mut MultiplexedConnection, info: &Info) -> Finding {
    let lost = "a lock can be held twice after a restart of the server: set appendonly yes, or let the resource check tokens";
    match info.get("aof_enabled") {
        None => Finding::new(
            Level::Note,
            "persistence",
            "the server does not tell (INFO is forbidden)",
        ),
        Some("1") => match setting(connection, "appendfsync").await.as_deref() {
            Some("always") => Finding::new(
                Level::Good,
                "persistence",
                "append-only file, synced always",
            ),
            _ => Finding::new(
                Level::Note,
                "persistence",
                "append-only file, synced every second: a crash of the machine can lose the last second's locks",
            ),
        },
        Some(_) => Finding::new(
            Level::Unsafe,
            "persistence",
            format!("no append-only file: {lost}"),
        ),
    }
}
