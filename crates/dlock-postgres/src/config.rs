mod url;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use dlock_core::backend::Host;
use dlock_core::{Error, Result};

use crate::PostgresBackend;
#[cfg(any(feature = "deadpool", feature = "sqlx"))]
use crate::connect::Guest;
use crate::key::{check_prefix, check_schema};

pub(crate) const DEFAULT_PORT: u16 = 5432;
const SHORTEST_WAITER_LEASE: Duration = Duration::from_millis(500);
const LONGEST_WAITER_LEASE: Duration = Duration::from_secs(3600);
const SHORTEST_VALIDITY: Duration = Duration::from_millis(500);
const LONGEST_VALIDITY: Duration = Duration::from_secs(86_400);

/// How a lock is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LockMode {
    /// A row with the time until which it is held.
    #[default]
    Lease,
    /// An advisory lock of a connection of its own, which the server frees with the connection.
    Session,
}

impl fmt::Display for LockMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lease => "lease",
            Self::Session => "session",
        })
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(Host),
    /// The folder of its socket, and the port in the socket's name.
    Unix(PathBuf, u16),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(&host.with_port(DEFAULT_PORT)),
            Self::Unix(folder, port) => write!(f, "{}:{port}", folder.display()),
        }
    }
}

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
    pub(crate) places: Vec<Place>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) password_file: Option<PathBuf>,
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
    pub(crate) tls: bool,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
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
        Self::at(vec![Place::Tcp(host)]).database(database)
    }

    /// A database on a server on this machine, by the folder of its socket and the port in the socket's name.
    pub fn unix(folder: impl Into<PathBuf>, port: u16, database: impl Into<String>) -> Self {
        Self::at(vec![Place::Unix(folder.into(), port)]).database(database)
    }

    fn at(places: Vec<Place>) -> Self {
        Self {
            places,
            user: None,
            password: None,
            password_file: None,
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
            tls: false,
            ca: None,
            identity: None,
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
    /// [`over_deadpool`](Config::over_deadpool) says holds here too.
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

    /// Statements by the pool that is set, and one more connection, which listens for grants, with the place, the login and the certificates of
    /// these settings: waiters then wake at once.
    ///
    /// # Errors
    ///
    /// When the URL is wrong.
    #[cfg(any(feature = "deadpool", feature = "sqlx"))]
    pub fn listening_at(self, url: &str) -> Result<Self> {
        let mut config = Self::from_url(url)?;
        config.guest = self.guest;
        Ok(config)
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

    /// The user. Default: the one that runs this program, as libpq has it.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password. Default: none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// A file that holds the password and nothing else but a line's end. It is read whenever a connection is opened, so a new
    /// password needs no restart. Default: none.
    pub fn password_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.password_file = Some(file.into());
        self
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

    /// The longest time to connect and log in, at each host. Default: 5 s. At least 1 ms.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The longest time to wait for the answer to a statement, the retries after a deadlock included. Default: 5 s. At least 1 ms.
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

    /// Whether the connection must be encrypted (feature `tls`). Default: no. The server's certificate and name are checked.
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// The file with the certificates to trust instead of the system's, in PEM form.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// The files with a certificate for this client and its key, in PEM form.
    pub fn identity(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((cert.into(), key.into()));
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
        if self.places.is_empty() && !self.is_guest() {
            return Err(Error::invalid(
                "no host is named: write postgres://user@host:port/database, or give a socket's folder as host=/run/postgresql",
            ));
        }
        for (what, value) in [
            ("connections", self.connections),
            ("max_sessions", self.max_sessions),
        ] {
            if !(1..=10_000).contains(&value) {
                return Err(Error::invalid(format!(
                    "{what} is {value}: it must be from 1 to 10000"
                )));
            }
        }
        let validity = self.session_validity;
        if !(SHORTEST_VALIDITY..=LONGEST_VALIDITY).contains(&validity) {
            return Err(Error::invalid(format!(
                "session_validity is {validity:?}: it must be from {SHORTEST_VALIDITY:?} to a day"
            )));
        }
        let moment = Duration::from_millis(1);
        for (what, value) in [
            ("connect_timeout", self.connect_timeout),
            ("answer_timeout", self.answer_timeout),
        ] {
            if value < moment {
                return Err(Error::invalid(format!(
                    "{what} is {value:?}: it must be at least {moment:?}"
                )));
            }
        }
        if !(SHORTEST_WAITER_LEASE..=LONGEST_WAITER_LEASE).contains(&self.waiter_lease) {
            return Err(Error::invalid(format!(
                "waiter_lease is {:?}: it must be from {SHORTEST_WAITER_LEASE:?} to an hour",
                self.waiter_lease
            )));
        }
        if !cfg!(feature = "tls") && self.tls {
            return Err(Error::invalid(
                "TLS is asked for, but this program was built without it: enable the feature \"tls\" of the crate dlock-postgres",
            ));
        }
        if !self.tls && (self.ca.is_some() || self.identity.is_some()) {
            return Err(Error::invalid(
                "ca, cert and key are for TLS: set sslmode=verify-full, or leave them out",
            ));
        }
        if self.tls
            && self
                .places
                .iter()
                .any(|place| matches!(place, Place::Unix(..)))
        {
            return Err(Error::invalid(
                "a socket on this machine has no TLS: leave sslmode out, or name a host",
            ));
        }
        if self.password.is_some() && self.password_file.is_some() {
            return Err(Error::invalid(
                "password and password_file are both set: give one of them",
            ));
        }
        Ok(())
    }

    /// Looks whether the files can be read: that would be told as an outage later.
    pub(crate) fn check_files(&self) -> Result<()> {
        let identity = self.identity.as_ref();
        let files = [
            ("password_file", self.password_file.as_ref()),
            ("ca", self.ca.as_ref()),
            ("cert", identity.map(|(cert, _)| cert)),
            ("key", identity.map(|(_, key)| key)),
        ];
        for (what, file) in files {
            let Some(file) = file else { continue };
            if let Err(error) = std::fs::File::open(file) {
                let file = file.display();
                return Err(Error::invalid(format!(
                    "{what} is {file}, which cannot be read: {error}"
                )));
            }
        }
        Ok(())
    }

    /// Which locks these are, without secrets.
    pub(crate) fn identity_text(&self) -> String {
        if self.places.is_empty() {
            // The pool knows where it is, and tells nobody.
            return format!(
                "postgres://?mode={}&schema={}&table_prefix={}",
                self.mode, self.schema, self.table_prefix
            );
        }
        format!(
            "postgres://{}/{}?mode={}&schema={}&table_prefix={}",
            self.all_places(),
            self.database.as_deref().unwrap_or_default(),
            self.mode,
            self.schema,
            self.table_prefix
        )
    }

    pub(crate) fn all_places(&self) -> String {
        let all: Vec<String> = self.places.iter().map(ToString::to_string).collect();
        all.join(",")
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.all_places())
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("password_file", &self.password_file)
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
