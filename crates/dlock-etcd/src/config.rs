mod from_url;
mod srv;

use std::fmt;
use std::time::{Duration, Instant};

use dlock_core::backend::Host;
use dlock_core::kit::{self, Login, TIMEOUTS, Tls, TlsOffer, within};
use dlock_core::{Error, Operation, Result};

use self::srv::Srv;
use crate::EtcdBackend;
use crate::connect::{Cluster, whole_seconds};

const DEFAULT_PORT: u16 = 2379;
const TLS: TlsOffer = TlsOffer {
    crate_name: "dlock-etcd",
    enabled: cfg!(feature = "tls"),
    // Its usual authorities are those of the system.
    system_ca: true,
    unverified: false,
    server_name: true,
};
/// The server's own limit.
const LONGEST_SESSION: Duration = Duration::from_secs(9_000_000_000);

/// Where the etcd cluster is, and how its locks are kept.
///
/// ```
/// use std::time::Duration;
/// use dlock_etcd::Config;
///
/// let config = Config::from_url("etcd://app:s3cret@etcd-1,etcd-2,etcd-3:2379?prefix=shop&session=15s")?
///     .connect_timeout(Duration::from_secs(1));
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    pub(crate) hosts: Vec<Host>,
    /// Where to look them up instead.
    srv: Option<Srv>,
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: String,
    pub(crate) session: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) late_limit: Duration,
}

impl Config {
    /// A cluster with these members (host and port), or some of them.
    pub fn new<H: Into<String>>(members: impl IntoIterator<Item = (H, u16)>) -> Self {
        let hosts = members.into_iter().map(|(name, port)| Host {
            name: name.into(),
            port: Some(port),
        });
        Self::of(hosts.collect())
    }

    fn of(hosts: Vec<Host>) -> Self {
        Self {
            hosts,
            srv: None,
            login: Login::default(),
            tls: None,
            prefix: "dlock".to_owned(),
            session: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(2),
            late_limit: Duration::from_secs(600),
        }
    }

    /// What all keys start with, followed by a `/`. Default: `dlock`. Everybody who shares a lock must use the same. One may not lie in
    /// another, like `a/b` in `a`. 1 to 255 bytes without control characters.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the store keeps the client's lease, and all its locks, without a sign of life. Default: 10 s.
    ///
    /// A short session frees the locks of a dead holder sooner; a long one survives longer outages. Whole seconds, rounded up; the
    /// server may make it longer (1.5 times its election time is its shortest). At least 1 s.
    pub fn session(mut self, ttl: Duration) -> Self {
        self.session = ttl;
        self
    }

    /// How long [`connect`](Config::connect) may take in all. Default: 5 s. Several servers are tried in turn, each for its share. From
    /// 1 ms to 10 min.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long one server may take to answer before the next is asked. Default: 2 s. From 1 ms to 10 min.
    ///
    /// Shorter finds a hanging server sooner; too short mistakes a busy one for it. What keeps the session alive never waits longer than
    /// about a seventh of the session, so that a second member can be asked in time, and with several members other
    /// requests wait no longer than a third of it, whatever is set here.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// How long a request that was given up may still be under way to the store, in buffers of the network or of a proxy. Default: 10
    /// minutes. At least 1 s.
    ///
    /// So long a mark in the store makes such a request fail. Too short, and one that comes later puts an entry that nobody holds, and
    /// that stands in others' way until this client has noticed or its session has ended.
    pub fn late_limit(mut self, limit: Duration) -> Self {
        self.late_limit = limit;
        self
    }

    /// Connects, logs in, and takes the client's lease.
    ///
    /// # Errors
    ///
    /// A setting that is wrong, or a cluster that cannot be reached or refuses us, within the connect time-out.
    pub async fn connect(self) -> Result<EtcdBackend> {
        dlock_core::backend::need_runtime("etcd")?;
        let connected = async {
            self.check()?;
            let start = Instant::now();
            let config = self.discovered().await?;
            let left = config.connect_timeout.saturating_sub(start.elapsed());
            let cluster = Cluster::new(&config, None)?;
            EtcdBackend::connect(&config, cluster, left).await
        };
        connected.await.map_err(|error| {
            error
                .with_backend("etcd")
                .with_operation(Operation::Connect)
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.srv {
            Some(srv) => srv.check()?,
            None if self.hosts.is_empty() => {
                return Err(Error::invalid("no server is named: write etcd://host:2379"));
            }
            None => {}
        }
        within("connect_timeout", self.connect_timeout, TIMEOUTS)?;
        within("answer_timeout", self.answer_timeout, TIMEOUTS)?;
        let second = Duration::from_secs(1);
        within("late_limit", self.late_limit, second..=LONGEST_SESSION)?;
        within("session", self.session, second..=LONGEST_SESSION)?;
        let prefix = &self.prefix;
        if prefix.is_empty() || prefix.len() > 255 || prefix.contains(char::is_control) {
            return Err(Error::invalid(
                "prefix must have 1 to 255 bytes and no control characters",
            ));
        }
        self.login.both_or_none()?;
        self.login.check()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check(TLS))
    }

    /// How long one member may take to answer before the next is asked. With several, a silent one must not cost more than a third of the
    /// session, or what was proven before the request has lapsed when the next one answers (docs/timeouts.md).
    pub(crate) fn member_timeout(&self) -> Duration {
        if self.hosts.len() > 1 {
            self.answer_timeout.min(self.session / 3)
        } else {
            self.answer_timeout
        }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.hosts
            .iter()
            .map(|host| host.with_port(DEFAULT_PORT))
            .collect()
    }

    /// Which store this is: two clients of the same locks give the same text.
    pub(crate) fn identity(&self) -> String {
        let mut hosts = self.addresses();
        hosts.sort();
        format!("etcd://{}/{}", hosts.join(","), self.prefix)
    }
}

kit::network_settings!(Config);

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.addresses())
            .field("srv", &self.srv)
            .field("login", &self.login)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("session_seconds", &whole_seconds(self.session))
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("late_limit", &self.late_limit)
            .finish_non_exhaustive()
    }
}
