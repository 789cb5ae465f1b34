//! What dlock is compared to: one small struct for each, in the file of its store.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;
use dlock_bench::{Client, Dlock, Result, Scenario, Subject};
use dlocks::{Order, Settings};

use crate::bell::ByBell;
use crate::{raw_etcd, raw_mysql, raw_postgres, raw_redis, raw_zk};

/// The word with which this program starts itself for another process.
pub(crate) const WORKER: &str = "worker";

/// Something that a lock is compared to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `SET NX PX`, and a script that deletes it.
    RedisPair,
    /// A script that publishes, and the message.
    RedisMessage,
    /// The crate rslock, which asks again.
    RsLock,
    /// A transaction that puts a key, and one that deletes it.
    EtcdPair,
    EtcdEvent,
    /// etcd's own Lock and Unlock.
    EtcdLock,
    /// Create and delete of a node.
    ZkPair,
    ZkEvent,
    /// The recipe of the crate zookeeper-client.
    ZkRecipe,
    /// Two updates of a row.
    MySqlPair,
    /// GET_LOCK and RELEASE_LOCK.
    GetLock,
    /// The same with a committed update in between.
    GetLockAndUpdate,
    /// Two updates of a row.
    PostgresPair,
    PostgresNotify,
    /// sqlx's PgAdvisoryLock.
    SqlxAdvisory,
}

/// What it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Requests alone, which exclude nobody: for free locks, one or many.
    Requests,
    /// A lock, which others wait for.
    Locks,
    /// A lock of which tasks of one client may have many.
    LocksOfManyNames,
    /// One request, and what the other process sees of it.
    HandsOff,
}

struct Known {
    /// A worker process knows it by the name of the variant.
    kind: Kind,
    stores: &'static [&'static str],
    name: &'static str,
    does: Does,
}

const fn known(
    kind: Kind,
    stores: &'static [&'static str],
    name: &'static str,
    does: Does,
) -> Known {
    Known {
        kind,
        stores,
        name,
        does,
    }
}

static ALL: [Known; 15] = {
    use Does::{HandsOff, Locks, LocksOfManyNames, Requests};
    const REDIS: &[&str] = &["redis"];
    const REDISES: &[&str] = &["redis", "redlock"];
    const ROWS: &[&str] = &["mysql", "mysql-unique", "mysql-session", "mysql-advisory"];
    const CONNECTIONS: &[&str] = &["mysql-session", "mysql-advisory"];
    const POSTGRES: &[&str] = &["postgres", "postgres-session"];
    [
        known(
            Kind::RedisPair,
            REDISES,
            "SET NX PX, and a script",
            Requests,
        ),
        known(
            Kind::RedisMessage,
            REDIS,
            "a script, and its message",
            HandsOff,
        ),
        known(Kind::RsLock, REDISES, "rslock", LocksOfManyNames),
        known(Kind::EtcdPair, &["etcd"], "two transactions", Requests),
        known(
            Kind::EtcdEvent,
            &["etcd"],
            "a delete, and its event",
            HandsOff,
        ),
        known(Kind::EtcdLock, &["etcd"], "etcd's Lock RPC", Locks),
        known(Kind::ZkPair, &["zk"], "create and delete", Requests),
        known(Kind::ZkEvent, &["zk"], "a delete, and its event", HandsOff),
        known(Kind::ZkRecipe, &["zk"], "zookeeper-client's recipe", Locks),
        known(Kind::MySqlPair, ROWS, "two updates", Requests),
        known(Kind::GetLock, ROWS, "GET_LOCK", Locks),
        known(
            Kind::GetLockAndUpdate,
            CONNECTIONS,
            "GET_LOCK, and an update",
            LocksOfManyNames,
        ),
        known(Kind::PostgresPair, POSTGRES, "two updates", Requests),
        known(
            Kind::PostgresNotify,
            POSTGRES,
            "a NOTIFY, and its arrival",
            HandsOff,
        ),
        known(Kind::SqlxAdvisory, POSTGRES, "sqlx's advisory lock", Locks),
    ]
};

pub(crate) struct Baseline {
    known: &'static Known,
    url: String,
}

/// Those of a store.
pub(crate) fn baselines(store: &str, url: &str) -> Vec<Baseline> {
    let of_store = ALL.iter().filter(|known| known.stores.contains(&store));
    let baseline = |known: &'static Known| Baseline {
        known,
        url: url.to_owned(),
    };
    of_store.map(baseline).collect()
}

