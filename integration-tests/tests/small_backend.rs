//! The backend of docs/write-a-backend.md, and all that it takes to run the conformance suite against it.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test ends where its expectation breaks"
)]

#[path = "small_backend/backend.rs"]
mod backend;

// [harness]
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use backend::Config;
use dlock_conformance::proxy::ProxyFault;
use dlock_conformance::{Ability, Faulty, Harness, Residue, async_trait};
use dlock_core::backend::Backend;
use dlock_core::{Error, ErrorKind, Name, Result};
use integration_tests::PostgresServer;

/// Every case has a runtime of its own; the server outlives them all in this one.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().expect("a runtime"));

struct Small {
    server: PostgresServer,
}

fn url(addr: SocketAddr) -> String {
    format!("pgsmall://dlock@{addr}/dlock")
}

async fn connect(url: &str) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Config::from_url(url)?.connect().await?))
}

impl Small {
    /// What an administrator sees.
    async fn sql(&self, sql: &str) -> Result<String> {
        let failed = |error| Error::new(ErrorKind::Store, format!("{sql}: {error}"));
        self.server.sql(sql).await.map_err(failed)
    }
}

#[async_trait]
impl Harness for Small {
    fn name(&self) -> &str {
        "pgsmall"
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        connect(&self.address()).await
    }

    fn abilities(&self) -> &'static [Ability] {
        Ability::COMMON
    }

    async fn faulty(&self) -> Result<Faulty> {
        let fault = ProxyFault::start(&[self.server.addr()]).await?;
        Ok(Faulty {
            backend: connect(&url(fault.addrs()[0])).await?,
            fault: Arc::new(fault),
        })
    }

    async fn expire(&self, name: &Name) -> Result<()> {
        let sql = format!("UPDATE small_locks SET ends = '-infinity' WHERE name = '{name}'");
        self.sql(&sql).await.map(drop)
    }

    async fn residue(&self) -> Result<Residue> {
        let mut left = Residue::new();
        for (what, sql) in [
            ("holds", "small_locks WHERE owner IS NOT NULL"),
            (
                "connections",
                "pg_stat_activity WHERE application_name = 'pgsmall'",
            ),
        ] {
            let count = self.sql(&format!("SELECT count(*) FROM {sql}")).await?;
            left.insert(what.to_owned(), count.trim().parse().unwrap_or(u64::MAX));
        }
        Ok(left)
    }

    fn address(&self) -> String {
        url(self.server.addr())
    }
}

fn main() -> ExitCode {
    if let Some(code) = dlock_conformance::process::serve(async |url| connect(url).await) {
        return code;
    }
    let server = RUNTIME
        .block_on(PostgresServer::start())
        .expect("PostgreSQL");
    dlock_conformance::main(Small { server })
}
// [end]
