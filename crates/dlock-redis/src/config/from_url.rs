//! The settings as a URL.

use std::path::PathBuf;

use dlock_core::backend::BackendUrl;
use dlock_core::kit::{Login, Password, Tls, UrlForm, UrlKey, UrlScheme};
use dlock_core::{Error, Result};

use super::{Config, Style, Topology};

impl Config {
    /// The URLs that [`from_url`](Config::from_url) reads, as data.
    pub const URL: UrlForm = UrlForm {
        backend: "redis",
        schemes: &[
            UrlScheme::new("redis", "redis://user:password@host:port/db", "one server"),
            UrlScheme::new(
                "rediss",
                "rediss://user:password@host:port/db",
                "one server, with TLS",
            ),
            UrlScheme::new(
                "redis+unix",
                "redis+unix:///path/to/socket?db=0",
                "one server at a unix socket",
            ),
            UrlScheme::new(
                "redis+sentinel",
                "redis+sentinel://user:password@s1:26379,s2,s3/master/db",
                "the master that the sentinels know",
            ),
            UrlScheme::new(
                "rediss+sentinel",
                "rediss+sentinel://user:password@s1:26379,s2,s3/master/db",
                "the same, with TLS for both",
            ),
            UrlScheme::new(
                "redis+cluster",
                "redis+cluster://user:password@n1:7000,n2:7001",
                "a cluster",
            ),
            UrlScheme::new(
                "rediss+cluster",
                "rediss+cluster://user:password@n1:7000,n2:7001",
                "a cluster, with TLS",
            ),
        ],
        keys: &[OWN_KEYS, Login::KEYS, Tls::KEYS],
    };

    /// Reads a URL: `redis://user:password@host:port/db?key=value`, or one of the other schemes of [`URL`](Config::URL). Each key is the
    /// setting of that name; `docs/urls.md` lists them all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::URL.read(url, Self::parse)
    }

    fn parse(url: &mut BackendUrl) -> Result<Self> {
        let (kind, by_scheme) = match url.scheme().split_once('+') {
            Some((start, kind)) => (kind.to_owned(), start == "rediss"),
            None => (String::new(), url.scheme() == "rediss"),
        };
        let mut path = url.path().to_owned();
        let mut config = Self::new(match kind.as_str() {
            "unix" => {
                if path.is_empty() || !url.hosts().is_empty() {
                    return Err(Error::invalid(
                        "the URL of a unix socket needs a path and no host: write redis+unix:///path/to/socket",
                    ));
                }
                Topology::Unix(PathBuf::from(std::mem::take(&mut path)))
            }
            "sentinel" => {
                let text = path.trim_start_matches('/').to_owned();
                let (master, db) = match text.split_once('/') {
                    Some((master, db)) => (master, format!("/{db}")),
                    None => (text.as_str(), String::new()),
                };
                if master.is_empty() {
                    return Err(Error::invalid(
                        "the URL does not name the master: write redis+sentinel://host1,host2/mymaster",
                    ));
                }
                path = db;
                Topology::Sentinel {
                    sentinels: url.hosts().to_vec(),
                    master: master.to_owned(),
                }
            }
            "cluster" => Topology::Cluster(url.hosts().to_vec()),
            _ if url.hosts().len() > 1 => {
                return Err(Error::invalid(
                    "the URL names several hosts: use redis+sentinel:// or redis+cluster://, or redlock:// for independent \
                     masters",
                ));
            }
            _ => Topology::Single(url.one_host("redis://host:port")?.clone()),
        });
        config.tls = Tls::take(url, by_scheme)?;
        config.login = Login::take(url)?;
        config.take_parameters(url, &path)?;
        config.check()?;
        Ok(config)
    }

    fn take_parameters(&mut self, url: &mut BackendUrl, path: &str) -> Result<()> {
        let db = path.trim_start_matches('/');
        if !db.is_empty() {
            self.db = db.parse().map_err(|_| {
                Error::invalid(format!(
                    "the URL's path {path:?} is not a database number: write /0 or leave it out"
                ))
            })?;
        }
        if matches!(self.topology, Topology::Unix(_)) {
            url.set([("db", &mut self.db)])?;
            self.login.user = url.take("user")?;
            if let Some(password) = url.take("password")? {
                self.login.password = Some(Password::Text(password));
            }
        }
        if matches!(self.topology, Topology::Sentinel { .. }) {
            self.sentinel_login.user = url.take("sentinel_user")?;
            self.sentinel_login.password = url.take("sentinel_password")?.map(Password::Text);
        }
        if let Some(style) = url.take::<String>("style")? {
            self.style = match style.as_str() {
                "fair" => Style::Fair,
                "barging" => Style::Barging,
                "plain" => Style::Plain,
                other => {
                    return Err(Error::invalid(format!(
                        "the URL's parameter style={other:?} is wrong: it is fair, barging or plain"
                    )));
                }
            };
        }
        self.prefix = url.take("prefix")?;
        url.set_durations([
            ("connect_timeout", &mut self.connect_timeout),
            ("answer_timeout", &mut self.answer_timeout),
            ("waiter_lease", &mut self.waiter_lease),
            ("fence_ttl", &mut self.fence_ttl),
            ("replicas_timeout", &mut self.replicas_timeout),
        ])?;
        url.set([("replicas", &mut self.replicas)])?;
        url.set([("limit_may_change", &mut self.limit_may_change)])?;
        self.keepalive = url.take_duration("keepalive")?;
        self.user_timeout = url.take_duration("user_timeout")?;
        Ok(())
    }
}

