//! URL -> settings, as libpq writes it.

mod hosts;

use std::time::Duration;

use dlock_core::backend::{BackendUrl, parse_duration};
use dlock_core::kit::{Login, Tls, Trust, UrlForm, UrlKey, UrlScheme};
use dlock_core::{Error, Result};

use self::hosts::{servers, without_socket};
use super::{Config, LockMode};

const EXAMPLE: &str = "postgres://user:password@host:port/database";

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "postgres",
        schemes: &[
            UrlScheme::new("postgres", EXAMPLE, "a database; several hosts with commas"),
            UrlScheme::new(
                "postgresql",
                "postgresql://user:password@host:port/database",
                "the same",
            ),
        ],
        keys: &[OWN_KEYS, LIBPQ_KEYS, Login::KEYS, Tls::KEYS],
    };

    /// Reads `postgres://user:password@host:port/database?key=value`, or `postgresql://…`. Each key is the setting of that name, or one of libpq's;
    /// `docs/urls.md` lists them all. In mode `session`, `lease` is another word for `session_validity`, which every store knows.
    ///
    /// As libpq has it: several hosts with commas, of which the one that takes writes is used; a folder of a socket as `host=/run/postgresql` or
    /// percent-encoded in the place of the host; `user`, `port` and `dbname` also as parameters; `sslmode`, `sslrootcert`, `sslcert`,
    /// `sslkey`.
    ///
    /// ```
    /// use dlock_postgres::Config;
    ///
    /// Config::from_url("postgres://app:secret@db-1,db-2:5433/shop?target_session_attrs=read-write")?;
    /// Config::from_url("postgresql:///shop?host=/run/postgresql&user=app")?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::at(Vec::new()).with_url(url)
    }

    /// The settings that a URL names, and these for the rest. The place is the URL's alone.
    pub(super) fn with_url(self, url: &str) -> Result<Self> {
        let (url, socket) = without_socket(url).map_err(|error| Self::URL.with_context(error))?;
        Self::URL.read(&url, |url| self.parse(url, socket))
    }

    fn parse(mut self, url: &mut BackendUrl, socket: Option<String>) -> Result<Self> {
        refuse(url)?;
        self.servers = servers(url, socket)?;
        if self.servers.is_empty() {
            return Err(Error::invalid(format!(
                "the URL names no host: write {EXAMPLE}, or give a socket's folder as host=/run/postgresql"
            )));
        }
        self.database = database(url)?.or(self.database);
        let named = Login::take(url)?;
        let user: Option<String> = url.take("user")?;
        if user.is_some() && named.user.is_some() {
            return Err(Error::invalid(
                "the URL names the user twice, before the host and as user: remove one",
            ));
        }
        let user = named.user.or(user);
        if user.is_some() && user != self.login.user {
            // A password is its user's alone.
            self.login.password = None;
        }
        self.login.user = user.or(self.login.user);
        self.login.password = named.password.or(self.login.password);
        let is_off = turns_tls_off(url)?;
        self.tls = match (take_tls(url)?, self.tls) {
            (None, Some(_)) if is_off => {
                return Err(Error::invalid(
                    "the URL turns TLS off, and the settings have it on: leave one of them out",
                ));
            }
            (named, set) => named.or(set),
        };
        self.take_parameters(url)?;
        self.check()?;
        Ok(self)
    }

    fn take_parameters(&mut self, url: &mut BackendUrl) -> Result<()> {
        if let Some(mode) = url.take::<String>("mode")? {
            self.mode = match mode.as_str() {
                "lease" => LockMode::Lease,
                "session" => LockMode::Session,
                other => {
                    return Err(Error::invalid(format!(
                        "the URL's parameter mode={other:?} is wrong: it is lease or session"
                    )));
                }
            };
        }
        if self.mode == LockMode::Session
            && let Some(validity) = url.take_session("session_validity")?
        {
            self.session_validity = validity;
        }
        if let Some(limit) = take_connect_timeout(url)? {
            self.connect_timeout = limit;
        }
        if let Some(options) = url.take("options")? {
            self.options = Some(options);
        }
        url.set([
            ("schema", &mut self.schema),
            ("table_prefix", &mut self.table_prefix),
            ("application_name", &mut self.application_name),
        ])?;
        url.set([
            ("create_tables", &mut self.create_tables),
            ("listen", &mut self.listen),
            ("prepare", &mut self.prepare),
        ])?;
        url.set([
            ("connections", &mut self.connections),
            ("max_sessions", &mut self.max_sessions),
        ])?;
        url.set_durations([
            ("answer_timeout", &mut self.answer_timeout),
            ("waiter_lease", &mut self.waiter_lease),
            ("session_validity", &mut self.session_validity),
        ])
    }
}

