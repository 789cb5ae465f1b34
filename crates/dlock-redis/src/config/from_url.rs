//! The settings as a URL.

use std::path::PathBuf;

use dlock_core::backend::BackendUrl;
use dlock_core::{Error, Operation, Result};

use super::{Config, Pem, Roots, Source, Style, Topology};

const PARAMETERS: &[&str] = &[
    "answer_timeout",
    "ca",
    "cert",
    "connect_timeout",
    "db",
    "fence_ttl",
    "keepalive",
    "key",
    "limit_may_change",
    "password",
    "password_file",
    "prefix",
    "replicas",
    "replicas_timeout",
    "sentinel_password",
    "sentinel_user",
    "style",
    "tls",
    "user",
    "user_timeout",
    "waiter_lease",
];

impl Config {
    /// Reads a URL:
    ///
    /// | URL | what it is |
    /// |---|---|
    /// | `redis://user:password@host:port/db` | one server |
    /// | `rediss://…` | the same with TLS (feature `tls`) |
    /// | `redis+unix:///path/to/socket?db=0&user=…&password=…` | one server at a unix socket |
    /// | `redis+sentinel://user:password@s1:26379,s2,s3/master/db` | the master the sentinels know |
    /// | `redis+cluster://user:password@n1:7000,n2:7001` | a cluster |
    ///
    /// `rediss+sentinel` and `rediss+cluster` use TLS. Parameters: `prefix`, `style` (`fair`, `barging`, `plain`), `connect_timeout`,
    /// `answer_timeout`, `waiter_lease`, `fence_ttl`, `replicas`, `replicas_timeout`, `limit_may_change` (`true` or `false`), `tls` (`true` or
    /// `false`), `ca` (a file in PEM form, or `system`), `cert` and `key` (files in PEM form; all three only with TLS, and read again for
    /// each connection), `password_file`, `keepalive`, `user_timeout`, `sentinel_user`, `sentinel_password`: each as the setting of that
    /// name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(|error| {
            error
                .with_backend("redis")
                .with_operation(Operation::Configure)
        })
    }

    fn parse(url: &str) -> Result<Self> {
        let mut url = BackendUrl::parse(url)?;
        let (scheme, tls) = match url.scheme() {
            "redis" => ("single", false),
            "rediss" => ("single", true),
            "redis+unix" => ("unix", false),
            "redis+sentinel" => ("sentinel", false),
            "rediss+sentinel" => ("sentinel", true),
            "redis+cluster" => ("cluster", false),
            "rediss+cluster" => ("cluster", true),
            other => {
                return Err(Error::invalid(format!(
                    "the URL's scheme is {other:?}: this backend takes redis, rediss, redis+unix, redis+sentinel, \
                     rediss+sentinel, redis+cluster and rediss+cluster"
                )));
            }
        };
        let mut path = url.path().to_owned();
        let mut config = match scheme {
            "unix" => {
                if path.is_empty() || !url.hosts().is_empty() {
                    return Err(Error::invalid(
                        "the URL of a unix socket needs a path and no host: write redis+unix:///path/to/socket",
                    ));
                }
                Self::new(Topology::Unix(PathBuf::from(std::mem::take(&mut path))))
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
                Self::new(Topology::Sentinel {
                    sentinels: url.hosts().to_vec(),
                    master: master.to_owned(),
                })
            }
            "cluster" => Self::new(Topology::Cluster(url.hosts().to_vec())),
            _ => match url.hosts() {
                [host] => Self::new(Topology::Single(host.clone())),
                [] => {
                    return Err(Error::invalid(
                        "the URL names no host: write redis://host:port",
                    ));
                }
                _ => {
                    return Err(Error::invalid(
                        "the URL names several hosts: use redis+sentinel:// or redis+cluster://, or redlock:// for independent \
                         masters",
                    ));
                }
            },
        };
        config.tls = tls;
        config.user = url.user().map(str::to_owned);
        config.password = url.password().map(str::to_owned);
        config.take_parameters(&mut url, &path)?;
        url.finish(PARAMETERS)?;
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
            self.db = url.take("db")?.unwrap_or(0);
            self.user = url.take("user")?;
            self.password = url.take("password")?;
        }
        if matches!(self.topology, Topology::Sentinel { .. }) {
            self.sentinel_user = url.take("sentinel_user")?;
            self.sentinel_password = url.take("sentinel_password")?;
        }
        if let Some(on) = url.take("tls")? {
            self.tls = on;
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
        for (key, setting) in [
            ("connect_timeout", &mut self.connect_timeout),
            ("answer_timeout", &mut self.answer_timeout),
            ("waiter_lease", &mut self.waiter_lease),
            ("fence_ttl", &mut self.fence_ttl),
            ("replicas_timeout", &mut self.replicas_timeout),
        ] {
            if let Some(value) = url.take_duration(key)? {
                *setting = value;
            }
        }
        self.replicas = url.take("replicas")?.unwrap_or(0);
        self.keepalive = url.take_duration("keepalive")?;
        self.user_timeout = url.take_duration("user_timeout")?;
        self.limit_may_change = url.take("limit_may_change")?.unwrap_or(false);
        let file: Option<String> = url.take("password_file")?;
        self.changing = file.map(|path| Source::File(path.into()));
        match url.take::<String>("ca")?.as_deref() {
            None => {}
            Some("system") => self.roots = Roots::System,
            Some(path) => self.roots = Roots::Pem(Pem::File(path.into())),
        }
        let cert: Option<String> = url.take("cert")?;
        let key: Option<String> = url.take("key")?;
        self.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((Pem::File(cert.into()), Pem::File(key.into()))),
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
                "leave one of them out",
            ),
            ("redis://h?ca=system", "TLS is off"),
            ("redis+unix://h/x", "no host"),
            ("redis://h?style=loud", "fair, barging or plain"),
            ("redis://h?prefix=a%7Bb", "has a brace"),
            ("redis://h?prefix=", "prefix is empty"),
            ("redis://h?lease=3s", "is not known"),
            ("redis://h?answer_timeout=0s", "answer_timeout is 0ns"),
            ("redis://h?waiter_lease=1ms", "waiter_lease is 1ms"),
            ("redis://h?ca=/no/such/file", "cannot be read"),
            ("redis://h?cert=/etc/passwd", "belong together"),
            ("redis://h?ca=/etc/passwd", "TLS is off"),
            (
                "redis+unix:///s?cert=/etc/passwd&key=/etc/passwd",
                "TLS is off",
            ),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
        #[cfg(not(feature = "tls"))]
        {
            let error = Config::from_url("rediss://h").expect_err("no TLS");
            assert!(error.to_string().contains("feature \"tls\""), "{error}");
        }
    }

    #[test]
    fn secrets_are_never_shown() {
        let config = Config::from_url("redis+sentinel://u:hunter2@h/m?sentinel_password=hunter2")
            .expect("good");
        assert!(!format!("{config:?} {}", config.identity_text()).contains("hunter2"));
    }
}
