//! URL -> settings.

use dlock_core::backend::BackendUrl;
use dlock_core::kit::{Login, Tls, UrlForm, UrlKey, UrlScheme};
use dlock_core::{Error, Result};

use super::{Config, LockMode};

const EXAMPLE: &str = "mysql://user:password@host:port/database";

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "mysql",
        schemes: &[UrlScheme::new("mysql", EXAMPLE, "a database")],
        keys: &[OWN_KEYS, Login::KEYS, Tls::KEYS],
    };

    /// Reads `mysql://user:password@host:port/database?key=value`. Each key is the setting of that name; `docs/urls.md` lists them all. In the modes
    /// `session` and `advisory`, `lease` is another word for `session_validity`, which every store knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, Self::parse)
    }

    fn parse(url: &mut BackendUrl) -> Result<Self> {
        if url.hosts().len() > 1 {
            return Err(Error::invalid(
                "the URL names several hosts: all clients of a lock must use the same server, so give one",
            ));
        }
        let host = url.one_host(EXAMPLE)?.clone();
        let database = url.path().trim_start_matches('/').to_owned();
        if database.is_empty() || database.contains('/') {
            return Err(Error::invalid(format!(
                "the URL names no database: write {EXAMPLE}"
            )));
        }
        let mut config = Self::at(host, database);
        config.login = Login::take(url)?;
        config.tls = Tls::take(url, false)?;
        config.take_parameters(url)?;
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
        url.set([("table_prefix", &mut self.table_prefix)])?;
        url.set([("create_tables", &mut self.create_tables)])?;
        url.set([
            ("connections", &mut self.connections),
            ("max_sessions", &mut self.max_sessions),
            ("bells", &mut self.bells),
        ])?;
        url.set_durations([
            ("connect_timeout", &mut self.connect_timeout),
            ("answer_timeout", &mut self.answer_timeout),
            ("session_validity", &mut self.session_validity),
        ])
    }
}

#[rustfmt::skip]
const OWN_KEYS: &[UrlKey] = &[
    UrlKey::new("mode", "`lease`, `unique`, `session`, `advisory`", "`lease`", "how locks are kept: rows with a time, rows with a unique key, row locks, `GET_LOCK`"),
    UrlKey::new("table_prefix", "at most 40 letters, digits and `_`", "`dlock_`", "what the names of our tables begin with"),
    UrlKey::new("create_tables", "`true`, `false`", "`true`", "whether missing tables are created at connect"),
    UrlKey::new("connections", "from 1 to 10000", "16", "the most connections that calls share"),
    UrlKey::new("max_sessions", "from 1 to 10000", "64", "the most holders and waiters, each with a connection of its own (modes `session`, `advisory`)"),
    UrlKey::new("bells", "from 0 to 10000", "4", "the most connections on which the server wakes those who wait (modes `lease`, `unique`)"),
    UrlKey::connect_timeout("5s"),
    UrlKey::answer_timeout("5s"),
    UrlKey::new("session_validity", "a duration from 500ms to a day", "3s", "for how long a sign of life makes a hold valid (modes `session`, `advisory`)"),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_url_sets_everything() {
        let config = Config::from_url(
            "mysql://app:s%40cret@db/shop?mode=session&table_prefix=l_&connections=3&max_sessions=9&bells=2&connect_timeout=1s\
             &answer_timeout=2s&session_validity=10s&create_tables=false",
        )
        .expect("a good URL");
        assert_eq!(config.login, Login::new("app", "s@cret"));
        assert_eq!(config.mode(), LockMode::Session);
        assert_eq!((config.connections, config.max_sessions), (3, 9));
        assert_eq!(config.bells, 2);
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
            ("redis://h/d", "takes mysql"),
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
                "from 500ms to 86400s",
            ),
            (
                "mysql://u:s3cret@h/d?connect_timeout=0s",
                "from 1ms to 600s",
            ),
            ("mysql://u:s3cret@h/d?cert=c", "belong together"),
            ("mysql://u:s3cret@h/d?ca=c", "TLS, which is off"),
            ("mysql://u:s3cret@h/d?tls=yes", "true, false, or unverified"),
            (
                "mysql://u:s3cret@h/d?tls=unverified&ca=c",
                "trusts every server",
            ),
        ] {
            let text = Config::from_url(url).expect_err(url).to_string();
            assert!(text.contains(expected), "{text}");
            assert!(text.starts_with("mysql: configure: "), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