#[rustfmt::skip]
const OWN_KEYS: &[UrlKey] = &[
    UrlKey::new("mode", "`lease`, `session`", "`lease`", "how locks are kept: rows with a time, or advisory locks of connections"),
    UrlKey::new("schema", "at most 63 small letters, digits and `_`", "`public`", "where our tables and functions are"),
    UrlKey::new("table_prefix", "at most 40 small letters, digits and `_`", "`dlock_`", "what their names begin with"),
    UrlKey::new("create_tables", "`true`, `false`", "`true`", "whether what is missing or older is made at connect"),
    UrlKey::new("connections", "from 1 to 10000", "8", "the most connections that calls share"),
    UrlKey::new("max_sessions", "from 1 to 10000", "64", "the most holders and waiters, each with a connection of its own (mode `session`)"),
    UrlKey::new("connect_timeout", "a duration from 1ms to 10m; a number is seconds, as in libpq", "5s", "how long making a connection may take, at each host"),
    UrlKey::answer_timeout("5s"),
    UrlKey::new("waiter_lease", "a duration from 500ms to an hour", "6s", "how long a waiter keeps its place without a sign of life (mode `lease`)"),
    UrlKey::new("session_validity", "a duration from 500ms to a day", "3s", "for how long a sign of life makes a hold valid (mode `session`)"),
    UrlKey::new("listen", "`true`, `false`", "`true`", "whether a connection listens for grants (mode `lease`)"),
    UrlKey::new("prepare", "`true`, `false`", "`true`", "whether the server is told each statement once for a connection; never behind a pooler"),
    UrlKey::new("application_name", "a text", "`dlock`", "what the connections are called in the server's lists"),
];

/// libpq's words for what can be said otherwise too, and some that change nothing here.
#[rustfmt::skip]
const LIBPQ_KEYS: &[UrlKey] = &[
    UrlKey::new("host", "names, or the folder of a socket", "", "in the place of the host, with commas"),
    UrlKey::new("port", "numbers", "5432", "in the place of the port: one for all of `host`, or one for each"),
    UrlKey::new("user", "a text", "who runs the program", "in the place of the user"),
    UrlKey::new("dbname", "a text", "the user's name", "in the place of the database"),
    UrlKey::new("target_session_attrs", "`read-write`, `primary`, `any`", "`read-write`", "of several hosts the one that takes writes is used, whichever is given"),
    UrlKey::new("options", "as in `-c statement_timeout=5s`", "", "settings of the server for our connections; many poolers refuse them"),
    UrlKey::new("sslmode", "`disable`, `require`, `verify-ca`, `verify-full`", "`disable`", "`tls` in libpq's words: all but the first are `tls=true`, with the certificate and its name checked"),
    UrlKey::new("sslrootcert", "a PEM file, or `system`", "", "the same as `ca`"),
    UrlKey::new("sslcert", "a PEM file", "", "the same as `cert`"),
    UrlKey::new("sslkey", "a PEM file", "", "the same as `key`"),
    UrlKey::new("channel_binding", "`disable`, `prefer`", "`disable`", "not used"),
    UrlKey::new("gssencmode", "`disable`, `prefer`", "`disable`", "not used"),
];

/// What libpq knows and we do not do, with what to write instead; and what changes nothing.
fn refuse(url: &mut BackendUrl) -> Result<()> {
    for (key, instead) in [
        (
            "hostaddr",
            "write the address in the place of the host, and the name in its certificate as server_name",
        ),
        (
            "passfile",
            "give a file that holds the password and nothing else as password_file",
        ),
        (
            "password",
            "write it before the host, or give a file as password_file",
        ),
        ("service", "write what stands there into the URL"),
    ] {
        if url.take::<String>(key)?.is_some() {
            return Err(Error::invalid(format!(
                "the URL's parameter {key:?} is libpq's and not ours: {instead}"
            )));
        }
    }
    for key in ["channel_binding", "gssencmode"] {
        if let Some(value) = url.take::<String>(key)?
            && !matches!(value.as_str(), "disable" | "prefer")
        {
            return Err(Error::invalid(format!(
                "the URL's parameter {key}={value:?} asks for what this client cannot do: write disable, or leave it out"
            )));
        }
    }
    if let Some(wanted) = url.take::<String>("target_session_attrs")?
        && !matches!(wanted.as_str(), "read-write" | "primary" | "any")
    {
        return Err(Error::invalid(format!(
            "the URL's parameter target_session_attrs={wanted:?} is wrong: a lock needs a server that takes writes, so it is read-write \
             or primary (any is taken too: of several hosts the one that takes writes is used in any case)"
        )));
    }
    Ok(())
}

