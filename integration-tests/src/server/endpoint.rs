//! The server that tests share: the one that the environment names, or else one started for this test process.

use std::env;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::sync::OnceCell;

use super::{Etcd, Flavor, MySql, Postgres, Redis, Server, Store, ZooKeeper};
use crate::error::Doing;
use crate::{Error, Result};

/// A server that tests talk to, ours or somebody's.
#[derive(Debug)]
pub struct Endpoint<S> {
    url: String,
    /// `None` when the environment named the server.
    server: Option<Server<S>>,
}

impl<S: Store + Default> Endpoint<S> {
    async fn open() -> Result<Self> {
        Self::open_or(env::var(S::URL_VARIABLE).ok()).await
    }

    async fn open_or(given: Option<String>) -> Result<Self> {
        Self::open_with(given, S::default()).await
    }
}

impl<S: Store> Endpoint<S> {
    async fn open_with(given: Option<String>, settings: S) -> Result<Self> {
        if let Some(url) = given {
            return Ok(Self { url, server: None });
        }
        let server = Server::start_with(settings).await?;
        Ok(Self {
            url: server.url(),
            server: Some(server),
        })
    }

    /// The URL for `dlocks::connect`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address of the (first) server in the URL; what a [`FaultProxy`](crate::FaultProxy) wants.
    ///
    /// # Errors
    /// When the URL has no `host:port`, or the host is not known.
    pub fn addr(&self) -> Result<SocketAddr> {
        let host = host_and_port(&self.url)
            .ok_or_else(|| Error::answer(S::URL_VARIABLE, "no host:port in the URL"))?;
        let mut found = host.to_socket_addrs().doing(format!("resolve {host}"))?;
        found
            .next()
            .ok_or_else(|| Error::answer(host, "no address"))
    }

    /// The same URL with another address in place of its servers: the way through a proxy.
    ///
    /// # Errors
    /// When the URL has no `host:port`.
    pub fn url_through(&self, proxy: SocketAddr) -> Result<String> {
        through(&self.url, proxy)
            .ok_or_else(|| Error::answer(S::URL_VARIABLE, "no host:port in the URL"))
    }

    /// The server that was started here; `None` when the environment named one. Other tests use it at the same time, so
    /// whoever wants to freeze or kill a server starts one of their own.
    #[must_use]
    pub fn server(&self) -> Option<&Server<S>> {
        self.server.as_ref()
    }
}

/// The shared Redis: `DLOCK_TEST_REDIS_URL`, or else one server for this test process.
///
/// # Errors
/// When it cannot be started.
pub async fn redis() -> Result<&'static Endpoint<Redis>> {
    static SHARED: OnceCell<Endpoint<Redis>> = OnceCell::const_new();
    SHARED.get_or_try_init(Endpoint::open).await
}

/// The shared MySQL or MariaDB: `DLOCK_TEST_MYSQL_URL`, or else one MariaDB for this test process.
///
/// # Errors
/// When it cannot be started.
pub async fn mysql() -> Result<&'static Endpoint<MySql>> {
    mysql_of(Flavor::MariaDb).await
}

/// The shared server of one kind: one of each for this test process. `DLOCK_TEST_MYSQL_URL` takes the place of MariaDB.
///
/// # Errors
/// When it cannot be started.
pub async fn mysql_of(flavor: Flavor) -> Result<&'static Endpoint<MySql>> {
    static MARIADB: OnceCell<Endpoint<MySql>> = OnceCell::const_new();
    static MYSQL: OnceCell<Endpoint<MySql>> = OnceCell::const_new();
    let (shared, given) = match flavor {
        Flavor::MariaDb => (&MARIADB, env::var(MySql::URL_VARIABLE).ok()),
        Flavor::MySql => (&MYSQL, None),
    };
    let settings = MySql {
        flavor,
        ..MySql::default()
    };
    shared
        .get_or_try_init(|| Endpoint::open_with(given, settings))
        .await
}

