mod mode;
mod url;

use std::fmt;
use std::time::Duration;

use dlock_core::Result;
use dlock_core::backend::Host;
use dlock_core::kit::{self, Login, TIMEOUTS, Tls, TlsOffer, within};

pub use self::mode::LockMode;
use crate::MySqlBackend;
use crate::key::check_prefix;

const DEFAULT_PORT: u16 = 3306;
const SHORTEST_VALIDITY: Duration = Duration::from_millis(500);
const LONGEST_VALIDITY: Duration = Duration::from_secs(86_400);

const TLS: TlsOffer = TlsOffer {
    crate_name: "dlock-mysql",
    enabled: cfg!(feature = "tls"),
    system_ca: false,
    unverified: true,
    server_name: true,
};

/// Where the database is, and how its locks are kept.
///
/// ```
/// use std::time::Duration;
/// use dlock_mysql::{Config, LockMode};
///
/// let config = Config::from_url("mysql://app:s3cret@db:3306/shop?mode=lease&table_prefix=locks_")?
///     .connect_timeout(Duration::from_secs(1));
/// assert_eq!(config.mode(), LockMode::Lease);
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    pub(crate) host: Host,
    pub(crate) login: Login,
    pub(crate) database: String,
    pub(crate) mode: LockMode,
    pub(crate) table_prefix: String,
    pub(crate) create_tables: bool,
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) session_validity: Duration,
    pub(crate) max_sessions: usize,
    pub(crate) bells: usize,
    pub(crate) tls: Option<Tls>,
    /// The application's own connections, in place of those that are made here.
    pub(crate) pool: Option<mysql_async::Pool>,
}

impl Config {
    /// A database on a server, by its name.
    pub fn new(host: impl Into<String>, port: u16, database: impl Into<String>) -> Self {
        Self::at(
            Host {
                name: host.into(),
                port: Some(port),
            },
            database.into(),
        )
    }

    fn at(host: Host, database: String) -> Self {
        Self {
            host,
            login: Login::default(),
            database,
            mode: LockMode::Lease,
            table_prefix: "dlock_".to_owned(),
            create_tables: true,
            connections: 16,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(5),
            session_validity: Duration::from_secs(3),
            max_sessions: 64,
            bells: 4,
            tls: None,
            pool: None,
        }
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

    /// What the names of our tables begin with. Default: `dlock_`. Letters, digits and `_`, at most 40 of them.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Whether missing tables are created at connect. Default: yes. Without the right to create tables, run
    /// [`migration`](crate::migration) by hand.
    pub fn create_tables(mut self, on: bool) -> Self {
        self.create_tables = on;
        self
    }

    /// The most connections that are shared by the calls of this client. Default: 16. More let more calls run at the same time; they
    /// are opened when needed. From 1 to 10,000.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most;
        self
    }

    /// Modes `session` and `advisory`: the most holders and waiters of this client, each of which has a connection of its own. Default:
    /// 64. An acquire above it fails with a message that says so. The server's `max_connections` must have room for it. From 1 to 10,000.
    pub fn max_sessions(mut self, most: usize) -> Self {
        self.max_sessions = most;
        self
    }

    /// Modes `lease` and `unique`: the most connections of this client on which the server wakes those who wait, beside those that calls
    /// [share](Config::connections). Default: 4. Each name that is waited for uses one, until the hold that came of it ends; whoever gets none
    /// asks again with pauses. They are opened when needed and given up after some seconds without use. From 0, which switches them off, to
    /// 10,000.
    pub fn bells(mut self, most: usize) -> Self {
        self.bells = most;
        self
    }

    /// The longest time to connect and log in. Default: 5 s. From 1 ms to 10 min.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The longest time to wait for the answer to a statement, the retries after a deadlock included. Default: 5 s. From 1 ms to 10 min.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// Modes `session` and `advisory`: for how long a sign of life of its connection makes a hold valid. Default: 3 s. From 0.5 s to a day.
    ///
    /// It takes the place of the lease: each hold asks its server three times within it. When a holder ends without giving its lock back, the
    /// next one waits this long before it holds, because the former may not know yet. Shorter frees the lock sooner after a crash; longer
    /// survives longer outages. Programs that share a lock may differ in it.
    pub fn session_validity(mut self, validity: Duration) -> Self {
        self.session_validity = validity;
        self
    }

    /// Connects, checks the server, and creates the tables if they are missing.
    ///
    /// # Errors
    ///
    /// When a setting is wrong, the server cannot be reached or refuses us, or cannot keep locks in this mode.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, tables may have been created, and nothing else.
    pub async fn connect(self) -> Result<MySqlBackend> {
        dlock_core::backend::need_runtime("mysql")?;
        MySqlBackend::connect(self).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_prefix(&self.table_prefix)?;
        within("connections", self.connections, 1..=10_000)?;
        within("max_sessions", self.max_sessions, 1..=10_000)?;
        within("bells", self.bells, 0..=10_000)?;
        within("connect_timeout", self.connect_timeout, TIMEOUTS)?;
        within("answer_timeout", self.answer_timeout, TIMEOUTS)?;
        within(
            "session_validity",
            self.session_validity,
            SHORTEST_VALIDITY..=LONGEST_VALIDITY,
        )?;
        self.login.check()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check(TLS))
    }

    pub(crate) fn port(&self) -> u16 {
        self.host.port.unwrap_or(DEFAULT_PORT)
    }

    /// Which locks these are, without secrets.
    pub(crate) fn identity_text(&self) -> String {
        format!(
            "mysql://{}/{}?mode={}&table_prefix={}",
            self.host.with_port(DEFAULT_PORT),
            self.database,
            self.mode,
            self.table_prefix
        )
    }
}

kit::network_settings!(Config);

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("host", &self.host.with_port(DEFAULT_PORT))
            .field("login", &self.login)
            .field("database", &self.database)
            .field("mode", &self.mode)
            .field("table_prefix", &self.table_prefix)
            .field("create_tables", &self.create_tables)
            .field("connections", &self.connections)
            .field("max_sessions", &self.max_sessions)
            .field("bells", &self.bells)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("session_validity", &self.session_validity)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}
