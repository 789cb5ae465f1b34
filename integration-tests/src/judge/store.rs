//! The arrangements of servers that are judged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dlock_judge::Mode;
use dlocks::{Capability, Locks, Settings};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::faults::Fault;
use crate::{
    Clock, Etcd, EtcdCluster, EtcdServer, FaultProxy, Flavor, Folder, MySql, MySqlServer, Postgres,
    PostgresServer, Redis, RedisCluster, RedisServer, Result, SentinelGroup, ZooKeeper,
    ZooKeeperEnsemble, ZooKeeperServer,
};

/// Which arrangement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are those of the table")]
pub enum Store {
    Redis,
    RedisSentinel,
    RedisCluster,
    Redlock,
    MysqlLease,
    MysqlUnique,
    MysqlSession,
    MysqlAdvisory,
    Postgres,
    PostgresPair,
    PostgresSession,
    Etcd,
    EtcdCluster,
    Zk,
    ZkEnsemble,
    File,
}

impl Store {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 16] = [
        Self::Redis,
        Self::RedisSentinel,
        Self::RedisCluster,
        Self::Redlock,
        Self::MysqlLease,
        Self::MysqlUnique,
        Self::MysqlSession,
        Self::MysqlAdvisory,
        Self::Postgres,
        Self::PostgresPair,
        Self::PostgresSession,
        Self::Etcd,
        Self::EtcdCluster,
        Self::Zk,
        Self::ZkEnsemble,
        Self::File,
    ];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::RedisSentinel => "redis-sentinel",
            Self::RedisCluster => "redis-cluster",
            Self::Redlock => "redlock",
            Self::MysqlLease => "mysql-lease",
            Self::MysqlUnique => "mysql-unique",
            Self::MysqlSession => "mysql-session",
            Self::MysqlAdvisory => "mysql-advisory",
            Self::Postgres => "postgres",
            Self::PostgresPair => "postgres-pair",
            Self::PostgresSession => "postgres-session",
            Self::Etcd => "etcd",
            Self::EtcdCluster => "etcd-cluster",
            Self::Zk => "zk",
            Self::ZkEnsemble => "zk-ensemble",
            Self::File => "file",
        }
    }

    /// The store of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|store| store.as_str() == name)
    }

    /// Whether it runs on this kind of server.
    pub(crate) fn mysql_mode(self) -> Option<&'static str> {
        match self {
            Self::MysqlLease => Some("lease"),
            Self::MysqlUnique => Some("unique"),
            Self::MysqlSession => Some("session"),
            Self::MysqlAdvisory => Some("advisory"),
            _ => None,
        }
    }

    /// How long a dead holder keeps a lock.
    #[must_use]
    pub fn lease(self) -> Duration {
        Duration::from_secs(2)
    }

    /// Beyond the lease, how long after healing the next waiter may take: reconnects, elections, and a loaded machine.
    #[must_use]
    pub fn bound(self) -> Duration {
        match self {
            // They may have to elect more than once on a busy machine.
            Self::EtcdCluster | Self::ZkEnsemble | Self::RedisCluster | Self::RedisSentinel => {
                Duration::from_secs(30)
            }
            _ => Duration::from_secs(15),
        }
    }

    /// First come, first served, and the store tells who waits.
    #[must_use]
    pub fn is_fair(self) -> bool {
        self.mysql_mode().is_none() && self != Self::PostgresSession
    }

    /// How long after healing everybody who lives must have got each lock. Where there is no order one may have bad luck several times.
    #[must_use]
    pub fn bound_for_all(self) -> Duration {
        let bounds = if self.is_fair() { 1 } else { 2 };
        self.lease() + bounds * self.bound()
    }
}

/// After a restart, nodes of Redlock that keep no data count again after so long.
const LONGEST_LEASE: Duration = Duration::from_secs(3);

/// The user of the workers.
const APP_USER: &str = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'; \
     GRANT ALL ON dlock.* TO app@'127.0.0.1'; GRANT PROCESS ON *.* TO app@'127.0.0.1'; FLUSH PRIVILEGES";

