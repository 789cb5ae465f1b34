use std::fmt;
use std::time::Duration;

use dlock_core::backend::{BackendUrl, Host};
use dlock_core::{Error, Operation, Result};

use crate::EtcdBackend;
use crate::connect::whole_seconds;
use crate::password::Password;

const DEFAULT_PORT: u16 = 2379;
const PARAMETERS: &[&str] = &[
    "answer_timeout",
    "ca",
    "cert",
    "connect_timeout",
    "key",
    "late_limit",
    "password_file",
    "prefix",
    "server_name",
    "session",
    "lease",
];
/// The server's own limit.
const LONGEST_SESSION: Duration = Duration::from_secs(9_000_000_000);

/// Where the etcd cluster is, and how its locks are kept.
///
/// ```
/// use std::time::Duration;
/// use dlock_etcd::Config;
///
/// let config = Config::from_url("etcd://app:s3cret@etcd-1,etcd-2,etcd-3:2379?prefix=shop&session=15s")?
///     .connect_timeout(Duration::from_secs(1));
/// assert!(!format!("{config:?}").contains("s3cret"));
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    pub(crate) hosts: Vec<Host>,
    pub(crate) login: Option<(String, Password)>,
    pub(crate) tls: bool,
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the servers' certificates, instead of the host's own.
    pub(crate) server_name: Option<String>,
    pub(crate) prefix: String,
    pub(crate) session: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) late_limit: Duration,
}

impl Config {
    /// A cluster with these members (host and port), or some of them.
    pub fn new<H: Into<String>>(members: impl IntoIterator<Item = (H, u16)>) -> Self {
        let hosts = members.into_iter().map(|(name, port)| Host {
            name: name.into(),
            port: Some(port),
        });
        Self::of(hosts.collect())
    }

    fn of(hosts: Vec<Host>) -> Self {
        Self {
            hosts,
            login: None,
            tls: false,
            ca: None,
            identity: None,
            server_name: None,
            prefix: "dlock".to_owned(),
            session: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(2),
            late_limit: Duration::from_secs(600),
        }
    }

