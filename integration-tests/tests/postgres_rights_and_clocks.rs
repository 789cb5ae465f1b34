//! The cases of the conformance suite about rights that are taken away and clocks that are wrong, against PostgreSQL.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test ends where its expectation breaks, and tells what it has seen"
)]

mod postgres_support;
mod rights_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_conformance::{Ability, Faulty, Harness, async_trait};
use dlock_core::Result;
use dlock_core::backend::Backend;
use dlock_postgres::Config;
use integration_tests::{Clock, Postgres, PostgresServer};
use postgres_support::with;
use rights_support::{Denial, RUNTIME, Rights, all_pass, broken};

struct Store {
    mode: &'static str,
    server: Arc<PostgresServer>,
    clock: Clock,
    users: AtomicUsize,
}

impl Store {
    fn start(mode: &'static str) -> Arc<dyn Harness> {
        let clock = Clock::new().expect("libfaketime");
        clock.open_to_all().expect("a clock for another user");
        let settings = Postgres {
            env: clock.env(),
            ..Postgres::default()
        };
        let server = RUNTIME.block_on(PostgresServer::start_with(settings));
        Arc::new(Self {
            mode,
            server: Arc::new(server.expect("a server")),
            clock,
            users: AtomicUsize::new(0),
        })
    }

    async fn open(&self, url: &str) -> Result<Arc<dyn Backend>> {
        let url = with(url, &format!("mode={}", self.mode));
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
        self.mode == "lease"
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Deny, Ability::Skew]
    }

    /// A client with a user of its own, who may what the owner of the tables may.
    async fn faulty(&self) -> Result<Faulty> {
        let user = format!("client_{}", self.users.fetch_add(1, Ordering::Relaxed));
        let make = format!("CREATE ROLE {user} LOGIN PASSWORD 's3cret'");
        self.server.sql(&make).await.map_err(broken)?;
        let rights = Membership {
            server: self.server.clone(),
            user: user.clone(),
        };
        rights.give_back().await?;
        let url = self.server.url();
        let url = url.replace("dlock@", &format!("{user}:s3cret@"));
        Ok(Faulty {
            backend: self.open(&url).await?,
            fault: Arc::new(Denial(rights)),
        })
    }

    async fn set_clock(&self, seconds_ahead: i64) -> Result<()> {
        self.clock.set(seconds_ahead).map_err(broken)?;
        // A library that was not loaded, or a server that does not ask it, would pass everything.
        let shown = "SELECT extract(epoch FROM clock_timestamp())::bigint";
        let shown = self.server.sql(shown).await.map_err(broken)?;
        let shown = shown.trim().parse().map_err(broken)?;
        Clock::check(seconds_ahead, shown).map_err(broken)
    }
}

/// To be a member of the role that owns the tables is what gives the rights. A change is seen by connections that are open, too.
struct Membership {
    server: Arc<PostgresServer>,
    user: String,
}

#[async_trait]
impl Rights for Membership {
    async fn take_away(&self) -> Result<()> {
        let sql = format!("REVOKE dlock FROM {}", self.user);
        self.server.sql(&sql).await.map(drop).map_err(broken)
    }

    async fn give_back(&self) -> Result<()> {
        let sql = format!("GRANT dlock TO {}", self.user);
        self.server.sql(&sql).await.map(drop).map_err(broken)
    }
}

#[test]
fn what_is_refused_holds_nothing_and_is_told() {
    all_pass(&Store::start("lease"), Ability::Deny, 6, &[]);
}

#[test]
fn sessions_whose_rights_are_taken_away_get_nothing_new() {
    all_pass(&Store::start("session"), Ability::Deny, 6, &[]);
}

#[test]
fn a_clock_of_the_server_that_is_wrong_does_no_harm() {
    for (mode, cases) in [("lease", 2), ("session", 1)] {
        all_pass(&Store::start(mode), Ability::Skew, cases, &[]);
    }
}
