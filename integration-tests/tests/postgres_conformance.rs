//! The whole conformance suite against PostgreSQL, in both modes; `lease` directly, behind a PgBouncer that gives connections to others
//! after each transaction, and by the connections of pools that the user has: of deadpool-postgres with a connection that listens, and of sqlx
//! without one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

mod postgres_support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use dlock_conformance::proxy::ProxyFault;
use dlock_conformance::{Ability, Faulty, Harness, Residue, Timings, async_trait};
use dlock_core::backend::{Backend, BackendUrl};
use dlock_core::{Error, ErrorKind, Name, Result};
use dlock_postgres::Config;
use integration_tests::{PgBouncer, PgBouncerServer, PostgresServer};
use postgres_support::{connection, with};
use tokio::sync::OnceCell;

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| open(url).await) {
        return code;
    }
    dlock_conformance::main_all(vec![
        Store::harness("postgres_lease", "c_", Way::Direct("lease")),
        Store::harness("postgres_session", "s_", Way::Direct("session")),
        Store::harness("postgres_lease_pgbouncer", "b_", Way::Bouncer),
        Store::harness("postgres_deadpool", "d_", Way::Pool("deadpool")),
        Store::harness("postgres_sqlx", "q_", Way::Pool("sqlx")),
    ])
}

/// A session has no time at the server that could be set back; the suite breaks the lock instead.
const CONNECTED: &[Ability] = &[
    Ability::Cut,
    Ability::Hang,
    Ability::HalfOpen,
    Ability::LoseReply,
    Ability::DelayReplies,
    Ability::Residue,
];

/// sqlx waits for the answer to each part of a statement, so a step takes two trips, and four on a new connection: replies that are as late as the suite makes them
/// would leave no time to renew a lease of a second.
const MANY_TRIPS: &[Ability] = &[
    Ability::Cut,
    Ability::Hang,
    Ability::HalfOpen,
    Ability::LoseReply,
    Ability::Expire,
    Ability::Residue,
];

/// The cases have runtimes of their own; what the server needs outlives them here.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

/// How clients get to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In this mode.
    Direct(&'static str),
    Bouncer,
    /// By a pool of this kind.
    Pool(&'static str),
}

/// A server, perhaps with a pooler in front.
struct Store {
    name: &'static str,
    prefix: &'static str,
    way: Way,
    /// Once it runs.
    url: OnceLock<String>,
    server: OnceCell<PostgresServer>,
    bouncer: OnceCell<PgBouncerServer>,
}

/// `POOL+postgres://…` is by a pool.
async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let config = match url.split_once("+") {
        Some(("deadpool", url)) => {
            over(Config::over_deadpool(deadpool(url)?), url)?.listening_at(url)?
        }
        Some(("sqlx", url)) => over(Config::over_sqlx(sqlx_pool(url)?), url)?,
        _ => Config::from_url(url)?,
    };
    Ok(Arc::new(config.connect().await?))
}

/// With the tables that the URL names.
fn over(config: Config, url: &str) -> Result<Config> {
    let prefix = BackendUrl::parse(url)?.take::<String>("table_prefix")?;
    Ok(config.table_prefix(prefix.unwrap_or_default()))
}

/// As the crate's README advises: with time-outs.
fn deadpool(url: &str) -> Result<deadpool_postgres::Pool> {
    use deadpool_postgres::{Manager, Pool, Runtime};
    let plain = url.split('?').next().unwrap_or(url);
    let mut config: tokio_postgres::Config = plain.parse().map_err(broken)?;
    config
        .connect_timeout(POOL_PATIENCE)
        .application_name("pool");
    let pool = Pool::builder(Manager::new(config, tokio_postgres::NoTls))
        .max_size(16)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_PATIENCE))
        .create_timeout(Some(POOL_PATIENCE));
    pool.build().map_err(broken)
}

fn sqlx_pool(url: &str) -> Result<sqlx::PgPool> {
    let plain = url.split('?').next().unwrap_or(url);
    let options: sqlx::postgres::PgConnectOptions = plain.parse().map_err(broken)?;
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(POOL_PATIENCE)
        .test_before_acquire(false);
    Ok(pool.connect_lazy_with(options.application_name("pool")))
}

/// As long as a client of our own waits for a connection: the machine may be busy.
const POOL_PATIENCE: Duration = Duration::from_secs(5);

fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own server: {error}"))
}

impl Store {
    fn harness(name: &'static str, prefix: &'static str, way: Way) -> Arc<dyn Harness> {
        Arc::new(Self {
            name,
            prefix,
            way,
            url: OnceLock::new(),
            server: OnceCell::new(),
            bouncer: OnceCell::new(),
        })
    }