    /// Reads `etcd://user:password@host1:2379,host2:2379?parameter=value`; `etcds://` uses TLS (feature `tls`).
    ///
    /// Parameters: `prefix`, `session`, `connect_timeout`, `answer_timeout`, `late_limit`: each as the setting of that name; `ca`, `cert` and
    /// `key`: files in PEM form. `lease` is another word for `session`, which every store knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part that is wrong; never with a password in it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::parse(url).map_err(|error| {
            error
                .with_backend("etcd")
                .with_operation(Operation::Configure)
        })
    }

    fn parse(url: &str) -> Result<Self> {
        let mut url = BackendUrl::parse(url)?;
        let tls = match url.scheme() {
            "etcd" => false,
            "etcds" => true,
            other => {
                return Err(Error::invalid(format!(
                    "the URL's scheme is {other:?}: this backend takes etcd, and etcds for TLS"
                )));
            }
        };
        if !matches!(url.path(), "" | "/") {
            return Err(Error::invalid(format!(
                "the URL has the path {:?}: write a prefix of keys as ?prefix=…",
                url.path()
            )));
        }
        let mut config = Self::of(url.hosts().to_vec());
        config.tls = tls;
        let file: Option<String> = url.take("password_file")?;
        config.login = match (url.user(), url.password(), file) {
            (Some(user), Some(password), None) => {
                Some((user.to_owned(), Password::Text(password.to_owned())))
            }
            (Some(user), None, Some(file)) => Some((user.to_owned(), Password::File(file.into()))),
            (None, None, None) => None,
            (_, Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "the URL has a password and password_file: give one of them",
                ));
            }
            _ => {
                return Err(Error::invalid(
                    "the URL has a user without a password or the other way round: give both or none",
                ));
            }
        };
        if let Some(prefix) = url.take("prefix")? {
            config.prefix = prefix;
        }
        if let Some(session) = url.take_session("session")? {
            config.session = session;
        }
        for (key, setting) in [
            ("connect_timeout", &mut config.connect_timeout),
            ("answer_timeout", &mut config.answer_timeout),
            ("late_limit", &mut config.late_limit),
        ] {
            if let Some(value) = url.take_duration(key)? {
                *setting = value;
            }
        }
        config.server_name = url.take("server_name")?;
        config.ca = url.take("ca")?.map(|path| read("ca", path)).transpose()?;
        let cert: Option<String> = url.take("cert")?;
        let key: Option<String> = url.take("key")?;
        config.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "the URL's parameters cert and key belong together: give both or none",
                ));
            }
        };
        url.finish(PARAMETERS)?;
        config.check()?;
        Ok(config)
    }

    /// User and password. Default: none. The password is never shown in `Debug` output or errors.
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), Password::Text(password.into())));
        self
    }

    /// The same, with a password that is read from a file for each connection, so that it can be changed while the program runs. A line break at its end
    /// does not count.
    pub fn login_file(
        mut self,
        user: impl Into<String>,
        password: impl Into<std::path::PathBuf>,
    ) -> Self {
        self.login = Some((user.into(), Password::File(password.into())));
        self
    }

    /// The name in the servers' certificates, where it is not the host's own: for servers that are reached by an address, or through a tunnel.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Whether to use TLS (needs the feature `tls`). Default: no, except with `etcds://`.
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// The authority that has signed the servers' certificates, in PEM form. Default: those the machine trusts.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// The client's own certificate and key, in PEM form. Default: none.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// What all keys start with, followed by a `/`. Default: `dlock`. Everybody who shares a lock must use the same. One may not lie in
    /// another, like `a/b` in `a`. 1 to 255 bytes without control characters.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the store keeps the client's lease, and all its locks, without a sign of life. Default: 10 s.
    ///
    /// A short session frees the locks of a dead holder sooner; a long one survives longer outages. Whole seconds, rounded up; the
    /// server may make it longer (1.5 times its election time is its shortest). At least 1 s.
    pub fn session(mut self, ttl: Duration) -> Self {
        self.session = ttl;
        self
    }

    /// How long [`connect`](Config::connect) may take in all. Default: 5 s. Several servers are tried in turn, each for its share. At
    /// least 1 ms.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long one server may take to answer before the next is asked. Default: 2 s. At least 1 ms.
    ///
    /// Shorter finds a hanging server sooner; too short mistakes a busy one for it. What keeps the session alive never waits longer than
    /// about a seventh of the session, so that a second member can be asked in time, and with several members other
    /// requests wait no longer than a third of it, whatever is set here.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit;
        self
    }

    /// How long a request that was given up may still be under way to the store, in buffers of the network or of a proxy. Default: 10
    /// minutes. At least 1 s.
    ///
    /// So long a mark in the store makes such a request fail. Too short, and one that comes later puts an entry that nobody holds, and
    /// that stands in others' way until this client has noticed or its session has ended.
    pub fn late_limit(mut self, limit: Duration) -> Self {
        self.late_limit = limit;
        self
    }

    /// Connects, logs in, and takes the client's lease.
    ///
    /// # Errors
    ///
    /// A setting that is wrong, or a cluster that cannot be reached or refuses us, within the connect time-out.
    pub async fn connect(self) -> Result<EtcdBackend> {
        let checked = self.check();
        let connected = match checked {
            Ok(()) => EtcdBackend::connect(self).await,
            Err(error) => Err(error),
        };
        connected.map_err(|error| {
            error
                .with_backend("etcd")
                .with_operation(Operation::Connect)
        })
    }

    fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid("no server is named: write etcd://host:2379"));
        }
        for (what, limit) in [
            ("connect_timeout", self.connect_timeout),
            ("answer_timeout", self.answer_timeout),
        ] {
            if limit < Duration::from_millis(1) {
                return Err(Error::invalid(format!(
                    "{what} is {limit:?}: give 1ms or more"
                )));
            }
        }
        if self.late_limit < Duration::from_secs(1) {
            return Err(Error::invalid(format!(
                "late_limit is {:?}: give 1s or more",
                self.late_limit
            )));
        }
        if self.session < Duration::from_secs(1) || self.session > LONGEST_SESSION {
            return Err(Error::invalid(format!(
                "session is {:?}: it must be from 1s to 9000000000s",
                self.session
            )));
        }
        let prefix = &self.prefix;
        if prefix.is_empty() || prefix.len() > 255 || prefix.contains(char::is_control) {
            return Err(Error::invalid(
                "prefix must have 1 to 255 bytes and no control characters",
            ));
        }
        if let Some((_, password)) = &self.login {
            password.read().map_err(Error::invalid)?;
        }
        if !self.tls && (self.ca.is_some() || self.identity.is_some() || self.server_name.is_some())
        {
            return Err(Error::invalid(
                "certificates or their name are given but TLS is off: write etcds://, or leave them out",
            ));
        }
        Ok(())
    }

    /// How long one member may take to answer before the next is asked. With several, a silent one must not cost more than a third of the
    /// session, or what was proven before the request has lapsed when the next one answers (docs/timeouts.md).
    pub(crate) fn member_timeout(&self) -> Duration {
        if self.hosts.len() > 1 {
            self.answer_timeout.min(self.session / 3)
        } else {
            self.answer_timeout
        }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.hosts
            .iter()
            .map(|host| host.with_port(DEFAULT_PORT))
            .collect()
    }

    /// Which store this is: two clients of the same locks give the same text.
    pub(crate) fn identity(&self) -> String {
        let mut hosts = self.addresses();
        hosts.sort();
        format!("etcd://{}/{}", hosts.join(","), self.prefix)
    }
}

