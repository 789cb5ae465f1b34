mod mode;
mod server_address;
mod url;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use dlock_core::backend::Host;
use dlock_core::kit::{self, Login, TIMEOUTS, Tls, TlsOffer, within};
use dlock_core::{Error, Result};

pub use self::mode::LockMode;
pub(crate) use self::server_address::ServerAddress;
use crate::PostgresBackend;
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
use crate::connect::Guest;
use crate::key::{check_prefix, check_schema};

pub(crate) const DEFAULT_PORT: u16 = 5432;
const SHORTEST_WAITER_LEASE: Duration = Duration::from_millis(500);
const LONGEST_WAITER_LEASE: Duration = Duration::from_secs(3600);
const SHORTEST_VALIDITY: Duration = Duration::from_millis(500);
const LONGEST_VALIDITY: Duration = Duration::from_secs(86_400);

const TLS: TlsOffer = TlsOffer {
    crate_name: "dlock-postgres",
    enabled: cfg!(feature = "tls"),
    system_ca: true,
    unverified: true,
    server_name: true,
};

/// Where the database is, and how its locks are kept.
///
/// ```
/// use std::time::Duration;
/// use dlock_postgres::Config;
///
/// let config = Config::from_url("postgres://app:s3cret@db:5432/shop?table_prefix=locks_")?
///     .connect_timeout(Duration::from_secs(1));
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    pub(crate) servers: Vec<ServerAddress>,
    pub(crate) login: Login,
    pub(crate) database: Option<String>,
    pub(crate) mode: LockMode,
    pub(crate) schema: String,
    pub(crate) table_prefix: String,
    pub(crate) create_tables: bool,
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) waiter_lease: Duration,
    pub(crate) session_validity: Duration,
    pub(crate) max_sessions: usize,
    pub(crate) listen: bool,
    pub(crate) prepare: bool,
    pub(crate) tls: Option<Tls>,
    pub(crate) application_name: String,
    pub(crate) options: Option<String>,
    /// Whose connections carry the statements, if not our own.
    #[cfg(any(feature = "deadpool", feature = "sqlx"))]
    pub(crate) guest: Option<Guest>,
}

impl Config {
    /// A database on a server, by its name.
    pub fn new(host: impl Into<String>, port: u16, database: impl Into<String>) -> Self {
        let host = Host {
            name: host.into(),
            port: Some(port),
        };
        Self::at(vec![ServerAddress::Tcp(host)]).database(database)
    }

    /// A database on a server on this machine, by the folder of its socket and the port in the socket's name.
    pub fn unix(folder: impl Into<PathBuf>, port: u16, database: impl Into<String>) -> Self {
        Self::at(vec![ServerAddress::Unix(folder.into(), port)]).database(database)
    }

    fn at(servers: Vec<ServerAddress>) -> Self {
        Self {
            servers,
            login: Login::default(),
            database: None,
            mode: LockMode::Lease,
            schema: "public".to_owned(),
            table_prefix: "dlock_".to_owned(),
            create_tables: true,
            connections: 8,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(5),
            waiter_lease: Duration::from_secs(6),
            session_validity: Duration::from_secs(3),
            max_sessions: 64,
            listen: true,
            prepare: true,
            tls: None,
            application_name: "dlock".to_owned(),
            options: None,
            #[cfg(any(feature = "deadpool", feature = "sqlx"))]
            guest: None,
        }
    }

    /// Locks by the connections of a pool that you have (feature `deadpool`), so that they and the work share one.
    ///
    /// A connection is borrowed for one statement at a time, and [`connections`](Config::connections) bounds how many at once, with two
    /// more for renewals. Waiters ask again with random pauses of at most 50 ms, as nobody listens: that takes a connection of its own,
    /// for which [`listening_at`](Config::listening_at) tells the place.
    ///
    /// ```no_run
    /// # async fn open(pool: deadpool_postgres::Pool) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = dlock_core::Locks::new(dlock_postgres::Config::over_deadpool(pool.clone()).connect().await?)?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// let client = pool.get().await?;
    /// client.execute("UPDATE stock SET n = n - 1 WHERE id = 42", &[]).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "deadpool")]
    pub fn over_deadpool(pool: deadpool_postgres::Pool) -> Self {
        let mut config = Self::at(Vec::new());
        config.guest = Some(Guest::Deadpool(pool));
        config
    }