impl Baseline {
    pub(crate) fn fits(&self, scenario: Scenario) -> bool {
        let is_lock = matches!(
            scenario,
            Scenario::Cycle
                | Scenario::Clients { .. }
                | Scenario::ProcessClients { .. }
                | Scenario::HandOff
        );
        // Of few names many tasks want the same; one task alone is there for the growth with the names.
        let is_crowd =
            matches!(scenario, Scenario::Names { tasks, names } if names > tasks && tasks > 1);
        match self.known.does {
            Does::Requests => scenario == Scenario::Cycle || is_crowd,
            Does::Locks => is_lock,
            Does::LocksOfManyNames => is_lock || is_crowd,
            Does::HandsOff => scenario == Scenario::HandOff,
        }
    }
}

/// The number of a name that is one of many.
pub(crate) fn number_of(name: &str) -> i32 {
    let number = name.rsplit('-').next().and_then(|word| word.parse().ok());
    number.unwrap_or_default()
}

/// Every turn is asked of the store, and none is passed on among the tasks of a client.
pub(crate) fn asked(dlock: Dlock) -> Dlock {
    dlock
        .named("dlock, each turn asked of the store")
        .settings(Settings::new().local_turns(1))
}

/// Every task has its own place in the store's queue.
pub(crate) fn strict(dlock: Dlock) -> Dlock {
    dlock
        .named("dlock, a place in the store's queue each")
        .settings(Settings::new().order(Order::Strict))
}

#[async_trait]
impl Subject for Baseline {
    fn name(&self) -> &str {
        self.known.name
    }

    async fn client(&self) -> Result<Arc<dyn Client>> {
        let url = self.url.as_str();
        Ok(match self.known.kind {
            Kind::RedisPair => Arc::new(raw_redis::Pair::connect(url).await?),
            Kind::RedisMessage => Arc::new(ByBell::new(raw_redis::Message::connect(url).await?)),
            Kind::RsLock => Arc::new(raw_redis::RsLock::new(url)),
            Kind::EtcdPair => Arc::new(raw_etcd::Pair::connect(url).await?),
            Kind::EtcdEvent => Arc::new(ByBell::new(raw_etcd::DeleteAndEvent::connect(url).await?)),
            Kind::EtcdLock => Arc::new(raw_etcd::LockRpc::connect(url).await?),
            Kind::ZkPair => Arc::new(raw_zk::Pair::connect(url).await?),
            Kind::ZkEvent => Arc::new(ByBell::new(raw_zk::DeleteAndEvent::connect(url).await?)),
            Kind::ZkRecipe => Arc::new(raw_zk::Recipe::connect(url).await?),
            Kind::MySqlPair => Arc::new(raw_mysql::Pair::connect(url).await?),
            Kind::GetLock => Arc::new(raw_mysql::GetLock::connect(url, false).await?),
            Kind::GetLockAndUpdate => Arc::new(raw_mysql::GetLock::connect(url, true).await?),
            Kind::PostgresPair => Arc::new(raw_postgres::Pair::connect(url).await?),
            Kind::PostgresNotify => {
                Arc::new(ByBell::new(raw_postgres::Notify::connect(url).await?))
            }
            Kind::SqlxAdvisory => Arc::new(raw_postgres::Advisory::connect(url).await?),
        })
    }

    fn worker(&self) -> Option<Command> {
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.args([WORKER, &format!("{:?}", self.known.kind), &self.url]);
        Some(command)
    }
}

/// What a process does that one of these has started.
pub(crate) async fn work(words: &[String]) -> Result<()> {
    let [name, rest @ ..] = words else {
        return Err("a worker of nothing".into());
    };
    match name.as_str() {
        "dlock" => return dlock_bench::serve(&Dlock::in_worker()?).await,
        "asked" => return dlock_bench::serve(&asked(Dlock::in_worker()?)).await,
        "strict" => return dlock_bench::serve(&strict(Dlock::in_worker()?)).await,
        _ => {}
    }
    let url = rest.first().ok_or("a worker without a URL")?.clone();
    let of_name = |known: &&Known| format!("{:?}", known.kind) == *name;
    let known = ALL.iter().find(of_name);
    let known = known.ok_or("a worker of something unknown")?;
    dlock_bench::serve(&Baseline { known, url }).await
}
