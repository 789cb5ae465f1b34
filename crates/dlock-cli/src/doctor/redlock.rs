//! What makes locks at a quorum of Redis servers unsafe: every node is asked.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_redis::client::redis;
use dlocks::backend::BackendUrl;
use dlocks::redlock::Config;

use crate::doctor::{Finding, Level, Patient, numbers};
use crate::show;

/// Clocks that differ by more than this are not kept by anybody.
const APART: f64 = 1.0;

pub(crate) async fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let asked = match Asked::read(patient.url) {
        Ok(asked) => asked,
        Err(error) => return vec![Finding::new(Level::Note, "nodes", error.to_string())],
    };
    let mut nodes = Vec::new();
    for (place, config) in &asked.nodes {
        nodes.push(Node::ask(place, config).await);
    }
    let mut findings = vec![reachable(&nodes), independent(&nodes), clocks(&nodes)];
    findings.extend(per_node(&nodes, "version", version));
    findings.extend(per_node(&nodes, "replicas", role));
    findings.extend(per_node(&nodes, "eviction", eviction));
    findings.extend(per_node(&nodes, "restarts", |node| restart(node, &asked)));
    findings
}

/// What the URL says.
struct Asked {
    nodes: Vec<(String, dlock_redis::Config)>,
    persistent: bool,
    longest_lease: Duration,
}

impl Asked {
    fn read(url: &str) -> dlocks::Result<Self> {
        let config = Config::from_url(url)?;
        let mut url = BackendUrl::parse(url)?;
        let places: Vec<String> = url.hosts().iter().map(ToString::to_string).collect();
        Ok(Self {
            persistent: url.take("persistent")?.unwrap_or(false),
            longest_lease: url
                .take_duration("longest_lease")?
                .unwrap_or(Duration::from_secs(30)),
            nodes: places
                .into_iter()
                .zip(config.nodes().iter().cloned())
                .collect(),
        })
    }
}

/// What one node tells.
#[derive(Default)]
struct Node {
    place: String,
    /// Why it could not be asked.
    trouble: Option<String>,
    /// The answer of INFO; empty when it is forbidden.
    info: String,
    /// Empty when CONFIG is forbidden, as by managed services.
    settings: HashMap<String, String>,
    /// How far its clock is ahead of ours, in seconds, and how certain that is.
    ahead: Option<(f64, f64)>,
}

impl Node {
    async fn ask(place: &str, config: &dlock_redis::Config) -> Self {
        let mut node = Self {
            place: place.to_owned(),
            ..Self::default()
        };
        let client = match config.client().await {
            Ok(client) => client,
            Err(error) => {
                node.trouble = Some(error.message().to_owned());
                return node;
            }
        };
        node.info = client.query(&redis::cmd("INFO")).await.unwrap_or_default();
        for key in ["maxmemory-policy", "appendfsync"] {
            let mut get = redis::cmd("CONFIG");
            get.arg("GET").arg(key);
            let value: HashMap<String, String> = client.query(&get).await.unwrap_or_default();
            node.settings.extend(value);
        }
        let before = now();
        let time: dlocks::Result<(f64, f64)> = client.query(&redis::cmd("TIME")).await;
        let after = now();
        node.ahead = time.ok().map(|(seconds, micros)| {
            let shown = seconds + micros / 1e6;
            (shown - (before + after) / 2.0, (after - before) / 2.0)
        });
        node
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.info.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == key).then(|| value.trim())
        })
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// What is the same at all nodes is said once.
fn per_node(
    nodes: &[Node],
    check: &'static str,
    look: impl Fn(&Node) -> (Level, String),
) -> Vec<Finding> {
    let answering: Vec<&Node> = nodes.iter().filter(|node| node.trouble.is_none()).collect();
    let said: Vec<(Level, String)> = answering.iter().map(|node| look(node)).collect();
    match said.first() {
        None => Vec::new(),
        Some((level, text)) if said.iter().all(|(_, other)| other == text) => {
            vec![Finding::new(*level, check, text.clone())]
        }
        Some(_) => answering
            .iter()
            .zip(said)
            .map(|(node, (level, text))| {
                Finding::new(level, check, format!("{}: {text}", node.place))
            })
            .collect(),
    }
}

