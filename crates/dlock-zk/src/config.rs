use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use dlock_core::{BackendUrl, Error, Host, Result};

use crate::ZkBackend;
use crate::key::is_path;

const DEFAULT_PORT: u16 = 2181;
const DEFAULT_SESSION: Duration = Duration::from_secs(30);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_FOLDER: &str = "dlock";
const KNOWN: &[&str] = &[
    "session",
    "connect_timeout",
    "folder",
    "access",
    "ca",
    "cert",
    "key",
];

/// Who may read and change the nodes that this client creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Everybody who reaches the server. The default without a user.
    Open,
    /// Those with the same user and password. The default with a user.
    Creator,
    /// Those with the same user and password; everybody else may look (`inspect`, `list`).
    CreatorAndReaders,
}

impl FromStr for Access {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "open" => Ok(Self::Open),
            "creator" => Ok(Self::Creator),
            "creator-read" => Ok(Self::CreatorAndReaders),
            _ => Err("it is open, creator or creator-read"),
        }
    }
}

/// Which ensemble, and how to talk to it.
///
/// ```
/// use std::time::Duration;
/// use dlock_zk::Config;
///
/// let by_url = Config::from_url("zk://app:s3cret@zk-1,zk-2:2182/shop?session=10s")?;
/// let by_hand = Config::new([("zk-1", 2181), ("zk-2", 2182)])
///     .chroot("/shop")
///     .credentials("app", "s3cret")
///     .session(Duration::from_secs(10));
/// assert_eq!(by_url, by_hand);
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    hosts: Vec<Host>,
    chroot: String,
    credentials: Option<(String, String)>,
    session: Duration,
    connect_timeout: Duration,
    folder: String,
    access: Option<Access>,
    tls: Option<Tls>,
}

/// PEM texts.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    pub(crate) ca: String,
    pub(crate) identity: Option<(String, String)>,
}

impl Config {
    /// The servers of one ensemble; all of them, or as many as should be tried.
    pub fn new<H: Into<String>>(hosts: impl IntoIterator<Item = (H, u16)>) -> Self {
        let hosts = hosts.into_iter().map(|(name, port)| Host {
            name: name.into(),
            port: Some(port),
        });
        Self::of(hosts.collect())
    }

    fn of(hosts: Vec<Host>) -> Self {
        let port = |host: Host| Host {
            port: host.port.or(Some(DEFAULT_PORT)),
            ..host
        };
        Self {
            hosts: hosts.into_iter().map(port).collect(),
            chroot: String::new(),
            credentials: None,
            session: DEFAULT_SESSION,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            folder: DEFAULT_FOLDER.to_owned(),
            access: None,
            tls: None,
        }
    }

