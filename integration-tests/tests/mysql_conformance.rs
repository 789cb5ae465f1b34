//! The whole conformance suite against MySQL or MariaDB, in each mode.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[allow(unused_macros, reason = "the harness names its own tests")]
mod mysql_support;

use std::process::ExitCode;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use dlock_conformance::proxy::ProxyFault;
use dlock_conformance::{Ability, Faulty, Harness, Residue, Timings, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Name, Result};
use dlock_mysql::Config;
use integration_tests::{Endpoint, Flavor, MySql};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use mysql_support::{plain, with};

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| open(url).await) {
        return code;
    }
    let modes = [
        ("lease", Ability::COMMON),
        ("unique", Ability::COMMON),
        ("session", CONNECTED),
        ("advisory", CONNECTED),
    ];
    let mut stores: Vec<Arc<dyn Harness>> = Vec::new();
    for flavor in Flavor::ALL.into_iter().filter(|flavor| flavor.is_tested()) {
        stores.extend(modes.map(|(mode, abilities)| -> Arc<dyn Harness> {
            Arc::new(Store {
                name: format!("{}_{mode}", flavor.as_str()),
                flavor,
                mode,
                abilities,
            })
        }));
    }
    if !std::env::args().any(|arg| arg == "--list") {
        // Their start is no part of a case's time: beside a busy machine it takes longer than all of a case may.
        for flavor in Flavor::ALL.into_iter().filter(|flavor| flavor.is_tested()) {
            let started = RUNTIME.block_on(server(flavor));
            started.unwrap_or_else(|error| panic!("{}: {error}", flavor.as_str()));
        }
    }
    dlock_conformance::main_all(stores)
}

/// The cases have runtimes of their own; what the server needs outlives them here.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

/// The URL of each server, once it runs.
static URLS: [OnceLock<String>; 2] = [OnceLock::new(), OnceLock::new()];

/// The shared server, with the locks of one mode.
struct Store {
    name: String,
    flavor: Flavor,
    mode: &'static str,
    abilities: &'static [Ability],
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

fn url_of(flavor: Flavor) -> &'static OnceLock<String> {
    &URLS[usize::from(flavor == Flavor::MySql)]
}

async fn server(flavor: Flavor) -> Result<&'static Endpoint<MySql>> {
    let started = RUNTIME.spawn(integration_tests::mysql_of(flavor)).await;
    let server = started.expect("the server's task").map_err(broken)?;
    url_of(flavor).get_or_init(|| server.url().to_owned());
    Ok(server)
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Store, format!("the test's own server: {error}"))
}

impl Store {
    fn with_mode(&self, url: &str) -> String {
        // Each mode has its own tables, as if the server were another one. A process that is stalled for longer than the validity loses its
        // holds in earnest, so it is longer than a busy machine stalls.
        let mode = self.mode;
        with(
            url,
            &format!("mode={mode}&table_prefix=c_{mode}_&session_validity=3s"),
        )
    }

    /// Runs SQL as an administrator would: the first column of each row, as text.
    async fn sql(&self, sql: &str, args: Vec<mysql_async::Value>) -> Result<Vec<String>> {
        let url = plain(server(self.flavor).await?.url());
        let mut conn = Conn::new(Opts::from_url(url).map_err(broken)?)
            .await
            .map_err(broken)?;
        let rows: Vec<String> = conn.exec(sql, args).await.map_err(broken)?;
        conn.disconnect().await.map_err(broken)?;
        Ok(rows)
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        &self.name
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        open(&self.with_mode(server(self.flavor).await?.url())).await
    }

    fn abilities(&self) -> &'static [Ability] {
        self.abilities
    }

    /// A connection that falls silent in `session` and `advisory` is ended by the server after a validity, and the next holder waits for
    /// another one.
    fn timings(&self) -> Timings {
        match self.mode {
            "lease" | "unique" => Timings::default(),
            _ => Timings::default().tolerance(Duration::from_secs(4)),
        }
    }

    fn holds_outlive_connections(&self) -> bool {
        matches!(self.mode, "lease" | "unique")
    }

    fn why_not(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Deny | Ability::Skew => {
                Some("mysql_rights_and_clocks.rs asks those cases, with servers of its own")
            }
            _ => None,
        }
    }

    async fn faulty(&self) -> Result<Faulty> {
        let server = server(self.flavor).await?;
        let fault = ProxyFault::start(&[server.addr().map_err(broken)?]).await?;
        let url = server.url_through(fault.addrs()[0]).map_err(broken)?;
        Ok(Faulty {
            backend: open(&self.with_mode(&url)).await?,
            fault: Arc::new(fault),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        let tables: &[&str] = match self.mode {
            "lease" => &["locks", "holders"],
            _ => &["unique"],
        };
        for table in tables {
            let sql = format!(
                "UPDATE c_{}_{table} SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND \
                 WHERE name = ? AND expires_at > UTC_TIMESTAMP(6)",
                self.mode
            );
            self.sql(&sql, vec![name.as_bytes().to_vec().into()])
                .await?;
        }
        Ok(())
    }

    async fn residue(&self) -> Result<Residue> {
        let mut left = Residue::new();
        let mut count = async |what: &str, sql: String| -> Result<()> {
            let rows = self
                .sql(&format!("SELECT CAST(COUNT(*) AS CHAR) FROM {sql}"), vec![])
                .await?;
            left.insert(
                what.to_owned(),
                rows.first()
                    .and_then(|count| count.parse().ok())
                    .unwrap_or(0),
            );
            Ok(())
        };
        match self.mode {
            "lease" => {
                count("holds", "c_lease_locks WHERE owner IS NOT NULL".to_owned()).await?;
                count("holders", "c_lease_holders".to_owned()).await?;
            }
            "unique" => count("holds", "c_unique_unique WHERE name >= 0x01".to_owned()).await?,
            _ => {}
        }
        // MySQL's process list fails (error 3854) while a statement with bytes that are no text runs, as our own have them.
        let connections = match self.flavor {
            Flavor::MariaDb => "information_schema.processlist WHERE db = DATABASE()",
            Flavor::MySql => "performance_schema.threads WHERE processlist_db = DATABASE()",
        };
        count("connections", connections.to_owned()).await?;
        count("transactions", "information_schema.innodb_trx".to_owned()).await?;
        Ok(left)
    }

    fn address(&self) -> String {
        url_of(self.flavor)
            .get()
            .map(|url| self.with_mode(url))
            .unwrap_or_default()
    }
}
