//! What makes locks in a Redis unsafe: on each master, if there are several.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_redis::Config;
use dlock_redis::client::{Client, redis};
use dlocks::backend::BackendUrl;

use crate::doctor::{Finding, Level, Patient, numbers, sentinel};
use crate::show;

/// Clocks that are kept by a time server are closer.
const DRIFT: Duration = Duration::from_secs(1);

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let masters = match ask(patient.url).await {
        Ok(masters) => masters,
        Err(error) => return vec![Finding::new(Level::Note, "server", error.to_string())],
    };
    let (waits, cluster) = asked(patient.url);
    let mut findings = Vec::new();
    for look in [
        &version as &dyn Fn(&Master) -> Finding,
        &|master| replicas(master, waits, cluster),
        &eviction,
        &persistence,
        &clock,
    ] {
        findings.extend(once(masters.iter().map(|m| (&m.place, look(m))).collect()));
    }
    findings.extend(sentinel::check(patient.url).await);
    findings
}

/// How many replicas the URL waits for, and whether it names a cluster.
fn asked(url: &str) -> (u32, bool) {
    let Ok(mut url) = BackendUrl::parse(url) else {
        return (0, false);
    };
    let waits = url.take("replicas").ok().flatten().unwrap_or(0);
    (waits, url.scheme().ends_with("+cluster"))
}

/// What is the same on all masters is said once.
fn once(found: Vec<(&Option<String>, Finding)>) -> Vec<Finding> {
    let mut findings = found.into_iter();
    let Some((place, first)) = findings.next() else {
        return Vec::new();
    };
    let others: Vec<_> = findings.collect();
    if others.iter().all(|(_, other)| other.text == first.text) {
        return vec![first];
    }
    let at = |(place, finding): (&Option<String>, Finding)| match place {
        Some(place) => Finding {
            text: format!("{place}: {}", finding.text),
            ..finding
        },
        None => finding,
    };
    std::iter::once((place, first))
        .chain(others)
        .map(at)
        .collect()
}

/// What one server tells.
#[derive(Default)]
struct Master {
    /// Its address, if there are several.
    place: Option<String>,
    /// The answer of INFO; empty when it is forbidden.
    info: String,
    /// Empty when CONFIG is forbidden, as by managed services.
    settings: HashMap<String, String>,
    /// How far its clock is from ours, less the trip; `None` when TIME is forbidden.
    drift: Option<Duration>,
}

impl Master {
    fn get(&self, key: &str) -> Option<&str> {
        self.info.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == key).then(|| value.trim())
        })
    }

    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }
}

async fn ask(url: &str) -> dlocks::Result<Vec<Master>> {
    let client = Config::from_url(url)?.client().await?;
    let mut masters: Vec<Master> = match client.query_masters(&redis::cmd("INFO")).await {
        Ok(told) => told
            .into_iter()
            .map(|(place, info)| Master {
                place,
                info,
                ..Master::default()
            })
            .collect(),
        Err(_) => vec![Master::default()],
    };
    for key in ["maxmemory-policy", "appendfsync"] {
        for (place, value) in settings(&client, key).await {
            let master = masters.iter_mut().find(|master| master.place == place);
            if let Some(master) = master {
                master.settings.extend(value);
            }
        }
    }
    let before = now();
    let times: Vec<(Option<String>, (u64, u64))> = client
        .query_masters(&redis::cmd("TIME"))
        .await
        .unwrap_or_default();
    let after = now();
    for (place, (seconds, micros)) in times {
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        if let Some(master) = masters.iter_mut().find(|master| master.place == place) {
            master.drift = Some(before.saturating_sub(theirs) + theirs.saturating_sub(after));
        }
    }
    Ok(masters)
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A replica keeps a lease as the moment of its end on the master's clock: when it is promoted, its own clock decides.
fn clock(master: &Master) -> Finding {
    let (level, text) = match master.drift {
        None => (
            Level::Note,
            "the server does not tell (TIME is forbidden)".to_owned(),
        ),
        Some(drift) if drift > DRIFT => (
            Level::Note,
            format!(
                "{} away from ours; keep the clocks of master and replicas in step: after a fail-over leases end by the new master's",
                show::short(drift)
            ),
        ),
        Some(_) => (Level::Good, "in step with ours".to_owned()),
    };
    Finding::new(level, "clock", text)
}

async fn settings(client: &Client, key: &str) -> Vec<(Option<String>, HashMap<String, String>)> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(key);
    client.query_masters(&get).await.unwrap_or_default()
}

