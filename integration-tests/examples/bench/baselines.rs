//! What dlock is compared to: one small struct for each, in the file of its store.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use dlock_bench::{Client, Dlock, Result, Scenario, Subject};

use crate::{raw_etcd, raw_mysql, raw_postgres, raw_redis, raw_zk};

/// The word with which this program starts itself for another process.
pub(crate) const WORKER: &str = "worker";

/// Something else with locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `SET NX PX`, and a script that deletes it: no queue, so for a free lock only.
    RedisPair,
    /// The crate rslock, which asks again.
    RsLock,
    /// A transaction that puts a key, and one that deletes it: for a free lock only.
    EtcdPair,
    /// etcd's own Lock and Unlock.
    EtcdLock,
    /// Create and delete of a node: for a free lock only.
    ZkPair,
    /// The recipe of the crate zookeeper-client.
    ZkRecipe,
    /// Two updates of a row: for a free lock only.
    MySqlPair,
    /// GET_LOCK and RELEASE_LOCK.
    GetLock,
    /// Two updates of a row: for a free lock only.
    PostgresPair,
    /// sqlx's PgAdvisoryLock.
    SqlxAdvisory,
}

/// The name that a worker process knows it by is that of the variant.
const ALL: [(Kind, &str, &str); 10] = [
    (Kind::RedisPair, "redis", "SET NX PX, and a script"),
    (Kind::RsLock, "redis", "rslock"),
    (Kind::EtcdPair, "etcd", "two transactions"),
    (Kind::EtcdLock, "etcd", "etcd's Lock RPC"),
    (Kind::ZkPair, "zk", "create and delete"),
    (Kind::ZkRecipe, "zk", "zookeeper-client's recipe"),
    (Kind::MySqlPair, "mysql", "two updates"),
    (Kind::GetLock, "mysql", "GET_LOCK"),
    (Kind::PostgresPair, "postgres", "two updates"),
    (Kind::SqlxAdvisory, "postgres", "sqlx's advisory lock"),
];

pub(crate) struct Baseline {
    kind: Kind,
    name: &'static str,
    url: String,
}

/// Those of a store.
pub(crate) fn baselines(store: &str, url: &str) -> Vec<Baseline> {
    let of_store = ALL.iter().filter(|(_, of, _)| *of == store);
    let baseline = |&(kind, _, name): &(Kind, _, &'static str)| Baseline {
        kind,
        name,
        url: url.to_owned(),
    };
    of_store.map(baseline).collect()
}

impl Baseline {
    /// Whether it can do this: bare pairs have no queue, and the others no client that many tasks share.
    pub(crate) fn fits(&self, scenario: Scenario) -> bool {
        use Kind::{EtcdPair, MySqlPair, PostgresPair, RedisPair, ZkPair};
        if matches!(
            self.kind,
            RedisPair | EtcdPair | ZkPair | MySqlPair | PostgresPair
        ) {
            return scenario == Scenario::Cycle;
        }
        matches!(
            scenario,
            Scenario::Cycle | Scenario::Clients { .. } | Scenario::HandOff
        )
    }
}

#[async_trait]
impl Subject for Baseline {
    fn name(&self) -> &str {
        self.name
    }

    async fn client(&self) -> Result<Arc<dyn Client>> {
        let url = self.url.as_str();
        Ok(match self.kind {
            Kind::RedisPair => Arc::new(raw_redis::Pair::connect(url).await?),
            Kind::RsLock => Arc::new(raw_redis::RsLock::new(url)),
            Kind::EtcdPair => Arc::new(raw_etcd::Pair::connect(url).await?),
            Kind::EtcdLock => Arc::new(raw_etcd::LockRpc::connect(url).await?),
            Kind::ZkPair => Arc::new(raw_zk::Pair::connect(url).await?),
            Kind::ZkRecipe => Arc::new(raw_zk::Recipe::connect(url).await?),
            Kind::MySqlPair => Arc::new(raw_mysql::Pair::connect(url).await?),
            Kind::GetLock => Arc::new(raw_mysql::GetLock::connect(url).await?),
            Kind::PostgresPair => Arc::new(raw_postgres::Pair::connect(url).await?),
            Kind::SqlxAdvisory => Arc::new(raw_postgres::Advisory::connect(url).await?),
        })
    }

    fn worker(&self) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.args([WORKER, &format!("{:?}", self.kind), &self.url]);
        Some(command)
    }
}

/// What a process does that one of these has started.
pub(crate) async fn work(words: &[String]) -> Result<()> {
    let [name, rest @ ..] = words else {
        return Err("a worker of nothing".into());
    };
    if name == "dlock" {
        return dlock_bench::serve(&Dlock::in_worker()?).await;
    }
    let url = rest.first().ok_or("a worker without a URL")?;
    let known = ALL.iter().find(|(kind, ..)| format!("{kind:?}") == *name);
    let &(kind, _, name) = known.ok_or("a worker of something unknown")?;
    let url = url.clone();
    dlock_bench::serve(&Baseline { kind, name, url }).await
}
