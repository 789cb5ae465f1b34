//! Settings from a URL, as libpq writes it.

use std::path::PathBuf;

use dlock_core::backend::{BackendUrl, Host};
use dlock_core::{Error, Result};

use super::{Config, DEFAULT_PORT, LockMode, Place};

const PARAMETERS: &[&str] = &[
    "mode",
    "schema",
    "table_prefix",
    "create_tables",
    "connections",
    "connect_timeout",
    "answer_timeout",
    "waiter_lease",
    "session_validity",
    "max_sessions",
    "listen",
    "prepare",
    "host",
    "port",
    "user",
    "password_file",
    "dbname",
    "target_session_attrs",
    "sslmode",
    "ca",
    "sslrootcert",
    "cert",
    "sslcert",
    "key",
    "sslkey",
];

impl Config {
    /// Reads settings from a URL: `postgres://user:password@host:port/database?key=value`, or `postgresql://…`.
    ///
    /// As libpq has it: several hosts with commas, of which the one that takes writes is used; a folder of a socket as `host=/run/postgresql` or
    /// percent-encoded in the place of the host; `user`, `port` and `dbname` also as parameters; `sslmode`, `sslrootcert`, `sslcert`,
    /// `sslkey`. The parameters are the settings of this type; the README lists them.
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
    /// Names the part that is wrong, and what to write instead. Passwords are never shown.
    pub fn from_url(url: &str) -> Result<Self> {
        let (url, socket) = without_socket(url)?;
        let mut url = BackendUrl::parse(&url)?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(Error::invalid(format!(
                "the URL's scheme is {:?}, and this backend takes \"postgres\" or \"postgresql\"",
                url.scheme()
            )));
        }
        let mut config = Self::at(places(&mut url, socket)?);
        let database = url.path().trim_start_matches('/').to_owned();
        if database.contains('/') {
            return Err(Error::invalid(
                "the URL's path has more than the name of a database: write postgres://user:password@host:port/database",
            ));
        }
        let named: Option<String> = url.take("dbname")?;
        if named.is_some() && !database.is_empty() {
            return Err(Error::invalid(
                "the URL names the database twice, as path and as dbname: remove one",
            ));
        }
        config.database = named.or((!database.is_empty()).then_some(database));
        let user: Option<String> = url.take("user")?;
        config.user = url.user().map(str::to_owned).or(user);
        config.password = url.password().map(str::to_owned);
        config.take_parameters(&mut url)?;
        url.finish(PARAMETERS)?;
        config.check()?;
        Ok(config)
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
        if let Some(wanted) = url.take::<String>("target_session_attrs")?
            && !matches!(wanted.as_str(), "read-write" | "primary" | "any")
        {
            return Err(Error::invalid(format!(
                "the URL's parameter target_session_attrs={wanted:?} is wrong: a lock needs a server that takes writes, so it is read-write \
                 or primary (any is taken too: of several hosts the one that takes writes is used in any case)"
            )));
        }
        for (key, setting) in [
            ("schema", &mut self.schema),
            ("table_prefix", &mut self.table_prefix),
        ] {
            if let Some(text) = url.take(key)? {
                *setting = text;
            }
        }
        for (key, setting) in [
            ("create_tables", &mut self.create_tables),
            ("listen", &mut self.listen),
            ("prepare", &mut self.prepare),
        ] {
            if let Some(on) = url.take(key)? {
                *setting = on;
            }
        }
        for (key, setting) in [
            ("connections", &mut self.connections),
            ("max_sessions", &mut self.max_sessions),
        ] {
            if let Some(number) = url.take(key)? {
                *setting = number;
            }
        }
        for (key, setting) in [
            ("connect_timeout", &mut self.connect_timeout),
            ("answer_timeout", &mut self.answer_timeout),
            ("waiter_lease", &mut self.waiter_lease),
            ("session_validity", &mut self.session_validity),
        ] {
            if let Some(value) = url.take_duration(key)? {
                *setting = value;
            }
        }
        self.password_file = url.take::<String>("password_file")?.map(PathBuf::from);
        self.take_tls(url)
    }

    fn take_tls(&mut self, url: &mut BackendUrl) -> Result<()> {
        if let Some(mode) = url.take::<String>("sslmode")? {
            self.tls = match mode.as_str() {
                "disable" => false,
                "require" | "verify-ca" | "verify-full" => true,
                "allow" | "prefer" => {
                    return Err(Error::invalid(format!(
                        "the URL's parameter sslmode={mode} leaves it to the network whether anything is encrypted: write verify-full or disable"
                    )));
                }
                other => {
                    return Err(Error::invalid(format!(
                        "the URL's parameter sslmode={other:?} is wrong: it is disable or verify-full (require and verify-ca are taken for \
                         verify-full)"
                    )));
                }
            };
        }
        self.ca = one_of(url, "ca", "sslrootcert")?
            .filter(|ca| ca != "system")
            .map(PathBuf::from);
        let cert = one_of(url, "cert", "sslcert")?;
        let key = one_of(url, "key", "sslkey")?;
        self.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "the URL's parameters cert and key belong together: give both or none",
                ));
            }
        };
        Ok(())
    }
}

/// A parameter that has our word and libpq's.
fn one_of(url: &mut BackendUrl, ours: &str, theirs: &str) -> Result<Option<String>> {
    let (one, other) = (url.take::<String>(ours)?, url.take::<String>(theirs)?);
    if one.is_some() && other.is_some() {
        return Err(Error::invalid(format!(
            "the URL's parameters {ours} and {theirs} are the same: give one of them"
        )));
    }
    Ok(one.or(other))
}

