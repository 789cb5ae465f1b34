use std::fmt;
use std::time::Duration;

use dlock_core::backend::BackendUrl;
use dlock_core::kit::{Login, Tls, UrlForm, UrlKey, UrlScheme, within};
use dlock_core::{Error, Result};
use dlock_redis::node::Node;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::RedlockBackend;
use crate::vote::quorum_of;

/// Keys of the URL that are passed on to every node, as dlock-redis knows them.
#[rustfmt::skip]
const PASSED_ON: &[UrlKey] = &[
    UrlKey::connect_timeout("2s"),
    UrlKey::answer_timeout("2s"),
    UrlKey::new("fence_ttl", "a duration from 1s to a year", "10m", "how long the fence counter of a lock that nobody uses is kept"),
    UrlKey::new("keepalive", "a duration from 1s to 9h", "not at all", "after how long without traffic the system asks whether the other side still lives"),
    UrlKey::new("user_timeout", "a duration from 100ms to 1h", "the system's", "after how long the system gives up a connection whose other side confirms nothing (Linux)"),
];
#[rustfmt::skip]
const OWN_KEYS: &[UrlKey] = &[
    UrlKey::new("prefix", "text", "`redlock`", "what the names of all keys begin with, at every node"),
    UrlKey::new("node_timeout", "a duration from 1ms to 10s", "200ms", "how long a node's answer is waited for, before the others decide without it"),
    UrlKey::new("longest_lease", "a duration from 20ms to a week", "30s", "the longest lease that any client uses: a node that restarted counts again after it"),
    UrlKey::new("persistent", "`true`, `false`", "`false`", "every node keeps every write, so that one that restarts counts at once"),
    UrlKey::new("retry", "a duration from 1ms to 1m", "150ms", "how long a waiter leaves a node alone that could not be asked"),
    UrlKey::new("few_nodes", "`true`, `false`", "`false`", "allows fewer than three nodes"),
];
const MOST_NODES: usize = 32;

/// Which nodes make the quorum, and how they are asked.
///
/// ```
/// use std::time::Duration;
/// use dlock_redlock::Config;
///
/// let config = Config::from_urls(["redis://app:s3cret@a", "redis://app:s3cret@b:7000/2", "redis+unix:///run/c.sock"])?
///     .node_timeout(Duration::from_millis(50))
///     .longest_lease(Duration::from_secs(60));
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    nodes: Vec<dlock_redis::Config>,
    prefix: String,
    pub(crate) node_timeout: Duration,
    pub(crate) longest_lease: Duration,
    pub(crate) persistent: bool,
    pub(crate) retry: Duration,
    few_nodes: bool,
}

impl Config {
    /// These nodes, each with its own address, user, password, TLS and time-outs. Prefix and style are the quorum's, whatever the
    /// nodes' configurations say.
    pub fn new(nodes: impl IntoIterator<Item = dlock_redis::Config>) -> Self {
        Self {
            nodes: nodes.into_iter().collect(),
            prefix: "redlock".to_owned(),
            node_timeout: Duration::from_millis(200),
            longest_lease: Duration::from_secs(30),
            persistent: false,
            retry: Duration::from_millis(150),
            few_nodes: false,
        }
    }