/// How many more may go.
fn reachable(nodes: &[Node]) -> Finding {
    let (all, quorum) = (nodes.len(), nodes.len() / 2 + 1);
    let down: Vec<String> = nodes
        .iter()
        .filter_map(|node| Some(format!("{}: {}", node.place, node.trouble.as_ref()?)))
        .collect();
    let up = all - down.len();
    if up < quorum {
        let text = format!(
            "{up} of {all} answer, and {quorum} are needed ({})",
            down.join("; ")
        );
        return Finding::new(Level::Unsafe, "nodes", text);
    }
    let spare = up - quorum;
    if down.is_empty() && all % 2 == 1 && spare > 0 {
        let text = format!("all {all} answer: {spare} may go");
        return Finding::new(Level::Good, "nodes", text);
    }
    let mut text = format!("{up} of {all} answer, and {quorum} are needed: {spare} may go");
    if spare == 0 {
        text.push_str(". A hold at a bare quorum is lost with one more node, and one clock that jumps makes a second holder");
    }
    if all % 2 == 0 {
        text.push_str(". An even number survives no more than one less");
    }
    if !down.is_empty() {
        text = format!("{text} ({})", down.join("; "));
    }
    Finding::new(Level::Note, "nodes", text)
}

/// One server under two names, or nodes that do not tell.
fn independent(nodes: &[Node]) -> Finding {
    let told: Vec<(&str, &str)> = nodes
        .iter()
        .filter_map(|node| Some((node.place.as_str(), node.get("run_id")?)))
        .collect();
    let twins = told.iter().enumerate().find_map(|(index, (place, id))| {
        let twin = told.iter().take(index).find(|(_, other)| other == id)?;
        Some((twin.0, *place))
    });
    match twins {
        Some((one, other)) => Finding::new(
            Level::Unsafe,
            "independence",
            format!("{one} and {other} are one server: a quorum needs independent ones"),
        ),
        None if told.len() < nodes.len() => Finding::new(
            Level::Note,
            "independence",
            format!(
                "{} of {} tell who they are: whether the others are servers of their own is not known",
                told.len(),
                nodes.len()
            ),
        ),
        // Who shares a machine, a disk or a power supply is not known to Redis.
        None => Finding::new(
            Level::Good,
            "independence",
            "each is a server of its own; that they fail independently is for you to know",
        ),
    }
}

fn clocks(nodes: &[Node]) -> Finding {
    let known: Vec<(&str, f64, f64)> = nodes
        .iter()
        .filter_map(|node| node.ahead.map(|(by, give)| (node.place.as_str(), by, give)))
        .collect();
    if known.is_empty() {
        return Finding::new(Level::Note, "clocks", "no node tells its time");
    }
    let wrong: Vec<String> = known
        .iter()
        .filter(|(_, by, give)| by.abs() > APART + give)
        .map(|(place, by, _)| {
            let word = if *by > 0.0 { "ahead" } else { "behind" };
            let by = show::short(Duration::from_secs_f64(by.abs().round()));
            format!("{place} is {by} {word}")
        })
        .collect();
    if wrong.is_empty() {
        return Finding::new(
            Level::Good,
            "clocks",
            "within a second of ours now; a clock that jumps can end a lease early, so let it be slewed, not stepped",
        );
    }
    Finding::new(
        Level::Note,
        "clocks",
        format!(
            "{}: as it is that does no harm, but when it is set right at once, leases end early or late there; let it be slewed, not stepped",
            wrong.join(", ")
        ),
    )
}

fn version(node: &Node) -> (Level, String) {
    match node.get("redis_version") {
        None => (
            Level::Note,
            "the server does not tell (INFO is forbidden)".to_owned(),
        ),
        Some(version) if numbers(version).first().is_some_and(|major| *major < 6) => (
            Level::Unsafe,
            format!("{version} is no longer maintained: use 6.2 or later"),
        ),
        Some(version) => (Level::Good, version.to_owned()),
    }
}

fn role(node: &Node) -> (Level, String) {
    match (node.get("role"), node.get("connected_slaves")) {
        (None, _) => (
            Level::Note,
            "the server does not tell (INFO is forbidden)".to_owned(),
        ),
        (Some("slave"), _) => (
            Level::Unsafe,
            "this node is a replica: a node of a quorum stands for itself".to_owned(),
        ),
        (_, None | Some("0")) => (Level::Good, "none, as it should be".to_owned()),
        (_, Some(n)) => (
            Level::Unsafe,
            format!(
                "{n} replicas: if one takes over, it may have missed the last holds, and nobody notices; a quorum needs none"
            ),
        ),
    }
}

