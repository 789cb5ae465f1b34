//! The whole conformance suite against Redis: one server in each style, with TLS, with an ACL user, Sentinel, and a cluster; and against
//! Valkey.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_conformance::{Ability, Faulty, Harness, Residue, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Name, Result};
use dlock_redis::Config;
use integration_tests::{Redis, RedisCluster, RedisServer, SentinelGroup, Tls};
use redis_support::harness::{
    RUNTIME, broken, expire_at, key_of, proxies_at, proxies_of_cluster, residue_at,
};
use redis_support::{acl, authority};
use tokio::sync::OnceCell;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Barging,
    Plain,
    Tls,
    Acl,
    Sentinel,
    Cluster,
    Valkey,
}

struct Store {
    kind: Kind,
    deployed: Arc<OnceCell<Deployed>>,
}

/// Servers that run until the process ends.
struct Deployed {
    url: String,
    nodes: Nodes,
}

enum Nodes {
    One(RedisServer),
    Sentinel(SentinelGroup),
    Cluster(RedisCluster),
}

async fn deploy(kind: Kind) -> integration_tests::Result<Deployed> {
    let one = async |settings: Redis, parameters: &str| {
        let server = RedisServer::start_with(settings).await?;
        Ok(Deployed {
            url: format!("{}{parameters}", server.url()),
            nodes: Nodes::One(server),
        })
    };
    match kind {
        Kind::Single => one(Redis::default(), "").await,
        Kind::Valkey => {
            let settings = Redis {
                valkey: true,
                ..Redis::default()
            };
            one(settings, "").await
        }
        Kind::Barging => one(Redis::default(), "?style=barging").await,
        Kind::Plain => one(Redis::default(), "?style=plain").await,
        Kind::Tls => {
            let files = authority();
            let tls = Tls {
                certificate: files.file("ca-server.pem"),
                key: files.file("ca-server.key"),
                authority: files.file("ca.pem"),
            };
            let ca = tls.authority.display().to_string();
            let settings = Redis {
                tls: Some(tls),
                args: ["--tls-auth-clients", "no"].map(str::to_owned).to_vec(),
                ..Redis::default()
            };
            let server = RedisServer::start_with(settings).await?;
            Ok(Deployed {
                url: format!("rediss://localhost:{}?ca={ca}", server.tls_port()),
                nodes: Nodes::One(server),
            })
        }
        Kind::Acl => {
            let settings = Redis {
                acl: Some(acl()),
                ..Redis::default()
            };
            let mut deployed = one(settings, "").await?;
            deployed.url = deployed.url.replace("redis://", "redis://locker:s3cret@");
            Ok(deployed)
        }
        Kind::Sentinel => {
            let group = SentinelGroup::start().await?;
            let hosts: Vec<String> = group
                .sentinels()
                .iter()
                .map(|s| s.addr().to_string())
                .collect();
            Ok(Deployed {
                url: format!(
                    "redis+sentinel://{}/{}",
                    hosts.join(","),
                    SentinelGroup::MASTER_NAME
                ),
                nodes: Nodes::Sentinel(group),
            })
        }
        Kind::Cluster => {
            let cluster = RedisCluster::start().await?;
            let hosts: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
            Ok(Deployed {
                url: format!("redis+cluster://{}", hosts.join(",")),
                nodes: Nodes::Cluster(cluster),
            })
        }
    }
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

impl Store {
    async fn deployed(&self) -> Result<&Deployed> {
        let kind = self.kind;
        let start = || async move {
            let started = RUNTIME.spawn(deploy(kind)).await;
            started.expect("the servers' task").map_err(broken)
        };
        self.deployed.get_or_try_init(start).await
    }

    async fn nodes(&self) -> Result<Vec<&RedisServer>> {
        Ok(match &self.deployed().await?.nodes {
            Nodes::One(server) => vec![server],
            Nodes::Sentinel(group) => vec![group.master().await.map_err(broken)?],
            Nodes::Cluster(cluster) => cluster.nodes().iter().collect(),
        })
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Single => "redis",
            Kind::Barging => "redis-barging",
            Kind::Plain => "redis-plain",
            Kind::Tls => "redis-tls",
            Kind::Acl => "redis-acl",
            Kind::Sentinel => "redis-sentinel",
            Kind::Cluster => "redis-cluster",
            Kind::Valkey => "redis-valkey",
        }
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        // These clients are not disturbed, so nothing depends on how soon they give up; on a busy machine two seconds are short.
        let url = &self.deployed().await?.url;
        let and = if url.contains('?') { '&' } else { '?' };
        open(&format!("{url}{and}connect_timeout=20s")).await
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::COMMON
    }

    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Deny | Ability::Skew => {
                Some("redis_rights_and_clocks.rs asks those cases, with servers of its own")
            }
            _ => None,
        }
    }

    async fn faulty(&self) -> Result<Faulty> {
        let deployed = self.deployed().await?;
        let (line, url) = match &deployed.nodes {
            Nodes::One(server) if self.kind == Kind::Tls => {
                let port = server.tls_port();
                let line = proxies_at(&[([127, 0, 0, 1], port).into()]).await?;
                let proxy = line.0[0].addr().port();
                let url = deployed
                    .url
                    .replace(&format!("localhost:{port}"), &format!("localhost:{proxy}"));
                (line, url)
            }
            Nodes::One(server) => {
                let line = proxies_at(&[server.addr()]).await?;
                let proxy = line.0[0].addr().to_string();
                let url = deployed.url.replace(&server.addr().to_string(), &proxy);
                (line, url)
            }
            // The sentinels know the same master by one more name, at the address of the proxy.
            Nodes::Sentinel(group) => {
                let master = group.master().await.map_err(broken)?;
                let line = proxies_at(&[master.addr()]).await?;
                let port = line.0[0].addr().port().to_string();
                // A port may have been another proxy's before.
                static NAMES: AtomicUsize = AtomicUsize::new(0);
                let name = format!("proxy-{}", NAMES.fetch_add(1, Ordering::Relaxed));
                for sentinel in group.sentinels() {
                    // More of them would have to agree than there are, so it is never replaced.
                    let monitor = ["SENTINEL", "MONITOR", &name, "127.0.0.1", &port, "100"];
                    sentinel.command(&monitor).await.map_err(broken)?;
                }
                let known = format!("/{}", SentinelGroup::MASTER_NAME);
                (line, deployed.url.replace(&known, &format!("/{name}")))
            }
            Nodes::Cluster(cluster) => {
                let line = proxies_of_cluster(&cluster.addrs()).await?;
                let proxies: Vec<String> = line
                    .0
                    .iter()
                    .map(|proxy| proxy.addr().to_string())
                    .collect();
                let url = format!("redis+cluster://{}", proxies.join(","));
                (line, url)
            }
        };
        Ok(Faulty {
            backend: open(&url).await?,
            fault: Arc::new(line),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        let key = match self.kind {
            Kind::Plain => name.to_string(),
            _ => key_of("dlock", name),
        };
        let node = match &self.deployed().await?.nodes {
            Nodes::Cluster(cluster) => cluster.master_of(&key).await.map_err(broken)?,
            _ => self.nodes().await?[0],
        };
        expire_at(node, &key).await
    }

    async fn residue(&self) -> Result<Residue> {
        let mut left = Residue::new();
        for node in self.nodes().await? {
            residue_at(node, &mut left).await?;
        }
        Ok(left)
    }

    fn address(&self) -> String {
        self.deployed
            .get()
            .map(|deployed| deployed.url.clone())
            .unwrap_or_default()
    }
}

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| open(url).await) {
        return code;
    }
    let mut kinds = vec![
        Kind::Single,
        Kind::Barging,
        Kind::Plain,
        Kind::Tls,
        Kind::Acl,
        Kind::Sentinel,
        Kind::Cluster,
    ];
    if Redis::is_valkey_tested() {
        kinds.push(Kind::Valkey);
    }
    let stores = kinds.into_iter().map(|kind| -> Arc<dyn Harness> {
        Arc::new(Store {
            kind,
            deployed: Arc::default(),
        })
    });
    dlock_conformance::main_all(stores.collect())
}
