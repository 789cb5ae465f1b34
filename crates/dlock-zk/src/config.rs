mod access;
mod from_url;

use std::fmt;
use std::time::Duration;

use dlock_core::backend::Host;
use dlock_core::{Error, Result};

pub use self::access::Access;
pub(crate) use self::access::{Grant, Grants, Login, Password, Scheme};
use crate::ZkBackend;
use crate::key::is_path;

pub(crate) const DEFAULT_PORT: u16 = 2181;
const DEFAULT_SESSION: Duration = Duration::from_secs(30);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_FOLDER: &str = "dlock";

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
    credentials: Option<(String, Password)>,
    scheme: Scheme,
    session: Duration,
    connect_timeout: Duration,
    folder: String,
    access: Option<Access>,
    grants: Vec<Grant>,
    tls: Option<Tls>,
}

/// PEM texts.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Tls {
    /// None: those that the machine trusts.
    pub(crate) ca: Option<String>,
    pub(crate) identity: Option<(String, String)>,
    /// Instead of the host's own name.
    pub(crate) server_name: Option<String>,
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
            scheme: Scheme::Digest,
            session: DEFAULT_SESSION,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            folder: DEFAULT_FOLDER.to_owned(),
            access: None,
            grants: Vec::new(),
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
        self.credentials = Some((user.into(), Password::Text(password.into())));
        self
    }

    /// The same, with a password that is read from a file for each connection, so that it can be changed while the program runs. A line break at its end
    /// does not count.
    pub fn credentials_file(
        mut self,
        user: impl Into<String>,
        password: impl Into<std::path::PathBuf>,
    ) -> Self {
        self.credentials = Some((user.into(), Password::File(password.into())));
        self
    }

    /// SASL authentication with DIGEST-MD5, as one of the users whom the servers know (`DigestLoginModule` in their JAAS file).
    ///
    /// A wrong password is refused at connect, and the server has to show that it knows the right one.
    pub fn sasl(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            scheme: Scheme::Sasl,
            ..self.credentials(user, password)
        }
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

    /// Lets others use the nodes that this client creates, beside those of [`access`](Config::access). Without a user and without `access`,
    /// only these may.
    ///
    /// Each is `scheme:id:permissions` as ZooKeeper's own tools write it, several with semicolons: `ip:10.0.0.0/8:r`, `sasl:ops:cdrwa`,
    /// `x509:CN=ops,O=shop:cdrwa`, or `digest:ops:HASH:cdrwa` for another user and password. Who shares a lock needs `cdrwa`, who looks at it `r`;
    /// and all who share it must let each other in.
    ///
    /// # Errors
    ///
    /// [`Invalid`](dlock_core::ErrorKind::Invalid) when it is not written like that.
    pub fn allow(mut self, others: &str) -> Result<Self> {
        let Grants(grants) = others
            .parse()
            .map_err(|form| Error::invalid(format!("allow is {others:?}: {form}")))?;
        self.grants.extend(grants);
        Ok(self)
    }

    /// TLS, with the authority (PEM) that signed the servers' certificates.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, ca_pem: impl Into<String>) -> Self {
        self.tls.get_or_insert_default().ca = Some(ca_pem.into());
        self
    }

    /// TLS, with the authorities that the machine trusts.
    #[cfg(feature = "tls")]
    pub fn tls_with_system_roots(mut self) -> Self {
        self.tls.get_or_insert_default().ca = None;
        self
    }

    /// TLS, with this name in the servers' certificates instead of the host's own: for servers that are reached by an address, or through a tunnel.
    #[cfg(feature = "tls")]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.get_or_insert_default().server_name = Some(name.into());
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
        if self.scheme == Scheme::Sasl && self.credentials.is_none() {
            return Err(Error::invalid(
                "SASL is asked for, but there is no user: give user:password",
            ));
        }
        if let Some((_, password)) = &self.credentials {
            password.read().map_err(Error::invalid)?;
        }
        if let Some((user, _)) = &self.credentials
            && self.scheme == Scheme::Digest
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
            _ => Ok(()),
        }
    }

    /// As ZooKeeper's clients want it: `h1:2181,h2:2181/chroot`.
    #[cfg(any(test, feature = "client"))]
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

    /// Whom [`access`](Config::access) lets in; `None`: nobody but those of [`allow`](Config::allow).
    pub(crate) fn effective_access(&self) -> Option<Access> {
        match (self.access, &self.credentials) {
            (Some(access), _) => Some(access),
            (None, Some(_)) => Some(Access::Creator),
            (None, None) => self.grants.is_empty().then_some(Access::Open),
        }
    }

    pub(crate) fn grants(&self) -> &[Grant] {
        &self.grants
    }

    pub(crate) fn login(&self) -> Option<Login> {
        let (user, password) = self.credentials.clone()?;
        Some(match self.scheme {
            Scheme::Digest => Login::Digest { user, password },
            Scheme::Sasl => Login::Sasl { user, password },
        })
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