fn read(what: &str, path: String) -> Result<Vec<u8>> {
    std::fs::read(&path).map_err(|why| {
        Error::invalid(format!(
            "the file of the URL's parameter {what}={path:?} cannot be read: {why}"
        ))
    })
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.addresses())
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("session_seconds", &whole_seconds(self.session))
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("late_limit", &self.late_limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("redis://a", "takes etcd"),
            ("etcd://", "no server is named"),
            ("etcd://a/path", "?prefix="),
            ("etcd://user@a", "give both or none"),
            ("etcd://a?session=0s", "session is 0ns"),
            ("etcd://a?session=999ms", "session is"),
            ("etcd://a?answer_timeout=0s", "answer_timeout is"),
            ("etcd://a?late_limit=10ms", "late_limit is 10ms"),
            ("etcd://a?prefix=", "prefix must have"),
            ("etcd://a?cert=x", "belong together"),
            ("etcds://a?ca=/does/not/exist", "cannot be read"),
            ("etcd://u@a?password_file=/does/not/exist", "cannot be read"),
            ("etcd://u:p@a?password_file=/x", "give one of them"),
            ("etcd://a?password_file=/x", "give both or none"),
            ("etcd://a?server_name=x", "but TLS is off"),
            ("etcd://a?lifetime=5s", "it takes answer_timeout, ca"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert!(error.to_string().contains(expected), "{url}: {error}");
            assert!(
                error.to_string().starts_with("etcd: configure: "),
                "{error}"
            );
        }
    }

    #[test]
    fn everything_in_a_url_arrives() {
        let config = Config::from_url(
            "etcd://me:p%40ss@a,[::1]:9/?prefix=shop&session=1500ms&connect_timeout=1s&answer_timeout=500ms",
        )
        .expect("a good URL");
        assert_eq!(config.addresses(), ["a:2379", "[::1]:9"]);
        let password = Password::Text("p@ss".to_owned());
        assert_eq!(config.login, Some(("me".to_owned(), password)));
        assert_eq!(config.prefix, "shop");
        assert_eq!(whole_seconds(config.session), 2);
        assert_eq!(config.identity(), "etcd://[::1]:9,a:2379/shop");
        let shown = format!("{config:?}");
        assert!(shown.contains("me") && !shown.contains("p@ss"), "{shown}");
        let config = Config::from_url("etcd://a?lease=7s").expect("the portable word");
        assert_eq!(whole_seconds(config.session), 7);
        let error = Config::from_url("etcd://a?lease=7s&session=7s").expect_err("both");
        assert!(error.to_string().contains("give one of them"), "{error}");
    }
}