/// The servers.
#[derive(Debug)]
pub(crate) enum Servers {
    Redis(Vec<RedisServer>),
    Sentinel(SentinelGroup),
    Cluster(RedisCluster),
    MySql(MySqlServer),
    /// The primary first, then perhaps its standby, for which every commit waits.
    Postgres(Vec<PostgresServer>),
    Etcd(EtcdServer),
    EtcdCluster(EtcdCluster),
    Zk(ZooKeeperServer),
    ZkEnsemble(ZooKeeperEnsemble),
    None,
}

/// An arrangement that runs.
#[derive(Debug)]
pub struct Site {
    /// Which.
    pub store: Store,
    pub(crate) servers: Servers,
    /// The clocks of the servers, of the first first, for faults that move them.
    pub(crate) clocks: Vec<Clock>,
    url: String,
    /// The servers that workers reach by a proxy.
    addrs: Vec<SocketAddr>,
    version: String,
    _folder: Option<Folder>,
}

impl Site {
    /// Starts what the fault needs.
    ///
    /// # Errors
    /// When a program is missing, or a server does not come up.
    pub async fn start(store: Store, fault: Option<Fault>) -> Result<Self> {
        Self::start_with_lease(store, fault, store.lease()).await
    }

    /// The same with another lease, for tests that need more time before the next renewal.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with_lease(
        store: Store,
        fault: Option<Fault>,
        lease: Duration,
    ) -> Result<Self> {
        let clocks = match (fault, store) {
            // A bare quorum of the three nodes.
            (Some(Fault::ServerClock), Store::Redlock) => vec![Clock::new()?, Clock::new()?],
            (Some(Fault::ServerClock), _) => vec![Clock::new()?],
            (Some(Fault::ServerRate), _) => {
                let rates = match store {
                    Store::Redlock => &Fault::RATES[..],
                    _ => &Fault::RATES[2..],
                };
                let clocks = rates.iter().map(|rate| -> Result<Clock> {
                    let clock = Clock::new()?;
                    clock.run_at(*rate)?;
                    Ok(clock)
                });
                clocks.collect::<Result<_>>()?
            }
            _ => Vec::new(),
        };
        let env_of = |server: usize| clocks.get(server).map(Clock::env).unwrap_or_default();
        let env = env_of(0);
        let mut folder = None;
        let redis = |durable: bool, node: usize| Redis {
            durable,
            env: env_of(node),
            ..Redis::default()
        };
        let lease = lease.as_millis();
        let servers = match store {
            Store::Redis => {
                // Without data means a server that keeps none.
                let durable = fault == Some(Fault::ServerRestarted);
                Servers::Redis(vec![RedisServer::start_with(redis(durable, 0)).await?])
            }
            Store::Redlock => {
                let durable = !matches!(fault, Some(Fault::NodesForget | Fault::NodeEmpty));
                let nodes = (0..3).map(|node| RedisServer::start_with(redis(durable, node)));
                let nodes = try_join_all(nodes).await?;
                if fault == Some(Fault::NodeEmpty) {
                    // Until then they count for nobody, and nobody stands in a queue.
                    sleep(LONGEST_LEASE).await;
                }
                Servers::Redis(nodes)
            }
            Store::RedisSentinel => Servers::Sentinel(SentinelGroup::start().await?),
            Store::RedisCluster => Servers::Cluster(RedisCluster::start_with(1).await?),
            Store::Etcd => {
                let mut settings = Etcd::default();
                settings.env = env;
                Servers::Etcd(EtcdServer::start_with(settings).await?)
            }
            Store::EtcdCluster => Servers::EtcdCluster(EtcdCluster::start().await?),
            Store::Zk => {
                let mut settings = ZooKeeper::default();
                settings.env = env;
                Servers::Zk(ZooKeeperServer::start_with(settings).await?)
            }
            Store::ZkEnsemble => Servers::ZkEnsemble(ZooKeeperEnsemble::start().await?),
            Store::Postgres | Store::PostgresSession => {
                Servers::Postgres(vec![PostgresServer::start().await?])
            }
            Store::PostgresPair => {
                let primary = PostgresServer::start().await?;
                let settings = Postgres {
                    follows: Some(primary.port()),
                    ..Postgres::default()
                };
                let standby = PostgresServer::start_with(settings).await?;
                for sql in [
                    "ALTER SYSTEM SET synchronous_standby_names = '*'",
                    "SELECT pg_reload_conf()",
                ] {
                    primary.sql(sql).await?;
                }
                Servers::Postgres(vec![primary, standby])
            }
            Store::File => {
                folder = Some(Folder::new("judge-locks")?);
                Servers::None
            }
            _ => {
                let settings = MySql {
                    flavor: Flavor::MariaDb,
                    env,
                    ..MySql::default()
                };
                let server = MySqlServer::start_with(settings).await?;
                // `read_only` stops everybody but root.
                server.sql(APP_USER).await?;
                Servers::MySql(server)
            }
        };
        let hosts = |addrs: &[SocketAddr]| {
            let hosts: Vec<_> = addrs.iter().map(ToString::to_string).collect();
            hosts.join(",")
        };
        let (url, addrs) = match &servers {
            Servers::Redis(nodes) => {
                let addrs: Vec<_> = nodes.iter().map(RedisServer::addr).collect();
                let url = match store {
                    Store::Redis => format!("redis://{}?waiter_lease=2s", hosts(&addrs)),
                    // Nodes that may forget: one that restarted counts again when all that it gave must have ended.
                    _ if fault == Some(Fault::NodeEmpty) => {
                        let longest = LONGEST_LEASE.as_millis();
                        format!("redlock://{}?longest_lease={longest}ms", hosts(&addrs))
                    }
                    _ => format!("redlock://{}?persistent=true", hosts(&addrs)),
                };
                (url, addrs)
            }
            Servers::Sentinel(group) => {
                let addrs: Vec<_> = group.sentinels().iter().map(|one| one.addr()).collect();
                let name = SentinelGroup::MASTER_NAME;
                let url = format!("redis+sentinel://{}/{name}?waiter_lease=2s", hosts(&addrs));
                let nodes = group.nodes().iter().map(RedisServer::addr);
                (url, addrs.iter().copied().chain(nodes).collect())
            }
            Servers::Cluster(cluster) => {
                let addrs = cluster.addrs();
                let url = format!("redis+cluster://{}?waiter_lease=2s", hosts(&addrs));
                (url, addrs)
            }
            Servers::MySql(server) => {
                let mode = store.mysql_mode().unwrap_or("lease");
                let url = server.url().replace("root:dlock", "app:app");
                (format!("{url}?mode={mode}"), vec![server.addr()])
            }
            Servers::Postgres(servers) => {
                let addrs: Vec<_> = servers.iter().map(PostgresServer::addr).collect();
                let url = format!("postgres://dlock@{}/dlock", hosts(&addrs));
                let mode = match store {
                    Store::PostgresSession => "mode=session",
                    _ => "waiter_lease=2s",
                };
                (format!("{url}?{mode}&connect_timeout=2s"), addrs)
            }
            Servers::Etcd(server) => (server.url(), vec![server.addr()]),
            Servers::EtcdCluster(group) => (group.url(), group.addrs()),
            Servers::Zk(server) => (server.url(), vec![server.addr()]),
            Servers::ZkEnsemble(group) => (group.url(), group.addrs()),
            Servers::None => {
                let path = folder
                    .as_ref()
                    .map(|folder| folder.path().display().to_string());
                (format!("file:{}", path.unwrap_or_default()), Vec::new())
            }
        };
        let sign = if url.contains('?') { '&' } else { '?' };
        let mut site = Self {
            store,
            servers,
            clocks,
            url: format!("{url}{sign}lease={lease}ms"),
            addrs,
            version: String::new(),
            _folder: folder,
        };
        site.version = site.ask_version().await?;
        Ok(site)
    }

    /// What runs, with its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    async fn ask_version(&self) -> Result<String> {
        let of_redis = async |server: &RedisServer| {
            let version = server.info("server", "redis_version").await?;
            Ok(format!("Redis {version}"))
        };
        match &self.servers {
            Servers::Redis(nodes) => of_redis(&nodes[0]).await,
            Servers::Sentinel(group) => of_redis(&group.nodes()[0]).await,
            Servers::Cluster(cluster) => of_redis(&cluster.nodes()[0]).await,
            Servers::MySql(server) => {
                let version = server.sql("SELECT VERSION()").await?;
                Ok(format!(
                    "MariaDB {}",
                    version.trim().replace("-MariaDB", "")
                ))
            }
            Servers::Postgres(servers) => {
                let version = servers[0].sql("SHOW server_version").await?;
                let number = version.split_whitespace().next().unwrap_or("?");
                Ok(format!("PostgreSQL {number}"))
            }
            Servers::Etcd(server) => etcd_version(server).await,
            Servers::EtcdCluster(group) => etcd_version(&group.members()[0]).await,
            Servers::Zk(server) => zk_version(server.addr()).await,
            Servers::ZkEnsemble(group) => zk_version(group.addrs()[0]).await,
            Servers::None => {
                let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
                let release = release.unwrap_or_default().trim().to_owned();
                Ok(format!("Linux {release}"))
            }
        }
    }

    /// The URL, past all proxies.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether workers reach it by proxies.
    #[must_use]
    pub fn is_proxied(&self) -> bool {
        !self.addrs.is_empty()
    }

    /// The URL by proxies of one's own.
    pub(crate) async fn url_behind_proxies(&self) -> Result<(String, Vec<FaultProxy>)> {
        let mut url = self.url.clone();
        let mut proxies = Vec::new();
        for addr in &self.addrs {
            let proxy = FaultProxy::start(*addr).await?;
            url = url.replace(&addr.to_string(), &proxy.addr().to_string());
            proxies.push(proxy);
        }
        // These tell clients where the others are: each client must hear of its own proxies.
        if matches!(self.store, Store::RedisSentinel | Store::RedisCluster) {
            let to = proxies.iter().map(FaultProxy::addr);
            let both: Vec<_> = self.addrs.iter().copied().zip(to).collect();
            proxies.iter().for_each(|proxy| proxy.tell_instead(&both));
        }
        Ok((url, proxies))
    }

    /// A client that nothing stands in the way of.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn client(&self) -> dlocks::Result<Locks> {
        connect(&self.url, Settings::new(), None).await
    }

    /// Which locks a crew uses: `…:m`, and `…:r` and `…:p` where the store has them.
    #[must_use]
    pub fn locks(&self, name: &str, client: &Locks) -> Vec<(String, Mode)> {
        let has = |capability| client.capabilities().has(capability);
        let mut locks = vec![(format!("{name}:m"), Mode::Exclusive)];
        if has(Capability::Shared) {
            locks.push((format!("{name}:r"), Mode::Shared));
        }
        if has(Capability::Permits) {
            locks.push((format!("{name}:p"), Mode::Permit(2)));
        }
        locks
    }
}

/// Connects. A store on a busy machine may need several tries.
pub(crate) async fn connect(
    url: &str,
    settings: Settings,
    clock: Option<Arc<dyn dlocks::Clock>>,
) -> dlocks::Result<Locks> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let builder = dlocks::builder(url).settings(settings.clone());
        let builder = match &clock {
            Some(clock) => builder.clock(clock.clone()),
            None => builder,
        };
        match builder.connect().await {
            Err(error) if error.is_retryable() && Instant::now() < end => {
                sleep(Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
}

async fn etcd_version(server: &EtcdServer) -> Result<String> {
    let version = crate::server::wire::ask_json(server.addr(), "/version", None).await?;
    let version = version["etcdserver"].as_str().unwrap_or("?").to_owned();
    Ok(format!("etcd {version}"))
}

async fn zk_version(addr: SocketAddr) -> Result<String> {
    let answer = crate::server::wire::ask(addr, "srvr").await?;
    let line = answer.lines().next().unwrap_or_default();
    let version = line.strip_prefix("Zookeeper version: ").unwrap_or(line);
    let version = version.split(['-', ',']).next().unwrap_or(version);
    Ok(format!("ZooKeeper {version}"))
}