    /// Reads `zk://user:password@h1:2181,h2:2181/chroot?key=value`, or `zks://` with TLS.
    ///
    /// The parameters are `session`, `connect_timeout`, `folder`, `access` and, with `zks`, the files `ca`, `cert` and `key`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](dlock_core::ErrorKind::Invalid), naming the part of the URL that is wrong.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut url = BackendUrl::parse(url)?;
        let tls = match url.scheme() {
            "zk" => false,
            "zks" => true,
            other => {
                return Err(Error::invalid(format!(
                    "the URL's scheme is {other:?}: this backend takes zk or zks"
                )));
            }
        };
        let mut config = Self::of(url.hosts().to_vec());
        config.chroot = url.path().trim_end_matches('/').to_owned();
        config.credentials = match (url.user(), url.password()) {
            (Some(user), password) => {
                Some((user.to_owned(), password.unwrap_or_default().to_owned()))
            }
            (None, Some(_)) => {
                return Err(Error::invalid(
                    "the URL has a password but no user: write user:password@",
                ));
            }
            (None, None) => None,
        };
        if let Some(session) = url.take_duration("session")? {
            config.session = session;
        }
        if let Some(limit) = url.take_duration("connect_timeout")? {
            config.connect_timeout = limit;
        }
        if let Some(folder) = url.take("folder")? {
            config.folder = folder;
        }
        config.access = url.take("access")?;
        if tls {
            let file =
                |what: &str, path: Option<String>| path.map(|path| read(what, &path)).transpose();
            let ca = file("ca", url.take("ca")?)?;
            let cert = file("cert", url.take("cert")?)?;
            let key = file("key", url.take("key")?)?;
            config.tls = Some(Tls {
                ca: ca.unwrap_or_default(),
                identity: match (cert, key) {
                    (Some(cert), Some(key)) => Some((cert, key)),
                    (None, None) => None,
                    _ => {
                        return Err(Error::invalid(
                            "the URL's parameters cert and key belong together: give both or none",
                        ));
                    }
                },
            });
        }
        url.finish(KNOWN)?;
        config.check()?;
        Ok(config)
    }

    /// Locks live below this path, which must exist. Default: the root.
    pub fn chroot(mut self, path: impl Into<String>) -> Self {
        self.chroot = path.into().trim_end_matches('/').to_owned();
        self
    }

    /// Digest authentication. ZooKeeper accepts any pair; a wrong one shows as a missing permission on the nodes of others.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// The session's time: how long the locks of a dead client stay taken. Default: 30 s.
    ///
    /// Shorter frees the locks of a dead client sooner, but then a short outage, a change of the leader or a pause of the
    /// program loses them. The server has the last word, within 2 and 20 of its ticks by default; what it grants counts. From 100 ms to
    /// 24 hours.
    pub fn session(mut self, time: Duration) -> Self {
        self.session = time;
        self
    }

    /// How long making a session may take, over all servers. Default: 10 s. From 1 ms to 60 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The node below the chroot that holds a node for each lock. Default: `dlock`.
    ///
    /// A lock `stock` is the node `/chroot/dlock/stock`, and that is the path to give to Curator's `InterProcessMutex`. Several
    /// levels are written with slashes.
    pub fn folder(mut self, folder: impl Into<String>) -> Self {
        self.folder = folder.into();
        self
    }

    /// The ACL of the nodes that this client creates. Default: [`Access::Creator`] with credentials, else [`Access::Open`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// TLS, with the authority (PEM) that signed the servers' certificates.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, ca_pem: impl Into<String>) -> Self {
        self.tls.get_or_insert_default().ca = ca_pem.into();
        self
    }

    /// TLS with a certificate of our own (PEM), for servers that ask for one.
    #[cfg(feature = "tls")]
    pub fn identity(mut self, cert_pem: impl Into<String>, key_pem: impl Into<String>) -> Self {
        self.tls.get_or_insert_default().identity = Some((cert_pem.into(), key_pem.into()));
        self
    }

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// Within the connect time-out: [`Invalid`](dlock_core::ErrorKind::Invalid) for a setting out of its range or a chroot
    /// that does not exist, [`Unreachable`](dlock_core::ErrorKind::Unreachable) or
    /// [`TimedOut`](dlock_core::ErrorKind::TimedOut) when nobody answers, and
    /// [`Denied`](dlock_core::ErrorKind::Denied) when the server does not accept the credentials.
    pub async fn connect(self) -> Result<ZkBackend> {
        self.check()?;
        ZkBackend::connect(self).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid(
                "no host is given: write it like zk://host:2181, several with commas",
            ));
        }
        let ms = Duration::from_millis;
        let minute = Duration::from_secs(60);
        for (what, value, low, high) in [
            ("session", self.session, ms(100), 24 * 60 * minute),
            ("connect_timeout", self.connect_timeout, ms(1), minute),
        ] {
            if !(low..=high).contains(&value) {
                return Err(Error::invalid(format!(
                    "{what} is {value:?}: it must be from {low:?} to {high:?}"
                )));
            }
        }
        if !self.chroot.is_empty() && !is_path(&self.chroot) {
            return Err(Error::invalid(format!(
                "the chroot {:?} is not a path that ZooKeeper takes: write it like /shop/locks",
                self.chroot
            )));
        }
        let folder = self.folder_path();
        if !is_path(&folder) || folder.starts_with("/zookeeper") {
            return Err(Error::invalid(format!(
                "the folder {:?} is not a node name that ZooKeeper takes: write it like dlock or apps/locks",
                self.folder
            )));
        }
        if self.credentials.is_none()
            && matches!(
                self.access,
                Some(Access::Creator | Access::CreatorAndReaders)
            )
        {
            return Err(Error::invalid(
                "the access is the creator's, but there is no user: give user:password, or access=open",
            ));
        }
        if let Some((user, _)) = &self.credentials
            && user.contains(':')
        {
            return Err(Error::invalid(
                "the user has a colon, which digest authentication cannot send",
            ));
        }
        match &self.tls {
            Some(_) if cfg!(not(feature = "tls")) => Err(Error::invalid(
                "TLS is asked for, but dlock-zk was built without the feature \"tls\": enable it",
            )),
            Some(tls) if tls.ca.is_empty() => Err(Error::invalid(
                "TLS needs the authority that signed the servers' certificates: give ca=FILE",
            )),
            _ => Ok(()),
        }
    }

    /// As the client wants it: `h1:2181,h2:2181/chroot`.
    pub(crate) fn servers(&self) -> String {
        format!("{}{}", self.host_list(self.hosts.iter()), self.chroot)
    }

    fn host_list<'a>(&self, hosts: impl Iterator<Item = &'a Host>) -> String {
        let hosts: Vec<String> = hosts.map(|host| host.with_port(DEFAULT_PORT)).collect();
        hosts.join(",")
    }

    /// The folder as an absolute path below the chroot.
    pub(crate) fn folder_path(&self) -> String {
        format!("/{}", self.folder.trim_matches('/'))
    }

    pub(crate) fn chroot_path(&self) -> &str {
        &self.chroot
    }

    pub(crate) fn effective_access(&self) -> Access {
        self.access.unwrap_or(if self.credentials.is_some() {
            Access::Creator
        } else {
            Access::Open
        })
    }

    pub(crate) fn auth(&self) -> Option<String> {
        let (user, password) = self.credentials.as_ref()?;
        Some(format!("{user}:{password}"))
    }

    pub(crate) fn session_time(&self) -> Duration {
        self.session
    }

    pub(crate) fn connect_limit(&self) -> Duration {
        self.connect_timeout
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls_settings(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Where the locks are, without secrets: the same for every client of them.
    pub(crate) fn identity_text(&self) -> String {
        let mut hosts: Vec<&Host> = self.hosts.iter().collect();
        hosts.sort_by_key(|host| (host.name.clone(), host.port));
        let scheme = if self.tls.is_some() { "zks" } else { "zk" };
        let hosts = self.host_list(hosts.into_iter());
        format!("{scheme}://{hosts}{}{}", self.chroot, self.folder_path())
    }
}

fn read(what: &str, path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!(
            "the file {path:?} of the URL's parameter {what} cannot be read: {error}"
        ))
    })
}

