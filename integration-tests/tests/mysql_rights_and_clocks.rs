//! The cases of the conformance suite about rights that are taken away and clocks that are wrong, against MariaDB and MySQL.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and tells what it has seen"
)]

#[macro_use]
#[allow(unused_macros, reason = "the harness names its own tests")]
mod mysql_support;
mod rights_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_conformance::{Ability, Faulty, Harness, async_trait};
use dlock_core::Result;
use dlock_core::backend::Backend;
use dlock_mysql::Config;
use integration_tests::{Clock, Flavor, MySql, MySqlServer};
use mysql_support::with;
use rights_support::{Denial, RUNTIME, Rights, all_pass, broken};

struct Store {
    mode: &'static str,
    server: Arc<MySqlServer>,
    clock: Clock,
    users: AtomicUsize,
}

impl Store {
    fn start(flavor: Flavor, mode: &'static str) -> Arc<dyn Harness> {
        let clock = Clock::new().expect("libfaketime");
        let settings = MySql {
            flavor,
            env: clock.env(),
            ..MySql::default()
        };
        let server = RUNTIME.block_on(MySqlServer::start_with(settings));
        Arc::new(Self {
            mode,
            server: Arc::new(server.expect("a server")),
            clock,
            users: AtomicUsize::new(0),
        })
    }

    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>> {
        let url = with(url, &format!("mode={}&session_validity=3s", self.mode));
        Ok(Arc::new(Config::from_url(&url)?.connect().await?))
    }
}

#[async_trait]
impl Harness for Store {
    fn name(&self) -> &str {
        self.mode
    }

    async fn connect(&self) -> Result<Arc<dyn Backend>> {
        self.open(&self.server.url()).await
    }

    fn holds_outlive_connections(&self) -> bool {
        matches!(self.mode, "lease" | "unique")
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Deny, Ability::Skew]
    }

    /// A client with a user of its own.
    async fn faulty(&self) -> Result<Faulty> {
        let user = format!("client_{}", self.users.fetch_add(1, Ordering::Relaxed));
        // The tables have been made by another client, with its rights.
        let tables =
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dlock'";
        let tables = self.server.sql(tables).await.map_err(broken)?;
        let rights = TableRights {
            server: self.server.clone(),
            user: user.clone(),
            tables: tables.lines().map(str::to_owned).collect(),
        };
        let user = format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 's3cret'");
        self.server.sql(&user).await.map_err(broken)?;
        rights.give_back().await?;
        let url = self.server.url();
        let url = url.replace("root:dlock@", &format!("{}:s3cret@", rights.user));
        Ok(Faulty {
            backend: self.open(&url).await?,
            fault: Arc::new(Denial(rights)),
        })
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.clock.set(seconds_ahead).map_err(broken)?;
        // A library that was not loaded, or a server that does not ask it, would pass everything.
        let shown = self.server.sql("SELECT UNIX_TIMESTAMP()").await;
        let shown = shown.map_err(broken)?;
        let shown = shown.trim().parse().map_err(broken)?;
        Clock::check(seconds_ahead, shown).map_err(broken)
    }
}

/// The rights on the tables. Those on a database reach a connection that is open only when it chooses its database anew.
struct TableRights {
    server: Arc<MySqlServer>,
    user: String,
    tables: Vec<String>,
}

impl TableRights {
    async fn each(&self, statement: impl Fn(&str, &str) -> String) -> Result<()> {
        let of_one = |table: &String| statement(&format!("dlock.`{table}`"), &self.user);
        let all: Vec<String> = self.tables.iter().map(of_one).collect();
        let all = all.join("; ");
        self.server.sql(&all).await.map(drop).map_err(broken)
    }
}

#[async_trait]
impl Rights for TableRights {
    async fn take_away(&self) -> Result<()> {
        let rights = "SELECT, INSERT, UPDATE, DELETE";
        self.each(|table, user| format!("REVOKE {rights} ON {table} FROM {user}@'127.0.0.1'"))
            .await
    }

    async fn give_back(&self) -> Result<()> {
        let rights = "SELECT, INSERT, UPDATE, DELETE";
        self.each(|table, user| format!("GRANT {rights} ON {table} TO {user}@'127.0.0.1'"))
            .await
    }
}

fn flavors() -> impl Iterator<Item = Flavor> {
    Flavor::ALL.into_iter().filter(|flavor| flavor.is_tested())
}

#[test]
fn what_is_refused_holds_nothing_and_is_told() {
    for flavor in flavors() {
        for mode in ["lease", "unique"] {
            all_pass(&Store::start(flavor, mode), Ability::Deny, 6, &[]);
        }
    }
}

/// A session's hold is a row lock or a `GET_LOCK`, which the connection keeps whatever its user may do: renewals ask nothing that could be refused.
#[test]
fn sessions_whose_rights_are_taken_away_get_nothing_new() {
    for flavor in flavors() {
        for mode in ["session", "advisory"] {
            all_pass(&Store::start(flavor, mode), Ability::Deny, 6, &[]);
        }
    }
}

#[test]
fn a_clock_of_the_server_that_is_wrong_does_no_harm() {
    for flavor in flavors() {
        for (mode, cases) in [("lease", 2), ("unique", 2), ("session", 1), ("advisory", 1)] {
            all_pass(&Store::start(flavor, mode), Ability::Skew, cases, &[]);
        }
    }
}