fn eviction(node: &Node) -> (Level, String) {
    let asked = node.settings.get("maxmemory-policy").map(String::as_str);
    let limit = node.get("maxmemory");
    match asked.or(node.get("maxmemory_policy")) {
        None => (
            Level::Note,
            "the server does not tell (INFO is forbidden)".to_owned(),
        ),
        Some("noeviction") => (Level::Good, "noeviction".to_owned()),
        Some(policy) if limit == Some("0") => (
            Level::Note,
            format!("{policy}, but without a limit on memory: set noeviction before there is one"),
        ),
        Some(policy) => (
            Level::Unsafe,
            format!(
                "{policy} throws holds away when memory is short: set maxmemory-policy noeviction"
            ),
        ),
    }
}

/// What becomes of the holds of a node that restarts.
fn restart(node: &Node, asked: &Asked) -> (Level, String) {
    let append_only = node.get("aof_enabled");
    let fsync = node.settings.get("appendfsync").map(String::as_str);
    if !asked.persistent {
        let wait = show::short(asked.longest_lease);
        return (
            Level::Good,
            format!("a node that restarts does not count for {wait} (longest_lease)"),
        );
    }
    match (append_only, fsync) {
        (Some("1"), Some("always")) => (
            Level::Good,
            "append-only file, synced always: a restart forgets nothing".to_owned(),
        ),
        (None, _) | (Some("1"), None) => (
            Level::Note,
            "persistent=true says that a restart forgets nothing, and the server does not tell"
                .to_owned(),
        ),
        _ => (
            Level::Unsafe,
            "persistent=true says that a restart forgets nothing, and that is not so: set appendonly yes and appendfsync always, or \
             leave persistent out"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(place: &str, info: &str) -> Node {
        Node {
            place: place.to_owned(),
            info: info.to_owned(),
            ahead: Some((0.0, 0.0)),
            ..Node::default()
        }
    }

    fn down(place: &str) -> Node {
        Node {
            trouble: Some("nobody listens there".to_owned()),
            ..node(place, "")
        }
    }

    #[test]
    fn nodes_that_are_missed_are_named() {
        let up = |n: usize| -> Vec<Node> { (0..n).map(|i| node(&format!("n{i}"), "")).collect() };
        assert_eq!(reachable(&up(5)).level, Level::Good);
        assert_eq!(reachable(&up(4)).level, Level::Note);
        let mut three = up(2);
        three.push(down("n2"));
        let found = reachable(&three);
        assert_eq!(found.level, Level::Note);
        assert!(
            found.text.contains("0 may go") && found.text.contains("n2: nobody"),
            "{}",
            found.text
        );
        three.push(down("n3"));
        assert_eq!(reachable(&three).level, Level::Unsafe);
    }

    #[test]
    fn one_server_under_two_names_is_found() {
        let same = [
            node("a", "run_id:x"),
            node("b", "run_id:y"),
            node("c", "run_id:x"),
        ];
        let found = independent(&same);
        assert_eq!(found.level, Level::Unsafe);
        assert!(found.text.contains("a and c"), "{}", found.text);
        assert_eq!(independent(&same[..2]).level, Level::Good);
        assert_eq!(independent(&[down("a")]).level, Level::Note);
    }

    #[test]
    fn a_clock_that_is_wrong_is_named() {
        let mut nodes = [node("a", ""), node("b", "")];
        assert_eq!(clocks(&nodes).level, Level::Good);
        nodes[1].ahead = Some((-7200.0, 0.1));
        let found = clocks(&nodes);
        assert_eq!(found.level, Level::Note);
        assert!(found.text.contains("b is 2h behind"), "{}", found.text);
    }

    #[test]
    fn what_the_url_says_of_restarts_is_held_against_the_node() {
        let asked = |persistent| Asked {
            nodes: Vec::new(),
            persistent,
            longest_lease: Duration::from_secs(30),
        };
        let mut node = node("a", "aof_enabled:1");
        assert_eq!(restart(&node, &asked(false)).0, Level::Good);
        assert_eq!(restart(&node, &asked(true)).0, Level::Note);
        for (fsync, level) in [("everysec", Level::Unsafe), ("always", Level::Good)] {
            node.settings
                .insert("appendfsync".to_owned(), fsync.to_owned());
            assert_eq!(restart(&node, &asked(true)).0, level);
        }
    }
}
