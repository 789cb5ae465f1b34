//! URL -> settings.

use std::path::PathBuf;

use dlock_core::backend::BackendUrl;
use dlock_core::{Error, Operation, Result};

use super::{Config, LockMode, Tls};

const PARAMETERS: &[&str] = &[
    "answer_timeout",
    "ca",
    "cert",
    "connect_timeout",
    "connections",
    "create_tables",
    "key",
    "max_sessions",
    "mode",
    "session_validity",
    "table_prefix",
    "tls",
];

impl Config {
    /// Reads `mysql://user:password@host:port/database?mode=lease`.
    ///
    /// Parameters: `mode` (`lease`, `unique`, `session`, `advisory`), `table_prefix`, `create_tables`, `connections`,
    /// `max_sessions`, `connect_timeout`, `answer_timeout`, `session_validity`, `tls`, `ca`, `cert` and `key` (files in PEM form): each
    /// as the setting of that name. In the modes `session` and `advisory`, `lease` is another word for `session_validity`, which every
    /// store knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(|error| {
            error
                .with_backend("mysql")
                .with_operation(Operation::Configure)
        })
    }

    fn parse(url: &str) -> Result<Self> {
        let mut url = BackendUrl::parse(url)?;
        if url.scheme() != "mysql" {
            return Err(Error::invalid(format!(
                "the URL's scheme is {:?}: this backend takes \"mysql\"",
                url.scheme()
            )));
        }
        let host = match url.hosts() {
            [host] => host.clone(),
            [] => {
                return Err(Error::invalid(
                    "the URL names no host: write mysql://user:password@host:port/database",
                ));
            }
            _ => {
                return Err(Error::invalid(
                    "the URL names several hosts: all clients of a lock must use the same server, so give one",
                ));
            }
        };
        let database = url.path().trim_start_matches('/').to_owned();
        if database.is_empty() || database.contains('/') {
            return Err(Error::invalid(
                "the URL names no database: write mysql://user:password@host:port/database",
            ));
        }
        let mut config = Self::at(host, database);
        config.user = url.user().map(str::to_owned);
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
                "unique" => LockMode::Unique,
                "session" => LockMode::Session,
                "advisory" => LockMode::Advisory,
                other => {
                    return Err(Error::invalid(format!(
                        "the URL's parameter mode={other:?} is wrong: it is lease, unique, session or advisory"
                    )));
                }
            };
        }
        if matches!(self.mode, LockMode::Session | LockMode::Advisory)
            && let Some(validity) = url.take_session("session_validity")?
        {
            self.session_validity = validity;
        }
        if let Some(prefix) = url.take("table_prefix")? {
            self.table_prefix = prefix;
        }
        if let Some(on) = url.take("create_tables")? {
            self.create_tables = on;
        }
        if let Some(tls) = url.take::<String>("tls")? {
            self.tls = match tls.as_str() {
                "true" => Tls::Verified,
                "false" => Tls::Off,
                "unverified" => Tls::Unverified,
                other => {
                    return Err(Error::invalid(format!(
                        "the URL's parameter tls={other:?} is wrong: it is true, false, or unverified (encrypted, but with whoever answers)"
                    )));
                }
            };
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
            ("session_validity", &mut self.session_validity),
        ] {
            if let Some(value) = url.take_duration(key)? {
                *setting = value;
            }
        }
        self.ca = url.take::<String>("ca")?.map(PathBuf::from);
        let cert: Option<String> = url.take("cert")?;
        let key: Option<String> = url.take("key")?;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_url_sets_everything() {
        let config = Config::from_url(
            "mysql://app:s%40cret@db/shop?mode=session&table_prefix=l_&connections=3&max_sessions=9&connect_timeout=1s\
             &answer_timeout=2s&session_validity=10s&create_tables=false",
        )
        .expect("a good URL");
        assert_eq!(config.password.as_deref(), Some("s@cret"));
        assert_eq!(config.mode(), LockMode::Session);
        assert_eq!((config.connections, config.max_sessions), (3, 9));
        assert_eq!(config.session_validity, Duration::from_secs(10));
        assert!(!config.create_tables);
        assert_eq!(
            config.identity_text(),
            "mysql://db:3306/shop?mode=session&table_prefix=l_"
        );
        assert!(!format!("{config:?}").contains("s@cret"));
    }

    #[test]
    fn lease_is_the_validity_of_a_session() {
        for mode in ["session", "advisory"] {
            let config = Config::from_url(&format!("mysql://h/d?mode={mode}&lease=7s"));
            let config = config.expect("a good URL");
            assert_eq!(config.session_validity, Duration::from_secs(7));
        }
    }

    #[test]
    fn mistakes_are_named_without_secrets() {
        for (url, expected) in [
            (
                "mysql://u:s3cret@h/d?mode=session&session_validity=3s&lease=3s",
                "give one of them",
            ),
            ("redis://h/d", "takes \"mysql\""),
            ("mysql:///d", "names no host"),
            ("mysql://a,b/d", "names several hosts"),
            ("mysql://u:s3cret@h", "names no database"),
            ("mysql://u:s3cret@h/a/b", "names no database"),
            (
                "mysql://u:s3cret@h/d?mode=fast",
                "lease, unique, session or advisory",
            ),
            ("mysql://u:s3cret@h/d?table_prefix=a-b", "table_prefix"),
            ("mysql://u:s3cret@h/d?lease=3s", "not known to \"mysql\""),
            ("mysql://u:s3cret@h/d?connections=0", "from 1 to 10000"),
            (
                "mysql://u:s3cret@h/d?session_validity=100ms",
                "from 500ms to a day",
            ),
            ("mysql://u:s3cret@h/d?connect_timeout=0s", "at least 1ms"),
            ("mysql://u:s3cret@h/d?cert=c", "belong together"),
            ("mysql://u:s3cret@h/d?ca=c", "are for TLS"),
            ("mysql://u:s3cret@h/d?tls=yes", "true, false, or unverified"),
            (
                "mysql://u:s3cret@h/d?tls=unverified&ca=c",
                "trusts every server",
            ),
        ] {
            let text = Config::from_url(url).expect_err(url).to_string();
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