/// Takes the folder of a socket out of the place of the host, where libpq allows it percent-encoded.
fn without_socket(url: &str) -> Result<(String, Option<String>)> {
    let unchanged = || (url.to_owned(), None);
    let Some((scheme, rest)) = url.split_once("://") else {
        return Ok(unchanged());
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let (login, host) = match authority.rsplit_once('@') {
        Some((login, host)) => (format!("{login}@"), host),
        None => (String::new(), authority),
    };
    if !host.to_ascii_lowercase().starts_with("%2f") {
        return Ok(unchanged());
    }
    let (folder, port) = match host.split_once(':') {
        Some((folder, port)) => (folder, format!("?port={port}")),
        None => (host, String::new()),
    };
    // Read by the same parser, as a parameter.
    let folder = BackendUrl::parse(&format!("postgres:?host={folder}"))?.take::<String>("host")?;
    let behind = match (port.is_empty(), behind.split_once('?')) {
        (true, _) => behind.to_owned(),
        (false, Some((path, query))) => format!("{path}{port}&{query}"),
        (false, None) => format!("{behind}{port}"),
    };
    Ok((format!("{scheme}://{login}{behind}"), folder))
}

fn places(url: &mut BackendUrl, socket: Option<String>) -> Result<Vec<Place>> {
    let host: Option<String> = url.take("host")?;
    let port: Option<u16> = url.take("port")?;
    let hosts = url.hosts();
    if !hosts.is_empty() || socket.is_some() {
        if host.is_some() || (port.is_some() && socket.is_none()) {
            return Err(Error::invalid(
                "the URL names its host twice, before the path and as host or port: remove one",
            ));
        }
        if let Some(folder) = socket {
            return Ok(vec![Place::Unix(
                folder.into(),
                port.unwrap_or(DEFAULT_PORT),
            )]);
        }
        return Ok(hosts.iter().cloned().map(Place::Tcp).collect());
    }
    let Some(host) = host else {
        return Ok(Vec::new());
    };
    let place = |text: &str| match text.starts_with('/') {
        true => Place::Unix(text.into(), port.unwrap_or(DEFAULT_PORT)),
        false => Place::Tcp(Host {
            name: text.to_owned(),
            port,
        }),
    };
    Ok(host.split(',').map(place).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_url_sets_everything() {
        let config = Config::from_url(
            "postgresql://app:s%40cret@db-1,db-2:5433/shop?mode=lease&schema=locks&table_prefix=l_&connections=3&connect_timeout=1s\
             &answer_timeout=2s&waiter_lease=10s&create_tables=false&listen=false&target_session_attrs=read-write",
        )
        .expect("a good URL");
        assert_eq!(config.password.as_deref(), Some("s@cret"));
        assert_eq!(config.connections, 3);
        assert_eq!(config.waiter_lease, Duration::from_secs(10));
        assert!(!config.create_tables && !config.listen);
        assert_eq!(
            config.identity_text(),
            "postgres://db-1:5432,db-2:5433/shop?mode=lease&schema=locks&table_prefix=l_"
        );
        assert!(!format!("{config:?}").contains("s@cret"));
    }

    #[test]
    fn sockets_are_named_as_libpq_names_them() {
        for url in [
            "postgres:///shop?host=/run/postgresql&user=app&port=5433",
            "postgres://app@%2Frun%2Fpostgresql:5433/shop",
            "postgres://app@/shop?host=/run/postgresql&port=5433",
            "postgres://app@%2frun%2fpostgresql:5433?dbname=shop",
        ] {
            let config = Config::from_url(url).expect(url);
            assert_eq!(
                config.places,
                [Place::Unix("/run/postgresql".into(), 5433)],
                "{url}"
            );
            assert_eq!(config.user.as_deref(), Some("app"), "{url}");
            assert_eq!(config.database.as_deref(), Some("shop"), "{url}");
        }
    }

    #[test]
    fn mistakes_are_named_without_secrets() {
        for (url, expected) in [
            ("mysql://h/d", "takes \"postgres\""),
            ("postgres:///d", "no host is named"),
            ("postgres://u:s3cret@h/a/b", "more than the name"),
            ("postgres://u:s3cret@h/d?dbname=e", "database twice"),
            ("postgres://u:s3cret@h/d?host=g", "its host twice"),
            (
                "postgres://u:s3cret@h/d?mode=fast",
                "it is lease or session",
            ),
            ("postgres://u:s3cret@h/d?table_prefix=a-b", "table_prefix"),
            ("postgres://u:s3cret@h/d?schema=A", "schema"),
            (
                "postgres://u:s3cret@h/d?lease=3s",
                "not known to \"postgres\"",
            ),
            ("postgres://u:s3cret@h/d?connections=0", "from 1 to 10000"),
            ("postgres://u:s3cret@h/d?waiter_lease=1ms", "from 500ms"),
            ("postgres://u:s3cret@h/d?connect_timeout=0s", "at least 1ms"),
            (
                "postgres://u:s3cret@h/d?sslmode=prefer",
                "verify-full or disable",
            ),
            (
                "postgres://u:s3cret@h/d?sslmode=on",
                "disable or verify-full",
            ),
            ("postgres://u:s3cret@h/d?cert=c", "belong together"),
            ("postgres://u:s3cret@h/d?ca=c", "are for TLS"),
            ("postgres://u:s3cret@h/d?ca=c&sslrootcert=c", "are the same"),
            (
                "postgres://u:s3cret@h/d?password_file=f",
                "give one of them",
            ),
            (
                "postgres://u:s3cret@h/d?target_session_attrs=read-only",
                "a server that takes writes",
            ),
        ] {
            let text = Config::from_url(url).expect_err(url).to_string();
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
