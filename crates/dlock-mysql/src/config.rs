mod mode;
mod url;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use dlock_core::backend::Host;
use dlock_core::{Error, Result};

pub use self::mode::LockMode;
use crate::MySqlBackend;
use crate::key::check_prefix;

const DEFAULT_PORT: u16 = 3306;
const SHORTEST_VALIDITY: Duration = Duration::from_millis(500);
const LONGEST_VALIDITY: Duration = Duration::from_secs(86_400);

/// Whether the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    Off,
    /// With a server whose certificate somebody we trust has signed.
    Verified,
    /// With whoever answers.
    Unverified,
}

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
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: String,
    pub(crate) mode: LockMode,
    pub(crate) table_prefix: String,
    pub(crate) create_tables: bool,
    pub(crate) connections: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) session_validity: Duration,
    pub(crate) max_sessions: usize,
    pub(crate) tls: Tls,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
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
            user: None,
            password: None,
            database,
            mode: LockMode::Lease,
            table_prefix: "dlock_".to_owned(),
            create_tables: true,
            connections: 16,
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(5),
            session_validity: Duration::from_secs(3),
            max_sessions: 64,
            tls: Tls::Off,
            ca: None,
            identity: None,
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

    /// The user. Default: none, which few servers accept.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password. Default: none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
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

    /// The longest time to connect and log in. Default: 5 s. At least 1 ms.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The longest time to wait for the answer to a statement, the retries after a deadlock included. Default: 5 s. At least 1 ms.
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

    /// Whether the connection must be encrypted (feature `tls`). Default: no. The server's certificate is checked.
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = if on { Tls::Verified } else { Tls::Off };
        self
    }

    /// Encrypts the connection **without checking who the server is** (feature `tls`): whoever can put themselves between this program and
    /// the server reads and changes everything, locks and password included. It keeps out those who only listen. For a server whose
    /// certificate nobody has signed, [`ca`](Self::ca) with that certificate is the right way.
    pub fn tls_unverified(mut self) -> Self {
        self.tls = Tls::Unverified;
        self
    }

    /// The file with the certificates to trust instead of the well-known ones, in PEM form.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// The files with a certificate for this client and its key, in PEM form.
    pub fn identity(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((cert.into(), key.into()));
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
        MySqlBackend::connect(self).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_prefix(&self.table_prefix)?;
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
        let validity = self.session_validity;
        if !(SHORTEST_VALIDITY..=LONGEST_VALIDITY).contains(&validity) {
            return Err(Error::invalid(format!(
                "session_validity is {validity:?}: it must be from {SHORTEST_VALIDITY:?} to a day"
            )));
        }
        if !cfg!(feature = "tls") && self.tls != Tls::Off {
            return Err(Error::invalid(
                "tls is set, but this program was built without it: enable the feature \"tls\" of the crate dlock-mysql",
            ));
        }
        if self.tls == Tls::Unverified && self.ca.is_some() {
            return Err(Error::invalid(
                "tls=unverified trusts every server, and ca says which ones to trust: set tls=true, or leave ca out",
            ));
        }
        if self.tls == Tls::Off && (self.ca.is_some() || self.identity.is_some()) {
            return Err(Error::invalid(
                "ca, cert and key are for TLS: set tls=true, or leave them out",
            ));
        }
        Ok(())
    }

    /// Looks whether the files for TLS can be read: the client would call that an outage.
    pub(crate) fn check_files(&self) -> Result<()> {
        let identity = self.identity.as_ref();
        let files = [
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

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("host", &self.host.with_port(DEFAULT_PORT))
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .field("mode", &self.mode)
            .field("table_prefix", &self.table_prefix)
            .field("create_tables", &self.create_tables)
            .field("connections", &self.connections)
            .field("max_sessions", &self.max_sessions)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("session_validity", &self.session_validity)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}
