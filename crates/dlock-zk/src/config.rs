mod access;
mod from_url;
mod login;
mod style;

use std::fmt;
use std::time::Duration;

use dlock_core::backend::Host;
use dlock_core::kit::{self, Login, TIMEOUTS, Tls, TlsOffer, within};
use dlock_core::{Error, Result};

pub use self::access::Access;
pub(crate) use self::access::{Grant, Grants};
pub use self::login::Auth;
pub(crate) use self::login::ShownLogin;
pub use self::style::Style;
use crate::ZkBackend;
use crate::key::is_path;

pub(crate) const DEFAULT_PORT: u16 = 2181;
const DEFAULT_SESSION: Duration = Duration::from_secs(30);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_FOLDER: &str = "dlock";
const TLS: TlsOffer = TlsOffer {
    crate_name: "dlock-zk",
    enabled: cfg!(feature = "tls"),
    // Its usual authorities are those of the system.
    system_ca: true,
    unverified: false,
    server_name: true,
};

/// Which ensemble, and how to talk to it.
///
/// ```
/// use std::time::Duration;
/// use dlock_zk::Config;
///
/// let by_url = Config::from_url("zk://app:s3cret@zk-1,zk-2:2182/shop?session=10s")?;
/// let by_hand = Config::new([("zk-1", 2181), ("zk-2", 2182)])
///     .chroot("/shop")
///     .user("app")
///     .password("s3cret")
///     .session(Duration::from_secs(10));
/// assert_eq!(by_url, by_hand);
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "nothing happens until `connect`"]
pub struct Config {
    hosts: Vec<Host>,
    chroot: String,
    login: Login,
    auth: Auth,
    session: Duration,
    connect_timeout: Duration,
    folder: String,
    style: Style,
    access: Option<Access>,
    grants: Vec<Grant>,
    tls: Option<Tls>,
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
            login: Login::default(),
            auth: Auth::Digest,
            session: DEFAULT_SESSION,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            folder: DEFAULT_FOLDER.to_owned(),
            style: Style::Mutex,
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

    /// The session's time: how long the locks of a dead client stay taken. Default: 30 s.
    ///
    /// Shorter frees the locks of a dead client sooner, but then a short outage, a change of the leader or a pause of the
    /// program loses them. The server has the last word, within 2 and 20 of its ticks by default; what it grants counts. From 100 ms to
    /// 24 hours.
    pub fn session(mut self, time: Duration) -> Self {
        self.session = time;
        self
    }

    /// How long making a session may take, over all servers. Default: 10 s. From 1 ms to 10 min.
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

    /// How nodes are named, for programs with Curator that use the same paths. Default: [`Style::Mutex`].
    ///
    /// Our own clients understand each other whatever their style.
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
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

    /// Opens a session.
    ///
    /// # Errors
    ///
    /// Within the connect time-out: [`Invalid`](dlock_core::ErrorKind::Invalid) for a setting out of its range or a chroot
    /// that does not exist, [`Unreachable`](dlock_core::ErrorKind::Unreachable) or
    /// [`TimedOut`](dlock_core::ErrorKind::TimedOut) when nobody answers, and
    /// [`Denied`](dlock_core::ErrorKind::Denied) when the server does not accept the credentials.
    pub async fn connect(self) -> Result<ZkBackend> {
        dlock_core::backend::need_runtime("zk")?;
        self.check()
            .map_err(|error| Self::URL.with_context(error))?;
        ZkBackend::connect(self).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::invalid(
                "no host is given: write it like zk://host:2181, several with commas",
            ));
        }
        let day = Duration::from_secs(24 * 3600);
        within("session", self.session, Duration::from_millis(100)..=day)?;
        within("connect_timeout", self.connect_timeout, TIMEOUTS)?;
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
        if !self.login.is_some()
            && matches!(
                self.access,
                Some(Access::Creator | Access::CreatorAndReaders)
            )
        {
            return Err(Error::invalid(
                "the access is the creator's, but there is no user: give user:password, or access=open",
            ));
        }
        self.check_login()?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check(TLS))
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
        match self.access {
            Some(access) => Some(access),
            None if self.login.is_some() => Some(Access::Creator),
            None => self.grants.is_empty().then_some(Access::Open),
        }
    }

    pub(crate) fn grants(&self) -> &[Grant] {
        &self.grants
    }

    pub(crate) fn style_of_names(&self) -> Style {
        self.style
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

kit::network_settings!(Config);

/// Without the password and keys.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("store", &self.identity_text())
            .field("login", &self.login)
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
