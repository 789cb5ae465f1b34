mod check;
mod from_url;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use dlock_core::Result;
use dlock_core::backend::Host;
use dlock_core::kit::{self, Login, Tls};

use crate::RedisBackend;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// How locks are kept in Redis. Every program that shares a lock must use the same style, or one of the two with a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Style {
    /// First come, first served: the release hands the lock to the next live waiter. The default.
    #[default]
    Fair,
    /// A release wakes the first waiter, but whoever asks first gets the lock. More throughput for short holds under contention,
    /// since the holder can take the lock again without a hand-off; a waiter may be overtaken for ever.
    Barging,
    /// `SET key owner NX PX lease` and compare-and-delete, wire compatible with other programs that use this convention. No
    /// queue (waiters ask again), no token, no shared mode, no permits. The key is `prefix` and the name as they are, and
    /// `prefix` is empty by default.
    Plain,
}

/// Where the servers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Host),
    Unix(PathBuf),
    Sentinel {
        sentinels: Vec<Host>,
        master: String,
    },
    Cluster(Vec<Host>),
}

/// Where the Redis is, and how its locks are kept.
///
/// ```
/// use std::time::Duration;
/// use dlock_redis::{Config, Style};
///
/// let config = Config::from_url("redis://app:s3cret@cache:6379/2?prefix=shop")?
///     .style(Style::Barging)
///     .connect_timeout(Duration::from_secs(1));
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) db: u32,
    pub(crate) tls: Option<Tls>,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) prefix: Option<String>,
    pub(crate) style: Style,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) fence_ttl: Duration,
    pub(crate) replicas: u32,
    pub(crate) replicas_timeout: Duration,
    pub(crate) limit_may_change: bool,
}

impl Config {
    fn new(topology: Topology) -> Self {
        Self {
            topology,
            login: Login::default(),
            sentinel_login: Login::default(),
            db: 0,
            tls: None,
            keepalive: None,
            user_timeout: None,
            prefix: None,
            style: Style::Fair,
            connect_timeout: Duration::from_secs(2),
            answer_timeout: Duration::from_secs(2),
            waiter_lease: Duration::from_secs(3),
            fence_ttl: Duration::from_secs(600),
            replicas: 0,
            replicas_timeout: Duration::from_secs(1),
            limit_may_change: false,
        }
    }

    /// One server.
    pub fn single(host: impl Into<String>, port: u16) -> Self {
        Self::new(Topology::Single(Host {
            name: host.into(),
            port: Some(port),
        }))
    }