/// As every store has it, or as libpq has it: a number of seconds.
fn take_connect_timeout(url: &mut BackendUrl) -> Result<Option<Duration>> {
    let Some(text) = url.take::<String>("connect_timeout")? else {
        return Ok(None);
    };
    let limit = match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => parse_duration(&text),
    };
    limit.map(Some).map_err(|why| {
        let why = why.message();
        Error::invalid(format!(
            "the URL's parameter connect_timeout={text:?} is wrong: {why}"
        ))
    })
}

fn database(url: &mut BackendUrl) -> Result<Option<String>> {
    let path = url.path().trim_start_matches('/').to_owned();
    if path.contains('/') {
        return Err(Error::invalid(format!(
            "the URL's path has more than the name of a database: write {EXAMPLE}"
        )));
    }
    let named: Option<String> = url.take("dbname")?;
    if named.is_some() && !path.is_empty() {
        return Err(Error::invalid(
            "the URL names the database twice, as path and as dbname: remove one",
        ));
    }
    Ok(named.or((!path.is_empty()).then_some(path)))
}

/// Whether a URL says in words that there is no TLS.
fn turns_tls_off(url: &BackendUrl) -> Result<bool> {
    let mut url = url.clone();
    let (tls, mode) = (url.take::<String>("tls")?, url.take::<String>("sslmode")?);
    Ok(tls.as_deref() == Some("false") || mode.as_deref() == Some("disable"))
}

/// TLS in the words of every store, or in libpq's.
fn take_tls(url: &mut BackendUrl) -> Result<Option<Tls>> {
    let mode: Option<String> = url.take("sslmode")?;
    let by_mode = match mode.as_deref() {
        None | Some("disable") => false,
        Some("require" | "verify-ca" | "verify-full") => true,
        Some(mode @ ("allow" | "prefer")) => {
            return Err(Error::invalid(format!(
                "the URL's parameter sslmode={mode} leaves it to the network whether anything is encrypted: write verify-full or disable"
            )));
        }
        Some(other) => {
            return Err(Error::invalid(format!(
                "the URL's parameter sslmode={other:?} is wrong: it is disable or verify-full (require and verify-ca are taken for \
                 verify-full)"
            )));
        }
    };
    if mode.is_some() && url.take::<String>("tls")?.is_some() {
        return Err(same("tls", "sslmode"));
    }
    let (root, cert, key): (Option<String>, Option<String>, Option<String>) = (
        url.take("sslrootcert")?,
        url.take("sslcert")?,
        url.take("sslkey")?,
    );
    let Some(mut tls) = Tls::take(url, by_mode)? else {
        if root.is_some() || cert.is_some() || key.is_some() {
            return Err(Error::invalid(
                "sslrootcert, sslcert and sslkey are for TLS, which is off: set sslmode=verify-full, or leave them out",
            ));
        }
        return Ok(None);
    };
    if let Some(root) = root {
        if *tls.trust() != Trust::Usual {
            return Err(same("ca", "sslrootcert"));
        }
        tls = match root.as_str() {
            "system" => tls.system_ca(),
            _ => tls.ca_file(root),
        };
    }
    match (cert, key) {
        (None, None) => {}
        (Some(_), Some(_)) if tls.identity().is_some() => return Err(same("cert", "sslcert")),
        (Some(cert), Some(key)) => tls = tls.client_certificate_files(cert, key),
        _ => {
            return Err(Error::invalid(
                "the URL's parameters sslcert and sslkey belong together: give both or none",
            ));
        }
    }
    Ok(Some(tls))
}

fn same(ours: &str, theirs: &str) -> Error {
    Error::invalid(format!(
        "the URL's parameters {ours} and {theirs} are about the same: give one of them"
    ))
}

#[cfg(test)]
mod tests;