    /// Locks by the connections of a pool of the crate sqlx (feature `sqlx`), so that they and the work share one. What
    /// [`over_deadpool`](Config::over_deadpool) says holds here too. The pool must not go through a pooler that shares connections (a PgBouncer in
    /// transaction mode): sqlx sends a statement in two steps, between which such a pooler may change the connection.
    ///
    /// ```no_run
    /// # async fn open(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = dlock_core::Locks::new(dlock_postgres::Config::over_sqlx(pool.clone()).connect().await?)?;
    /// let guard = locks.mutex("stock:42")?.lock().await?;
    /// sqlx::query("UPDATE stock SET n = n - 1 WHERE id = 42").execute(&pool).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sqlx")]
    pub fn over_sqlx(pool: sqlx::PgPool) -> Self {
        let mut config = Self::at(Vec::new());
        config.guest = Some(Guest::Sqlx(pool));
        config
    }

    /// Statements by the pool that is set, and one more connection, which listens for grants, at the place of a URL: waiters then wake at once. Other
    /// settings, login and certificates among them, stay as they are, unless the URL names them. It must lead to the database of the pool, at a server that
    /// takes writes, for a standby lets nobody listen; both are checked at connect.
    ///
    /// # Errors
    ///
    /// When the URL is wrong, or turns off the TLS that is set.
    #[cfg(any(feature = "deadpool", feature = "sqlx"))]
    pub fn listening_at(self, url: &str) -> Result<Self> {
        self.with_url(url)
    }

    /// Whether the statements go by a pool of the user.
    pub(crate) fn is_guest(&self) -> bool {
        #[cfg(any(feature = "deadpool", feature = "sqlx"))]
        let guest = self.guest.is_some();
        #[cfg(not(any(feature = "deadpool", feature = "sqlx")))]
        let guest = false;
        guest
    }

    /// The mode. Default: [`LockMode::Lease`].
    pub fn with_mode(mut self, mode: LockMode) -> Self {
        self.mode = mode;
        self
    }

    /// The mode that is set.
    pub fn mode(&self) -> LockMode {
        self.mode
    }

    /// The database. Default: the one named like the user, as libpq has it.
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// The schema of our tables, whatever the search path is. Default: `public`. Small letters, digits and `_`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// What the names of our tables and functions begin with. Default: `dlock_`. Small letters, digits and `_`, at most 40 of them.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Whether missing tables and functions are created at connect. Default: yes. Without the right to create them, run
    /// [`migration`](crate::migration) by hand.
    pub fn create_tables(mut self, on: bool) -> Self {
        self.create_tables = on;
        self
    }

    /// The most connections that are shared by the calls of this client. Default: 8. More let more calls run at the same time; they
    /// are opened when needed. One more listens. From 1 to 10,000.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// The longest time to connect and log in, at each host. Default: 5 s. From 1 ms to 10 min.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The longest time to wait for the answer to a statement, the retries after a deadlock included. Default: 5 s. From 1 ms to 10 min.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// How long a waiter keeps its place in the queue without a sign of life, of which it gives four within this time. Default: 6 s.
    /// From 0.5 s to an hour. A waiter that dies is noticed sooner if its connection ends.
    pub fn waiter_lease(mut self, lease: Duration) -> Self {
        self.waiter_lease = lease;
        self
    }