fn version(master: &Master) -> Finding {
    let Some(version) = master.get("redis_version") else {
        return Finding::new(
            Level::Note,
            "version",
            "the server does not tell (INFO is forbidden)",
        );
    };
    if numbers(version).first().is_some_and(|major| *major < 6) {
        return Finding::new(
            Level::Unsafe,
            "version",
            format!("{version} is no longer maintained: use 6.2 or later"),
        );
    }
    Finding::new(Level::Good, "version", version)
}

fn replicas(master: &Master, waits: u32, cluster: bool) -> Finding {
    match (master.get("role"), master.get("connected_slaves")) {
        (Some("slave"), _) => Finding::new(
            Level::Unsafe,
            "replicas",
            "this server is a replica: locks belong on the master",
        ),
        (None, _) => Finding::new(
            Level::Note,
            "replicas",
            "the server does not tell (INFO is forbidden)",
        ),
        (_, None) => Finding::new(Level::Note, "replicas", "the server does not tell"),
        (_, Some("0")) => Finding::new(
            Level::Good,
            "replicas",
            "none, so no fail-over can lose a lock",
        ),
        (_, Some(n)) if cluster => Finding::new(
            Level::Unsafe,
            "replicas",
            format!(
                "{n} replicas, and nobody waits for them in a cluster: a fail-over can lose a lock; let the resource check tokens"
            ),
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

fn eviction(master: &Master) -> Finding {
    let asked = master.setting("maxmemory-policy");
    let policy = asked.or(master.get("maxmemory_policy"));
    let limit = master.get("maxmemory").unwrap_or("0");
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

fn persistence(master: &Master) -> Finding {
    let lost = "a lock can be held twice after a restart of the server: set appendonly yes, or let the resource check tokens";
    match master.get("aof_enabled") {
        None => Finding::new(
            Level::Note,
            "persistence",
            "the server does not tell (INFO is forbidden)",
        ),
        Some("1") => match master.setting("appendfsync") {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn master(place: &str, info: &str) -> Master {
        Master {
            place: Some(place.to_owned()),
            info: info.to_owned(),
            ..Master::default()
        }
    }

    #[test]
    fn masters_that_differ_are_told_apart() {
        let masters = [
            master("a:1", "aof_enabled:1"),
            master("b:2", "aof_enabled:0"),
        ];
        let all =
            |masters: &[Master]| once(masters.iter().map(|m| (&m.place, persistence(m))).collect());
        let told = all(&masters);
        assert_eq!(told.len(), 2);
        assert!(
            told[0].text.starts_with("a:1: append-only"),
            "{}",
            told[0].text
        );
        assert_eq!((told[0].level, told[1].level), (Level::Note, Level::Unsafe));
        assert_eq!(all(&masters[..1]).len(), 1);
        let same = [
            master("a:1", "aof_enabled:0"),
            master("b:2", "aof_enabled:0"),
        ];
        assert_eq!(all(&same).len(), 1);
    }

    #[test]
    fn replicas_that_nobody_waits_for_are_unsafe() {
        let one = master("a:1", "role:master\r\nconnected_slaves:1\r\n");
        assert!(replicas(&one, 0, false).text.contains("?replicas=1"));
        assert_eq!(replicas(&one, 1, false).level, Level::Note);
        let cluster = replicas(&one, 0, true);
        assert_eq!(cluster.level, Level::Unsafe);
        assert!(
            !cluster.text.contains("?replicas"),
            "a cluster takes no such parameter"
        );
        assert_eq!(replicas(&master("a:1", ""), 0, false).level, Level::Note);
    }
}
