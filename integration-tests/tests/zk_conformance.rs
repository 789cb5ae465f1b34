//! The whole conformance suite against ZooKeeper: one server, and an ensemble of three.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where it breaks"
)]

mod zk_support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock_conformance::proxy::ProxyFault;
use dlock_conformance::{Ability, Faulty, Harness, Residue, Timings, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Name, Result};
use dlock_zk::Config;
use integration_tests::{ZooKeeperEnsemble, ZooKeeperServer};
use tokio::sync::OnceCell;
use zk_support::{Admin, count, with_quick_clean_up};

/// The cases have runtimes of their own; what the servers need outlives them here.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

/// Short, for the cases that wait for its end; and long enough to notice a cut and to connect again on a loaded machine.
const SESSION: &str = "?session=4s";

struct Store {
    name: &'static str,
    deployed: OnceCell<Deployed>,
}

/// Servers that run until the process ends.
enum Deployed {
    One(Box<ZooKeeperServer>),
    Three(ZooKeeperEnsemble),
}

impl Deployed {
    async fn start(name: &str) -> integration_tests::Result<Self> {
        Ok(match name {
            "zk" => Self::One(Box::new(
                ZooKeeperServer::start_with(with_quick_clean_up()).await?,
            )),
            _ => Self::Three(ZooKeeperEnsemble::start_with(with_quick_clean_up(), 3).await?),
        })
    }

    fn servers(&self) -> Vec<&ZooKeeperServer> {
        match self {
            Self::One(server) => vec![server.as_ref()],
            Self::Three(ensemble) => ensemble.members().iter().collect(),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::One(server) => server.url() + SESSION,
            Self::Three(ensemble) => ensemble.url() + SESSION,
        }
    }
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

fn broken(error: integration_tests::Error) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own server: {error}"))
}

impl Store {
    async fn deployed(&self) -> Result<&Deployed> {
        let name = self.name;
        let start = || async move {
            let started = RUNTIME.spawn(Deployed::start(name)).await;
            started.expect("the servers' task").map_err(broken)
        };
        self.deployed.get_or_try_init(start).await
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        self.name
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.deployed().await?.url()).await
    }

    fn timings(&self) -> Timings {
        // After an outage the client comes back with growing pauses, and sessions end with a tick's delay.
        Timings::default()
            .settle(Duration::from_secs(8))
            .tolerance(Duration::from_secs(4))
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::COMMON
    }

    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Deny => Some(
                "ZooKeeper keeps rights with each node, and none with a user that could be taken away",
            ),
            Ability::Skew => Some("zk_clocks.rs asks that case, with a server of its own"),
            _ => None,
        }
    }

    /// Behind a proxy to one server, and to no other.
    async fn faulty(&self) -> Result<Faulty> {
        let deployed = self.deployed().await?;
        let fault = ProxyFault::start(&[deployed.servers()[0].addr()]).await?;
        Ok(Faulty {
            backend: open(&format!("zk://{}{SESSION}", fault.addrs()[0])).await?,
            fault: Arc::new(fault),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        let admin = Admin::connect(&self.deployed().await?.url()).await;
        admin.delete_holder(&format!("/dlock/{name}")).await;
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let mut left = Residue::new();
        for server in self.deployed().await?.servers() {
            for (what, word) in [
                ("nodes", "zk_znode_count"),
                ("ephemeral nodes", "zk_ephemerals_count"),
                ("watches", "zk_watch_count"),
                ("connections", "zk_num_alive_connections"),
            ] {
                *left.entry(what.to_owned()).or_default() += count(server, word).await;
            }
        }
        Ok(left)
    }

    fn address(&self) -> String {
        self.deployed.get().map(Deployed::url).unwrap_or_default()
    }
}

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| open(url).await) {
        return code;
    }
    let stores = ["zk", "zk-ensemble"].map(|name| -> Arc<dyn Harness> {
        Arc::new(Store {
            name,
            deployed: OnceCell::new(),
        })
    });
    dlock_conformance::main_all(stores.to_vec())
}