    /// Mode `session`: for how long a sign of life of its connection makes a hold valid. Default: 3 s. From 0.5 s to a day.
    ///
    /// It takes the place of the lease: each hold asks its server three times within it. When a holder ends without giving its lock back, the
    /// next one waits this long before it holds, because the former may not know yet. Shorter frees the lock sooner after a crash; longer
    /// survives longer outages. Programs that share a lock may differ in it.
    pub fn session_validity(mut self, validity: Duration) -> Self {
        self.session_validity = validity;
        self
    }

    /// Mode `session`: the most connections of holders and waiters, each of which needs one. Default: 64. From 1 to 10,000.
    pub fn max_sessions(mut self, most: usize) -> Self {
        self.max_sessions = most;
        self
    }

    /// Whether a connection of its own listens for grants. Default: yes. Without it waiters keep their places in the queue, and ask again
    /// with random pauses of at most 50 ms; that is also what happens behind a pooler that gives connections to others after each
    /// transaction.
    pub fn listen(mut self, on: bool) -> Self {
        self.listen = on;
        self
    }

    /// Whether the server is told each statement once for a connection, instead of each time. Default: yes. Behind a pooler that gives
    /// connections to others after each transaction it is not done in any case.
    pub fn prepare(mut self, on: bool) -> Self {
        self.prepare = on;
        self
    }

    /// How the connections are called in the server's lists (`pg_stat_activity`). Default: `dlock`.
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// Settings of the server for our connections, as in `-c statement_timeout=5s`. Default: none. Many poolers refuse them.
    pub fn options(mut self, options: impl Into<String>) -> Self {
        self.options = Some(options.into());
        self
    }

    /// Connects, checks the server, and creates the tables and functions if they are missing.
    ///
    /// # Errors
    ///
    /// When a setting is wrong, the server cannot be reached or refuses us, or cannot keep locks in this mode.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, tables may have been created, and nothing else.
    pub async fn connect(self) -> Result<PostgresBackend> {
        dlock_core::backend::need_runtime("postgres")?;
        PostgresBackend::connect(self).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_schema(&self.schema)?;
        check_prefix(&self.table_prefix)?;
        if self.is_guest() && self.mode == LockMode::Session {
            return Err(Error::invalid(
                "mode=session needs connections of its own: leave the pool out, or use mode=lease",
            ));
        }
        if self.servers.is_empty() && !self.is_guest() {
            return Err(Error::invalid(
                "no host is named: write postgres://user@host:port/database, or give a socket's folder as host=/run/postgresql",
            ));
        }
        within("connections", self.connections, 1..=10_000)?;
        within("max_sessions", self.max_sessions, 1..=10_000)?;
        within("connect_timeout", self.connect_timeout, TIMEOUTS)?;
        within("answer_timeout", self.answer_timeout, TIMEOUTS)?;
        within(
            "session_validity",
            self.session_validity,
            SHORTEST_VALIDITY..=LONGEST_VALIDITY,
        )?;
        within(
            "waiter_lease",
            self.waiter_lease,
            SHORTEST_WAITER_LEASE..=LONGEST_WAITER_LEASE,
        )?;
        self.login.check()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check(TLS))?;
        let is_socket = |server: &ServerAddress| matches!(server, ServerAddress::Unix(..));
        if self.tls.is_some() && self.servers.iter().any(is_socket) {
            return Err(Error::invalid(
                "a socket on this machine has no TLS: leave tls and sslmode out, or name a host",
            ));
        }
        Ok(())
    }

    pub(crate) fn all_places(&self) -> String {
        let all: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        all.join(",")
    }
}

kit::network_settings!(Config);

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.all_places())
            .field("login", &self.login)
            .field("database", &self.database)
            .field("mode", &self.mode)
            .field("schema", &self.schema)
            .field("table_prefix", &self.table_prefix)
            .field("create_tables", &self.create_tables)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("waiter_lease", &self.waiter_lease)
            .field("session_validity", &self.session_validity)
            .field("max_sessions", &self.max_sessions)
            .field("listen", &self.listen)
            .field("prepare", &self.prepare)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}