#[rustfmt::skip]
const OWN_KEYS: &[UrlKey] = &[
    UrlKey::new("prefix", "text", "`dlock`, and nothing for `style=plain`", "what the names of all keys and channels begin with"),
    UrlKey::new("style", "`fair`, `barging`, `plain`", "`fair`", "how locks are kept: first come, first served; whoever asks first; or `SET NX PX` as other programs do"),
    UrlKey::connect_timeout("2s"),
    UrlKey::answer_timeout("2s"),
    UrlKey::new("waiter_lease", "a duration from 500ms to 5m", "3s", "how long a waiter keeps its place without a sign of life"),
    UrlKey::new("fence_ttl", "a duration from 1s to a year", "10m", "how long the fence counter of a lock that nobody uses is kept"),
    UrlKey::new("replicas", "a number", "0", "how many replicas must have confirmed a hold before it counts"),
    UrlKey::new("replicas_timeout", "a duration from 1ms to 10m", "1s", "how long that may take"),
    UrlKey::new("limit_may_change", "`true`, `false`", "`false`", "whether the limit of a semaphore may be another than that of those who hold its permits"),
    UrlKey::new("keepalive", "a duration from 1s to 9h", "not at all", "after how long without traffic the system asks whether the other side still lives"),
    UrlKey::new("user_timeout", "a duration from 100ms to 1h", "the system's", "after how long the system gives up a connection whose other side confirms nothing (Linux)"),
    UrlKey::new("db", "a number", "0", "the database, with `redis+unix`"),
    UrlKey::new("user", "text", "Redis' own default user", "the user, with `redis+unix`"),
    UrlKey::new("password", "text", "", "the password, with `redis+unix`"),
    UrlKey::new("sentinel_user", "text", "", "the user for the sentinels, with Sentinel"),
    UrlKey::new("sentinel_password", "text", "", "the password for the sentinels, with Sentinel"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[test]
    fn every_kind_of_url_is_read() {
        for (url, identity) in [
            ("redis://h", "redis://h:6379/0#dlock"),
            ("redis://u:p@h:7000/3", "redis://h:7000/3#dlock"),
            (
                "redis://[::1]:7000?prefix=shop",
                "redis://[::1]:7000/0#shop",
            ),
            (
                "redis+unix:///run/r.sock?db=2",
                "redis+unix:///run/r.sock?db=2#dlock",
            ),
            (
                "redis+sentinel://b,a:1/mymaster/4",
                "redis+sentinel://a:1,b:26379/mymaster/4#dlock",
            ),
            (
                "redis+cluster://n2,n1:7",
                "redis+cluster://n1:7,n2:6379#dlock",
            ),
            ("redis://h?style=plain", "redis://h:6379/0#"),
        ] {
            let config = Config::from_url(url).expect(url);
            assert_eq!(config.identity_text(), identity, "{url}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("memory:", "takes redis"),
            ("redis:", "names no host"),
            ("redis://a,b", "several hosts"),
            ("redis://h/x", "not a database number"),
            ("redis+sentinel://h", "does not name the master"),
            ("redis+cluster://h/1", "only database 0"),
            ("redis://h?keepalive=1ms", "keepalive is 1ms"),
            ("redis://h?user_timeout=1ms", "user_timeout is 1ms"),
            ("redis+unix:///s?keepalive=10s", "for a unix socket"),
            ("redis://h?style=plain&limit_may_change=true", "no permits"),
            ("redis://h?password_file=/no/such/file", "cannot be read"),
            (
                "redis://:hunter2@h?password_file=/etc/passwd",
                "give one of them",
            ),
            ("redis://h?ca=system", "TLS, which is off"),
            ("redis+unix://h/x", "no host"),
            ("redis://h?style=loud", "fair, barging or plain"),
            ("redis://h?prefix=a%7Bb", "has a brace"),
            ("redis://h?prefix=", "prefix is empty"),
            ("redis://h?lease=3s", "is not known"),
            ("redis://h?answer_timeout=0s", "answer_timeout is 0ns"),
            ("redis://h?waiter_lease=1ms", "waiter_lease is 1ms"),
            ("redis://h?cert=/etc/passwd", "belong together"),
            ("redis://h?ca=/etc/passwd", "TLS, which is off"),
            (
                "redis+unix:///s?cert=/etc/passwd&key=/etc/passwd",
                "TLS, which is off",
            ),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
            assert_eq!(error.backend(), Some("redis"), "{url}");
        }
        let outcome = Config::from_url("rediss://h?ca=/no/such/file");
        let error = outcome.expect_err("no TLS, or no such file");
        let (kind, expected) = match cfg!(feature = "tls") {
            true => (ErrorKind::Invalid, "cannot be read"),
            false => (ErrorKind::Unsupported, "of the crate dlock-redis"),
        };
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn secrets_are_never_shown() {
        let config = Config::from_url("redis+sentinel://u:hunter2@h/m?sentinel_password=hunter2")
            .expect("good");
        assert!(!format!("{config:?} {}", config.identity_text()).contains("hunter2"));
    }
}