    /// A URL for each node: `redis://`, `rediss://` (feature `tls`) or `redis+unix://`, as [`dlock_redis::Config::from_url`]
    /// reads them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid) for a bad URL, or one that sets what belongs to the quorum.
    pub fn from_urls<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self> {
        let mut nodes = Vec::new();
        for url in urls {
            let mut parsed =
                BackendUrl::parse(url.as_ref()).map_err(|error| Self::URL.with_context(error))?;
            for key in ["prefix", "style"] {
                if parsed
                    .take::<String>(key)
                    .map_err(|error| Self::URL.with_context(error))?
                    .is_some()
                {
                    return Err(Self::URL.with_context(Error::invalid(format!(
                        "the URL of the node {parsed} sets {key:?}, which is the same for the whole quorum: leave it out there"
                    ))));
                }
            }
            nodes.push(dlock_redis::Config::from_url(url.as_ref())?);
        }
        Ok(Self::new(nodes))
    }

    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "redlock",
        schemes: &[
            UrlScheme::new(
                "redlock",
                "redlock://user:password@h1:p1,h2:p2,h3:p3/db",
                "independent masters, with the same login and database at each",
            ),
            UrlScheme::new(
                "redlocks",
                "redlocks://user:password@h1:p1,h2:p2,h3:p3/db",
                "the same with TLS",
            ),
        ],
        keys: &[OWN_KEYS, PASSED_ON, Login::KEYS, Tls::KEYS],
    };

    /// Reads `redlock://user:password@h1:p1,h2:p2,h3:p3/db?key=value`, where user, password and database are the same at every node;
    /// `redlocks://` uses TLS (feature `tls`). For nodes that differ use [`from_urls`](Config::from_urls). Each key is the setting of that name, here or, for
    /// every node, in [`dlock_redis::Config`]; `docs/urls.md` lists them all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, Self::parse)
    }

    fn parse(url: &mut BackendUrl) -> Result<Self> {
        let scheme = match url.scheme() {
            "redlocks" => "rediss",
            _ => "redis",
        };
        let hosts = url.some_hosts("redlock://host1:port,host2:port,host3:port")?;
        let mut config = Self::new([]);
        url.set([("prefix", &mut config.prefix)])?;
        url.set_durations([
            ("node_timeout", &mut config.node_timeout),
            ("longest_lease", &mut config.longest_lease),
            ("retry", &mut config.retry),
        ])?;
        url.set([
            ("persistent", &mut config.persistent),
            ("few_nodes", &mut config.few_nodes),
        ])?;
        let mut passed_on = Vec::new();
        for key in [PASSED_ON, Login::KEYS, Tls::KEYS].into_iter().flatten() {
            if let Some(value) = url.take::<String>(key.name)? {
                passed_on.push(format!("{}={}", key.name, encoded(&value)));
            }
        }
        let login = match (url.user(), url.password()) {
            (None, None) => String::new(),
            (Some(user), None) => format!("{}@", encoded(user)),
            (user, password) => format!(
                "{}:{}@",
                encoded(user.unwrap_or_default()),
                encoded(password.unwrap_or_default())
            ),
        };
        let (path, passed_on) = (url.path(), passed_on.join("&"));
        for host in hosts {
            let node = format!("{scheme}://{login}{host}{path}?{passed_on}");
            config.nodes.push(dlock_redis::Config::from_url(&node)?);
        }
        config.check()?;
        Ok(config)
    }

    /// What the names of all keys begin with, at every node. Default: `redlock`.
    ///
    /// Clients share locks only when they have the same nodes and prefix. No braces, spaces or control characters.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a node's answer is waited for, before the others decide without it. Default: 200 ms. From 1 ms to 10 s, and never
    /// more than half of a lease.
    ///
    /// It costs nothing while a quorum answers sooner. A node that answers later is not forgotten: what it granted is kept or freed
    /// in the background. Shorter finds out sooner that there is no quorum; longer bears slower nodes.
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = limit;
        self
    }

    /// The longest lease that any client of these nodes uses. Default: 30 s. From 20 ms to 7 days.
    ///
    /// A node that has been running for a shorter time is not counted: it may have lost its data, and with it who holds. So a
    /// quorum that was started just now gives no locks for this long. A longer lease is refused by this client.
    pub fn longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = lease;
        self
    }

    /// Every node keeps every write (`appendonly yes` and `appendfsync always`), so that one that restarts counts at once. Default: no.
    ///
    /// Said wrongly, a restart can give the lock to two holders.
    pub fn persistent(mut self, yes: bool) -> Self {
        self.persistent = yes;
        self
    }

    /// How long a waiter leaves a node alone that could not be asked, before it asks again for a place in its queue. Default: 150 ms. From 1 ms
    /// to 1 min.
    pub fn retry(mut self, pause: Duration) -> Self {
        self.retry = pause;
        self
    }

    /// Allows fewer than three nodes, which survive the loss of none. Default: no.
    pub fn few_nodes(mut self, yes: bool) -> Self {
        self.few_nodes = yes;
        self
    }

    /// The nodes, each with the settings by which it is reached: for questions that are not locks.
    pub fn nodes(&self) -> &[dlock_redis::Config] {
        &self.nodes
    }

    /// Connects to all nodes at once. A quorum must answer; what is wrong with one of the others is logged.
    ///
    /// # Errors
    ///
    /// [`Invalid`](dlock_core::ErrorKind::Invalid) for a setting out of its range, too few nodes, or two that are one server;
    /// [`Unreachable`](dlock_core::ErrorKind::Unreachable), [`TimedOut`](dlock_core::ErrorKind::TimedOut) or
    /// [`Denied`](dlock_core::ErrorKind::Denied) when no quorum answers or lets us in, naming every node and what it said; and
    /// `Invalid` when a single one cannot be a node at all, such as a member of a Cluster.
    pub async fn connect(self) -> Result<RedlockBackend> {
        dlock_core::backend::need_runtime("redlock")?;
        RedlockBackend::connect(&self).await
    }

    fn check(&self) -> Result<()> {
        let ms = Duration::from_millis;
        let second = Duration::from_secs(1);
        within("node_timeout", self.node_timeout, ms(1)..=10 * second)?;
        let week = 7 * 24 * 3600 * second;
        within("longest_lease", self.longest_lease, ms(20)..=week)?;
        within("retry", self.retry, ms(1)..=60 * second)?;
        let count = self.nodes.len();
        if count == 0 || count > MOST_NODES {
            return Err(Error::invalid(format!(
                "{count} nodes are given: it must be 1 to {MOST_NODES}, and 3 or 5 is usual"
            )));
        }
        if count < 3 && !self.few_nodes {
            return Err(Error::invalid(format!(
                "{count} nodes survive the loss of none: give 3 or more, or set few_nodes=true, or use redis:// for one server"
            )));
        }
        self.peers().map(|_| ())
    }

    /// The nodes, not yet connected.
    pub(crate) fn peers(&self) -> Result<Vec<Node>> {
        let mut nodes: Vec<Node> = Vec::with_capacity(self.nodes.len());
        for config in &self.nodes {
            let node = Node::new(config.clone().prefix(self.prefix.clone()))?;
            if nodes.iter().any(|other| other.place() == node.place()) {
                return Err(Error::invalid(format!(
                    "the node {node} is named twice: a quorum needs independent servers"
                )));
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    pub(crate) fn checked_peers(&self) -> Result<Vec<Node>> {
        self.check()?;
        self.peers()
    }

    fn places(&self) -> Vec<String> {
        let nodes = self.peers().unwrap_or_default();
        // The same name in two databases is two locks.
        let place = |node: &Node| format!("{node}/{}", node.database());
        let mut places: Vec<String> = nodes.iter().map(place).collect();
        places.sort();
        places
    }

    /// Where the quorum is, without secrets: the same for every client of it.
    pub(crate) fn identity(&self) -> String {
        format!("redlock://{}#{}", self.places().join(","), self.prefix)
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Without passwords and keys.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("nodes", &self.nodes)
            .field("quorum", &quorum_of(self.nodes.len()))
            .field("prefix", &self.prefix)
            .field("node_timeout", &self.node_timeout)
            .field("longest_lease", &self.longest_lease)
            .field("persistent", &self.persistent)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[test]
    fn a_url_gives_every_node_the_same_settings() {
        let config = Config::from_url(
            "redlock://app:s%40cret@c:7000,a,[::1]:7002/3?node_timeout=50ms&persistent=true&prefix=shop&answer_timeout=1s",
        )
        .expect("good");
        assert_eq!(
            config.identity(),
            "redlock://[::1]:7002/3,a:6379/3,c:7000/3#shop"
        );
        assert_eq!(config.node_timeout, Duration::from_millis(50));
        assert!(config.persistent);
        let shown = format!("{config:?}");
        assert!(
            shown.contains("/3#") && shown.contains("answer_timeout: 1s"),
            "{shown}"
        );
        assert!(!shown.contains("cret"), "{shown}");
    }

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("redis://a,b,c", "takes redlock"),
            ("redlock:", "names no host"),
            ("redlock://a,b", "few_nodes=true"),
            ("redlock://a,b,a", "named twice"),
            ("redlock://a,b,a:6379", "named twice"),
            ("redlock://a,b,c/x", "not a database number"),
            ("redlock://a,b,c?style=fair", "is not known"),
            ("redlock://a,b,c?node_timeout=0s", "node_timeout is 0ns"),
            ("redlock://a,b,c?longest_lease=1ms", "longest_lease is 1ms"),
            ("redlock://a,b,c?persistent=maybe", "persistent=\"maybe\""),
            ("redlock://a,b,c?answer_timeout=0s", "answer_timeout is 0ns"),
            ("redlock://a,b,c?prefix=a%7Bb", "has a brace"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
        assert!(Config::from_url("redlock://a,b?few_nodes=true").is_ok());
        assert!(Config::from_url("redlock://a,b,c,d").is_ok());
    }

    #[test]
    fn what_belongs_to_the_quorum_is_refused_at_a_node() {
        for url in ["redis://a?prefix=x", "redis://a?style=fair"] {
            let error = Config::from_urls([url]).expect_err(url);
            assert!(error.to_string().contains("whole quorum"), "{error}");
        }
        let error = Config::from_urls(["redis+cluster://a", "redis://b", "redis://c"])
            .and_then(|config| config.checked_peers())
            .expect_err("a cluster is no node");
        assert!(
            error.to_string().contains("one independent server"),
            "{error}"
        );
    }
}
