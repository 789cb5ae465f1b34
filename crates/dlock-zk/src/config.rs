mod from_url;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use dlock_core::{Error, Host, Result};

use crate::ZkBackend;
use crate::key::is_path;

const DEFAULT_PORT: u16 = 2181;
const DEFAULT_SESSION: Duration = Duration::from_secs(30);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_FOLDER: &str = "dlock";

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

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
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

    #[test]
    fn the_password_is_never_shown() {
        let config = Config::from_url("zk://me:hunter2@h").expect("good");
        assert!(!format!("{config:?} {}", config.identity_text()).contains("hunter2"));
    }
}