    /// One server at a unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::new(Topology::Unix(path.into()))
    }

    /// The master of this name that the sentinels (host and port) know.
    pub fn sentinel<H: Into<String>>(
        sentinels: impl IntoIterator<Item = (H, u16)>,
        master: impl Into<String>,
    ) -> Self {
        Self::new(Topology::Sentinel {
            sentinels: hosts(sentinels),
            master: master.into(),
        })
    }

    /// A cluster, found through any of these nodes (host and port).
    pub fn cluster<H: Into<String>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Self {
        Self::new(Topology::Cluster(hosts(nodes)))
    }

    /// User and password for the sentinels themselves. Default: none. TLS is the same for both.
    pub fn sentinel_login(mut self, login: Login) -> Self {
        self.sentinel_login = login;
        self
    }

    /// The database number. Default: 0. A cluster has only 0.
    pub fn db(mut self, number: u32) -> Self {
        self.db = number;
        self
    }

    /// What the names of all keys and channels begin with. Default: `dlock`, and nothing for [`Style::Plain`].
    ///
    /// Clients share locks only when they have the same prefix. No braces (they would be hash tags), spaces or control characters.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How locks are kept. Default: [`Style::Fair`].
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// How long making a connection may take, with everything it needs. Default: 2 s. From 1 ms to 10 min.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long an answer may take. Default: 2 s. From 1 ms to 10 min.
    ///
    /// After two answers in a row that did not come, the connection counts as frozen and is replaced. A shorter
    /// [`Settings::trip_timeout`](dlock_core::Settings::trip_timeout) wins.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// How long a waiter keeps its place without a sign of life, which it gives every quarter of it; and how long a waiter that
    /// was given the lock may take to confirm. Default: 3 s. From 500 ms to 5 min.
    ///
    /// Shorter skips a waiter sooner whose machine vanished (one whose process died is skipped at once, except in a cluster);
    /// longer costs the server less. Where a holder and the waiter before one die together, it takes up to a quarter of this, after
    /// the lease, until somebody notices. A sign of life that is not answered within a quarter of this is given again, so that a connection
    /// that is open at our side only does not cost the place.
    pub fn waiter_lease(mut self, lease: Duration) -> Self {
        self.waiter_lease = lease;
        self
    }

    /// How long the fence counter of a lock that nobody uses is kept. Default: 10 min. From 1 s to 1 year.
    ///
    /// Tokens are the server's time in microseconds, or one more than the last when the clock has not moved on, so they increase
    /// without the counter too unless the clock goes back. Keep it longer than clocks may be wrong.
    pub fn fence_ttl(mut self, time: Duration) -> Self {
        self.fence_ttl = time;
        self
    }

    /// How many replicas must have confirmed a hold before it counts, and how long that may take. Default: 0, 1 s.
    ///
    /// An acquire then succeeds only when `count` replicas have received it (`WAIT`), and else is undone and fails. So a hold
    /// survives the loss of the master if one of **those** replicas is promoted, which neither Sentinel nor Cluster promises: it
    /// makes the known hole of asynchronous replication smaller, and does not close it. Renewals and releases do not wait.
    /// Acquires of one client then go one after the other, on a connection of their own. In a cluster every question waits so, also one
    /// that finds the lock held.
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.replicas = count;
        self.replicas_timeout = timeout;
        self
    }

    /// Whether the limit of a semaphore may be another than that of those who hold its permits. Default: no; then it is a
    /// [`Conflict`](dlock_core::ErrorKind::Conflict), which finds mistakes.
    ///
    /// With it a client goes by its own limit: it takes a permit while fewer are held than that, whatever limit the others have. So a limit
    /// is changed in a rolling deployment: first all clients get this setting, then one after the other the new limit. Meanwhile
    /// there are never more holders than the larger limit, and when the last client with the old one has ended, and surplus holders have
    /// given their permits back, never more than the new one. A client without the setting is told of a conflict as before.
    pub fn limit_may_change(mut self, yes: bool) -> Self {
        self.limit_may_change = yes;
        self
    }

    /// After how long without traffic the system asks whether the other side still lives (TCP keep-alive), three times at most, a third of
    /// this apart. Default: not at all. From 1 s to 9 h.
    ///
    /// Locks need it seldom: renewals and signs of life find a dead connection by themselves. It keeps the idle connection of a client
    /// that holds nothing alive in firewalls that forget silent ones.
    pub fn keepalive(mut self, time: Duration) -> Self {
        self.keepalive = Some(time);
        self
    }

    /// After how long the system gives a connection up whose other side does not confirm what was sent (`TCP_USER_TIMEOUT`). Default: the
    /// system's, some minutes. From 100 ms to 1 h. Linux only.
    pub fn user_timeout(mut self, time: Duration) -> Self {
        self.user_timeout = Some(time);
        self
    }

    /// Connects, and checks that the server is one, is new enough, is a master, and lets us do what locks need.
    ///
    /// # Errors
    ///
    /// Within [`connect_timeout`](Config::connect_timeout): [`Invalid`](dlock_core::ErrorKind::Invalid) for a setting out
    /// of its range, [`Unreachable`](dlock_core::ErrorKind::Unreachable) or [`TimedOut`](dlock_core::ErrorKind::TimedOut)
    /// when nobody answers, [`Denied`](dlock_core::ErrorKind::Denied) for a wrong password, an untrusted certificate or a
    /// missing permission, [`Unsupported`](dlock_core::ErrorKind::Unsupported) for a Redis before 6.0, and
    /// [`Store`](dlock_core::ErrorKind::Store) for something that is no Redis.
    pub async fn connect(self) -> Result<RedisBackend> {
        dlock_core::backend::need_runtime("redis")?;
        RedisBackend::connect(self).await
    }

    pub(crate) fn effective_prefix(&self) -> &str {
        match (&self.prefix, self.style) {
            (Some(prefix), _) => prefix,
            (None, Style::Plain) => "",
            (None, _) => "dlock",
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Where the store is, without secrets: the same for every client of it.
    pub(crate) fn identity_text(&self) -> String {
        let tls = if self.tls.is_some() { "s" } else { "" };
        let list = |hosts: &[Host], port: u16| {
            let mut names: Vec<String> = hosts.iter().map(|host| host.with_port(port)).collect();
            names.sort();
            names.join(",")
        };
        let place = match &self.topology {
            Topology::Single(host) => {
                format!("redis{tls}://{}/{}", host.with_port(DEFAULT_PORT), self.db)
            }
            Topology::Unix(path) => format!("redis+unix://{}?db={}", path.display(), self.db),
            Topology::Sentinel { sentinels, master } => format!(
                "redis{tls}+sentinel://{}/{master}/{}",
                list(sentinels, DEFAULT_SENTINEL_PORT),
                self.db
            ),
            Topology::Cluster(nodes) => {
                format!("redis{tls}+cluster://{}", list(nodes, DEFAULT_PORT))
            }
        };
        format!("{place}#{}", self.effective_prefix())
    }
}

kit::network_settings!(Config);

/// Host and port, with Redis' own port as the default.
pub(crate) fn address(host: &Host) -> (String, u16) {
    (host.name.clone(), host.port.unwrap_or(DEFAULT_PORT))
}

/// Host and port of a sentinel.
pub(crate) fn sentinel_address(host: &Host) -> (String, u16) {
    (
        host.name.clone(),
        host.port.unwrap_or(DEFAULT_SENTINEL_PORT),
    )
}

fn hosts<H: Into<String>>(list: impl IntoIterator<Item = (H, u16)>) -> Vec<Host> {
    list.into_iter()
        .map(|(name, port)| Host {
            name: name.into(),
            port: Some(port),
        })
        .collect()
}

/// Without passwords and keys.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("store", &self.identity_text())
            .field("login", &self.login)
            .field("tls", &self.tls)
            .field("keepalive", &self.keepalive)
            .field("user_timeout", &self.user_timeout)
            .field("style", &self.style)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("waiter_lease", &self.waiter_lease)
            .field("fence_ttl", &self.fence_ttl)
            .field("replicas", &self.replicas)
            .field("limit_may_change", &self.limit_may_change)
            .finish_non_exhaustive()
    }
}
