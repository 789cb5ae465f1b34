//! The whole conformance suite against quorums: five nodes, four of them, and five of which two are down.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod redis_support;
mod redlock_support;

use std::process::ExitCode;
use std::sync::Arc;

use dlock_conformance::{Ability, Faulty, Harness, Residue, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Name, Result};
use dlock_redlock::Config;
use integration_tests::RedisServer;
use redis_support::harness::{RUNTIME, broken, expire_at, key_of, proxies, residue_at};
use redlock_support::{Five, start};
use tokio::sync::OnceCell;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Five,
    Four,
    TwoDown,
}

struct Store {
    kind: Kind,
    deployed: Arc<OnceCell<Five>>,
}

/// Replies may be late in the cases, but not lost: nodes are waited for as long as a lease allows.
const PARAMETERS: &str = "?persistent=true&node_timeout=1s&connect_timeout=10s";

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

async fn deploy(kind: Kind) -> integration_tests::Result<Five> {
    let five = start(if kind == Kind::Four { 4 } else { 5 }).await?;
    if kind == Kind::TwoDown {
        five.servers[1].kill();
        five.servers[4].kill();
    }
    Ok(five)
}

impl Store {
    async fn deployed(&self) -> Result<&Five> {
        let kind = self.kind;
        let start = || async move {
            let started = RUNTIME.spawn(deploy(kind)).await;
            started.expect("the servers' task").map_err(broken)
        };
        self.deployed.get_or_try_init(start).await
    }

    async fn alive(&self) -> Result<Vec<&RedisServer>> {
        let servers = self.deployed().await?.servers.iter();
        Ok(servers.filter(|server| server.is_running()).collect())
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Five => "redlock",
            Kind::Four => "redlock-four",
            Kind::TwoDown => "redlock-two-down",
        }
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.deployed().await?.url(PARAMETERS)).await
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::COMMON
    }

    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Deny | Ability::Skew => {
                Some("redlock_rights_and_clocks.rs asks those cases, with servers of its own")
            }
            _ => None,
        }
    }

    async fn faulty(&self) -> Result<Faulty> {
        let alive = self.alive().await?;
        let line = proxies(&alive).await?;
        let mut url = self.deployed().await?.url(PARAMETERS);
        for (server, proxy) in alive.iter().zip(&line.0) {
            url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
        }
        Ok(Faulty {
            backend: open(&url).await?,
            fault: Arc::new(line),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        for server in self.alive().await? {
            expire_at(server, &key_of("redlock", name)).await?;
        }
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let mut left = Residue::new();
        for server in self.alive().await? {
            residue_at(server, &mut left).await?;
        }
        Ok(left)
    }

    fn address(&self) -> String {
        self.deployed
            .get()
            .map(|five| five.url(PARAMETERS))
            .unwrap_or_default()
    }
}

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| open(url).await) {
        return code;
    }
    let kinds = [Kind::Five, Kind::Four, Kind::TwoDown];
    let stores = kinds.map(|kind| -> Arc<dyn Harness> {
        Arc::new(Store {
            kind,
            deployed: Arc::default(),
        })
    });
    dlock_conformance::main_all(stores.to_vec())
}