    fn mode(&self) -> &'static str {
        match self.way {
            Way::Direct(mode) => mode,
            _ => "lease",
        }
    }

    async fn server(&self) -> Result<&PostgresServer> {
        let start = || async {
            RUNTIME
                .spawn(PostgresServer::start())
                .await
                .expect("its task")
        };
        self.server.get_or_try_init(start).await.map_err(broken)
    }

    /// Where clients connect to.
    async fn addr(&self) -> Result<std::net::SocketAddr> {
        let server = self.server().await?.addr();
        let addr = match self.way {
            Way::Direct(_) | Way::Pool(_) => server,
            Way::Bouncer => {
                let settings = PgBouncer {
                    to: server,
                    mode: "transaction",
                    size: 20,
                };
                let start = || async {
                    let start = RUNTIME.spawn(PgBouncerServer::start_with(settings));
                    start.await.expect("its task")
                };
                let bouncer = self.bouncer.get_or_try_init(start).await;
                bouncer.map_err(broken)?.addr()
            }
        };
        self.url.get_or_init(|| self.url(addr));
        Ok(addr)
    }

    fn url(&self, addr: std::net::SocketAddr) -> String {
        let pool = match self.way {
            Way::Pool(pool) => format!("{pool}+"),
            _ => String::new(),
        };
        let url = format!("{pool}postgres://dlock@{addr}/dlock");
        let (prefix, mode) = (self.prefix, self.mode());
        with(&url, &format!("table_prefix={prefix}&mode={mode}"))
    }

    async fn admin(&self) -> Result<tokio_postgres::Client> {
        Ok(connection(&self.server().await?.url()).await)
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        self.name
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.url(self.addr().await?)).await
    }

    fn abilities(&self) -> &'static [Ability] {
        match self.way {
            Way::Direct("session") => CONNECTED,
            Way::Pool("sqlx") => MANY_TRIPS,
            _ => Ability::COMMON,
        }
    }

    fn holds_outlive_connections(&self) -> bool {
        self.mode() == "lease"
    }

    /// A connection of mode session that falls silent is ended by the server after a validity, and the next holder waits for another one.
    fn timings(&self) -> Timings {
        match self.mode() {
            "lease" => Timings::default(),
            _ => Timings::default().tolerance(Duration::from_secs(4)),
        }
    }

    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Deny | Ability::Skew => {
                Some("postgres_rights_and_clocks.rs asks those cases, with servers of its own")
            }
            _ => None,
        }
    }

    async fn faulty(&self) -> Result<Faulty> {
        let fault = ProxyFault::start(&[self.addr().await?]).await?;
        Ok(Faulty {
            backend: open(&self.url(fault.addrs()[0])).await?,
            fault: Arc::new(fault),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        let admin = self.admin().await?;
        for table in ["locks", "holders"] {
            let sql = format!(
                "UPDATE {}{table} SET expires_at = clock_timestamp() - interval '1 second' \
                 WHERE name = $1 AND expires_at > clock_timestamp()",
                self.prefix
            );
            admin
                .execute(&sql, &[&name.as_str()])
                .await
                .map_err(broken)?;
        }
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let admin = self.admin().await?;
        let mut left = Residue::new();
        let prefix = self.prefix;
        let mut count = async |what: &str, sql: String| -> Result<()> {
            let sql = format!("SELECT count(*) FROM {sql}");
            let row = admin.query_one(&sql, &[]).await.map_err(broken)?;
            left.insert(what.to_owned(), row.get::<_, i64>(0).unsigned_abs());
            Ok(())
        };
        if self.mode() == "session" {
            count("marks", format!("{prefix}sessions WHERE owner IS NOT NULL")).await?;
        }
        count("holds", format!("{prefix}locks WHERE owner IS NOT NULL")).await?;
        count("holders", format!("{prefix}holders")).await?;
        count("waiters", format!("{prefix}waiters")).await?;
        // The pooler keeps its own.
        if self.way != Way::Bouncer {
            let connections = "pg_stat_activity WHERE application_name = 'dlock'";
            count("connections", connections.to_owned()).await?;
        }
        let transactions =
            "pg_stat_activity WHERE application_name = 'dlock' AND xact_start IS NOT NULL";
        count("transactions", transactions.to_owned()).await?;
        count(
            "advisory",
            "pg_locks WHERE locktype = 'advisory'".to_owned(),
        )
        .await?;
        Ok(left)
    }

    fn address(&self) -> String {
        self.url.get().cloned().unwrap_or_default()
    }
}