/// The shared PostgreSQL: `DLOCK_TEST_POSTGRES_URL`, or else one server for this test process.
///
/// # Errors
/// When it cannot be started.
pub async fn postgres() -> Result<&'static Endpoint<Postgres>> {
    static SHARED: OnceCell<Endpoint<Postgres>> = OnceCell::const_new();
    SHARED.get_or_try_init(Endpoint::open).await
}

/// The shared etcd: `DLOCK_TEST_ETCD_URL`, or else one server for this test process.
///
/// # Errors
/// When it cannot be started.
pub async fn etcd() -> Result<&'static Endpoint<Etcd>> {
    static SHARED: OnceCell<Endpoint<Etcd>> = OnceCell::const_new();
    SHARED.get_or_try_init(Endpoint::open).await
}

/// The shared ZooKeeper: `DLOCK_TEST_ZK_URL`, or else one server for this test process.
///
/// # Errors
/// When it cannot be started.
pub async fn zookeeper() -> Result<&'static Endpoint<ZooKeeper>> {
    static SHARED: OnceCell<Endpoint<ZooKeeper>> = OnceCell::const_new();
    SHARED.get_or_try_init(Endpoint::open).await
}

/// The first `host:port` of `scheme://user:password@host:port,host:port/path?query`.
fn host_and_port(url: &str) -> Option<&str> {
    let (_, hosts, _) = around_hosts(url)?;
    hosts.split(',').next().filter(|host| host.contains(':'))
}

/// The URL with `addr` in place of its hosts.
fn through(url: &str, addr: SocketAddr) -> Option<String> {
    let (before, _, after) = around_hosts(url)?;
    Some(format!("{before}{addr}{after}"))
}

/// What stands before the hosts of a URL, the hosts, and what stands behind them.
fn around_hosts(url: &str) -> Option<(&str, &str, &str)> {
    let authority = url.find("://")? + 3;
    let end = url[authority..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |length| authority + length);
    let start = url[authority..end]
        .rfind('@')
        .map_or(authority, |at| authority + at + 1);
    (start < end).then(|| (&url[..start], &url[start..end], &url[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_given_url_is_used_and_nothing_is_started() {
        let given = Endpoint::<Redis>::open_or(Some("redis://127.0.0.1:9/0".into()))
            .await
            .unwrap();
        assert!(given.server().is_none());
        assert_eq!(given.url(), "redis://127.0.0.1:9/0");
        assert_eq!(given.addr().unwrap(), "127.0.0.1:9".parse().unwrap());
        let proxy = "127.0.0.1:8".parse().unwrap();
        assert_eq!(given.url_through(proxy).unwrap(), "redis://127.0.0.1:8/0");
    }

    #[tokio::test]
    async fn without_a_url_a_server_is_started() {
        let own = Endpoint::<Redis>::open_or(None).await.unwrap();
        assert_eq!(own.addr().unwrap(), own.server().unwrap().addr());
    }

    #[test]
    fn hosts_are_found_in_every_form_of_url() {
        for (url, first) in [
            ("redis://127.0.0.1:6379", Some("127.0.0.1:6379")),
            (
                "redis://:secret@localhost:6379/0?protocol=resp3",
                Some("localhost:6379"),
            ),
            ("mysql://root:p@ss@db:3306/dlock", Some("db:3306")),
            ("zk://a:1,b:2,c:3/chroot", Some("a:1")),
            ("etcd://", None),
            ("redis://host-without-port", None),
            ("not a url", None),
        ] {
            assert_eq!(host_and_port(url), first, "{url}");
        }
    }

    #[test]
    fn a_proxy_takes_the_place_of_all_hosts_and_of_nothing_else() {
        let proxy = "127.0.0.1:9".parse().unwrap();
        assert_eq!(
            through("zk://a:1,b:2/c", proxy).unwrap(),
            "zk://127.0.0.1:9/c"
        );
        assert_eq!(
            through("mysql://db:x@db/db", proxy).unwrap(),
            "mysql://db:x@127.0.0.1:9/db"
        );
    }
}