/// Without the password and keys.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("store", &self.identity_text())
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .field("session", &self.session)
            .field("connect_timeout", &self.connect_timeout)
            .field("access", &self.effective_access())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[test]
    fn urls_are_read() {
        for (url, identity, servers) in [
            ("zk://h", "zk://h:2181/dlock", "h:2181"),
            (
                "zk://b:1,a/shop?folder=x/y",
                "zk://a:2181,b:1/shop/x/y",
                "b:1,a:2181/shop",
            ),
            ("zk://[::1]/", "zk://[::1]:2181/dlock", "[::1]:2181"),
        ] {
            let config = Config::from_url(url).expect(url);
            assert_eq!(config.identity_text(), identity, "{url}");
            assert_eq!(config.servers(), servers, "{url}");
        }
        let access = |url| Config::from_url(url).expect(url).effective_access();
        assert_eq!(access("zk://h"), Access::Open);
        assert_eq!(access("zk://u:p@h"), Access::Creator);
        assert_eq!(access("zk://u:p@h?access=open"), Access::Open);
    }

    #[test]
    fn mistakes_are_named() {
        for (url, expected) in [
            ("memory:", "takes zk or zks"),
            ("zk:", "no host"),
            ("zk://h?session=1ms", "session is 1ms"),
            ("zk://h?connect_timeout=0s", "connect_timeout is 0ns"),
            ("zk://h?session=soon", "session=\"soon\""),
            ("zk://h//x", "the chroot"),
            ("zk://h/a/../b", "the chroot"),
            ("zk://h?folder=", "the folder"),
            ("zk://h?folder=a//b", "the folder"),
            ("zk://h?folder=zookeeper", "the folder"),
            ("zk://h?access=all", "open, creator or creator-read"),
            ("zk://h?access=creator", "there is no user"),
            ("zk://:p@h", "a password but no user"),
            ("zk://a%3Ab:p@h", "the user has a colon"),
            ("zk://h?lease=3s", "is not known"),
            ("zk://h?ca=/etc/passwd", "does not go together"),
            ("zks://h?ca=/no/such/file", "cannot be read"),
        ] {
            let error = Config::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(expected), "{url}: {error}");
        }
        let error = Config::from_url("zks://h").expect_err("no authority");
        let expected = if cfg!(feature = "tls") {
            "ca=FILE"
        } else {
            "feature \"tls\""
        };
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn the_password_is_never_shown() {
        let config = Config::from_url("zk://me:hunter2@h").expect("good");
        assert!(!format!("{config:?} {}", config.identity_text()).contains("hunter2"));
    }
}
