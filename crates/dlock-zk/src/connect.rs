//! The client: one session, and its requests. The only file, beside `error.rs`, that names client types.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result};
use futures::FutureExt;
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{
    Acl, Acls, AuthId, Client, CreateMode, EventType, OneshotWatcher, Permission, SessionInfo,
    SessionState,
};

use crate::config::{Access, Config};
use crate::error::{Fault, disconnected};
use crate::fence::Change;

/// A server that says nothing for this long is left for another one, also in a long session. Otherwise the client waits for two
/// fifths of the session, in which nothing could be acquired.
const SILENCE: Duration = Duration::from_secs(4);

type Answer<T> = std::result::Result<T, Fault>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Connected.
    Up,
    /// Not connected at the moment.
    Down,
    /// Expired, closed or refused: nothing brings it back.
    Ended,
    /// The runtime that kept it alive has ended. Until it expires, it can be taken up again.
    Orphaned,
}

impl State {
    fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Orphaned)
    }
}

/// One ZooKeeper session. Dropping the last reference closes it.
pub(crate) struct Session {
    client: Client,
    state: watch::Receiver<State>,
    breaks: Arc<AtomicU64>,
    acls: Vec<Acl>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id_text())
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// What we need of a node's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) owner: i64,
    /// How often a child came or went.
    pub(crate) child_changes: i32,
}

impl From<zookeeper_client::Stat> for Stat {
    fn from(stat: zookeeper_client::Stat) -> Self {
        Self {
            czxid: stat.czxid,
            owner: stat.ephemeral_owner,
            child_changes: stat.cversion,
        }
    }
}

/// What a watch has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    Deleted,
    Changed,
    SessionEnded,
}

/// A watch that the server has set. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Watch(OneshotWatcher);

impl Watch {
    pub(crate) async fn seen(self) -> Seen {
        // The client unwraps the end of its own task, which comes when the runtime of the session is dropped while a task of another
        // runtime waits.
        let event = AssertUnwindSafe(self.0.changed()).catch_unwind().await;
        match event.map(|event| event.event_type) {
            Ok(EventType::NodeDeleted) => Seen::Deleted,
            Ok(EventType::Session) | Err(_) => Seen::SessionEnded,
            Ok(_) => Seen::Changed,
        }
    }
}

impl Session {
    /// A new session.
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        Self::connect(config, None).await
    }

    /// The same session in the present runtime; `None` when the server does not know it any more.
    pub(crate) async fn take_up(&self, config: &Config) -> Result<Option<Self>> {
        let info = self.client.session().clone();
        match Self::connect(config, Some(info)).await {
            Ok(session) => Ok(Some(session)),
            Err(error) if is_expired(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends it, and waits until the server has confirmed.
    pub(crate) async fn close(self, limit: Duration) -> Result<()> {
        let mut state = self.state.clone();
        drop(self);
        match timeout(limit, state.wait_for(|state| state.is_over())).await {
            Ok(_) => Ok(()),
            Err(_) => Err(disconnected()),
        }
    }

    async fn connect(config: &Config, old: Option<SessionInfo>) -> Result<Self> {
        let client = connect(config, old).await?;
        let breaks = Arc::<AtomicU64>::default();
        Ok(Self {
            state: follow(&client, breaks.clone()),
            client,
            breaks,
            acls: acls(config.effective_access()),
        })
    }

    pub(crate) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// How long the server keeps it without a sign of life.
    pub(crate) fn ttl(&self) -> Duration {
        self.client.session_timeout()
    }

    /// How often the connection was lost. On one connection, watches tell in the order of what happened.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    pub(crate) fn id_text(&self) -> String {
        self.client.session_id().to_string()
    }

    /// Whether it has ended for good, and its nodes with it.
    pub(crate) fn is_ended(&self) -> bool {
        *self.state.borrow() == State::Ended || self.client.state().is_terminated()
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.state.borrow().is_over() && !self.client.state().is_terminated()
    }

    /// Whether a request would be sent at once, as far as we know.
    pub(crate) fn is_up(&self) -> bool {
        *self.state.borrow() == State::Up && self.client.state() == SessionState::SyncConnected
    }

    /// Resolves when requests are sent at once. They are not made before: the client would keep them, and send them
    /// when nobody wants them any more.
    pub(crate) async fn up(&self) -> Result<()> {
        let mut state = self.state.clone();
        loop {
            let now = *state.borrow_and_update();
            match now {
                State::Up => return Ok(()),
                State::Ended | State::Orphaned => return Err(self.ended()),
                State::Down => {}
            }
            if state.changed().await.is_err() {
                return Err(self.ended());
            }
        }
    }

    /// Resolves when the connection is lost, or the session has ended.
    pub(crate) async fn down(&self) {
        let _ = self
            .state
            .clone()
            .wait_for(|state| *state != State::Up)
            .await;
    }

    pub(crate) fn ended(&self) -> Error {
        let cause = match self.client.state() {
            SessionState::AuthFailed => zookeeper_client::Error::AuthFailed,
            _ => zookeeper_client::Error::SessionExpired,
        };
        Fault::Ended(cause).into()
    }

    /// Creates an ephemeral node; ZooKeeper adds a number to its name. Tells the number and the statistics.
    ///
    /// As with every request here, the call sends it; the future only waits for the answer.
    pub(crate) fn create_place<'a>(
        &'a self,
        prefix: &'a str,
        data: &[u8],
    ) -> impl Future<Output = Answer<(String, Stat)>> + Send + 'a {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::new(&self.acls));
        let created = self.client.create(prefix, data, &options);
        async move {
            let (stat, sequence) = created.await?;
            Ok((sequence.to_string(), stat.into()))
        }
    }

    /// Creates a node that the server removes some time after its last child has gone.
    pub(crate) fn create_container<'a>(
        &'a self,
        path: &'a str,
    ) -> impl Future<Output = Answer<()>> + Send + 'a {
        let options = CreateMode::Container.with_acls(Acls::new(&self.acls));
        let created = self.client.create(path, b"", &options);
        async move {
            created.await?;
            Ok(())
        }
    }

    pub(crate) fn delete(&self, path: &str) -> impl Future<Output = Answer<()>> + Send + use<> {
        let deleted = self.client.delete(path, None);
        deleted.map(|answer| answer.map_err(Fault::from))
    }

    pub(crate) fn children(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<(Vec<String>, Stat)>> + Send + use<> {
        let listed = self.client.get_children(path);
        listed.map(|answer| {
            let (children, stat) = answer?;
            Ok((children, stat.into()))
        })
    }

    pub(crate) async fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Watch)> {
        let (children, watcher) = self.client.list_and_watch_children(path).await?;
        Ok((children, Watch(watcher)))
    }

    pub(crate) fn data(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<(Vec<u8>, Stat)>> + Send + use<> {
        let read = self.client.get_data(path);
        read.map(|answer| {
            let (data, stat) = answer?;
            Ok((data, stat.into()))
        })
    }

    /// Reads a node and watches it. A node that is not there is not watched.
    pub(crate) fn watch_data(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<(Vec<u8>, Watch)>> + Send + use<'_> {
        let read = self.client.get_and_watch_data(path);
        read.map(|answer| {
            let (data, _, watcher) = answer?;
            Ok((data, Watch(watcher)))
        })
    }

    pub(crate) fn stat(
        &self,
        path: &str,
    ) -> impl Future<Output = Answer<Option<Stat>>> + Send + use<> {
        let checked = self.client.check_stat(path);
        checked.map(|answer| Ok(answer?.map(Stat::from)))
    }

    pub(crate) fn set_data(
        &self,
        path: &str,
        data: &[u8],
    ) -> impl Future<Output = Answer<()>> + Send + use<> {
        let set = self.client.set_data(path, data, None);
        set.map(|answer| {
            answer?;
            Ok(())
        })
    }

    /// A trip to the leader: what is read afterwards is as new as this call.
    pub(crate) fn sync(&self) -> impl Future<Output = Answer<()>> + Send + '_ {
        self.client
            .sync("/")
            .map(|answer| answer.map_err(Fault::from))
    }

    /// All changes or none, and none unless `node` exists. `Ok(false)`: it does not.
    pub(crate) async fn commit_if(&self, node: &str, changes: &[Change]) -> Answer<bool> {
        use zookeeper_client::CheckWriteError as Failed;
        // Absolute paths of the user's own: the folder and the chroot are ours.
        let client = self
            .client
            .clone()
            .chroot("/")
            .unwrap_or_else(|client| client);
        let acls = Acls::new(&self.acls);
        let mut writer = client.new_check_writer(node, None)?;
        for change in changes {
            match change {
                Change::Create { path, data } => {
                    writer.add_create(path, data, &CreateMode::Persistent.with_acls(acls))?;
                }
                Change::Set {
                    path,
                    data,
                    version,
                } => writer.add_set_data(path, data, *version)?,
                Change::Delete { path, version } => writer.add_delete(path, *version)?,
                Change::Check { path, version } => writer.add_check_version(path, *version)?,
            }
        }
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(Failed::CheckFailed { .. }) => Ok(false),
            Err(other) => Err(zookeeper_client::Error::from(other).into()),
        }
    }
}

fn is_expired(error: &Error) -> bool {
    use std::error::Error as _;
    error
        .source()
        .and_then(|source| source.downcast_ref::<zookeeper_client::Error>())
        .is_some_and(|cause| *cause == zookeeper_client::Error::SessionExpired)
}

/// A session of the client, within the connect time-out.
pub(crate) async fn connect(config: &Config, old: Option<SessionInfo>) -> Result<Client> {
    let limit = config.connect_limit();
    match timeout(limit, connector(config, old)?).await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(cause)) => Err(Fault::from(cause).into()),
        Err(_) => Err(Error::new(
            ErrorKind::Unreachable,
            format!(
                "no server of {} answered within {limit:?}: are they running and reachable?",
                config.identity_text()
            ),
        )),
    }
}

/// The client's call that opens a session.
fn connector(
    config: &Config,
    old: Option<SessionInfo>,
) -> Result<impl Future<Output = Result<Client, zookeeper_client::Error>> + Send> {
    let session = config.session_time();
    let mut connector = Client::connector()
        .with_session_timeout(session)
        .with_connection_timeout(SILENCE.min(session * 2 / 5));
    if let Some(auth) = config.auth() {
        connector = connector.with_auth("digest", auth.as_bytes());
    }
    if let Some(old) = old {
        connector = connector.with_session(old);
    }
    let servers = config.servers();
    #[cfg(feature = "tls")]
    if let Some(tls) = config.tls_settings() {
        let connector = connector.with_tls(tls_options(tls)?);
        return Ok(async move { connector.secure_connect(&servers).await }.boxed());
    }
    Ok(async move { connector.connect(&servers).await }.boxed())
}

#[cfg(feature = "tls")]
fn tls_options(tls: &crate::config::Tls) -> Result<zookeeper_client::TlsOptions> {
    use zookeeper_client::TlsOptions;
    // The client asks for the process's cryptography. If the program has chosen, that stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bad = |what: &str, cause: zookeeper_client::Error| {
        Error::invalid(format!("the {what} is not good PEM: {cause}"))
    };
    let options = TlsOptions::new().with_pem_ca(&tls.ca);
    let options = options.map_err(|cause| bad("certificate authority", cause))?;
    match &tls.identity {
        None => Ok(options),
        Some((cert, key)) => options
            .with_pem_identity(cert, key)
            .map_err(|cause| bad("certificate or its key", cause)),
    }
}

fn acls(access: Access) -> Vec<Acl> {
    match access {
        Access::Open => vec![Acl::new(Permission::ALL, AuthId::anyone())],
        Access::Creator => vec![Acl::new(Permission::ALL, AuthId::authed())],
        Access::CreatorAndReaders => vec![
            Acl::new(Permission::ALL, AuthId::authed()),
            Acl::new(Permission::READ, AuthId::anyone()),
        ],
    }
}

/// Tells the session's state as long as its runtime lives. When that ends, nobody sends heartbeats any more, and the client
/// does not say so.
fn follow(client: &Client, breaks: Arc<AtomicU64>) -> watch::Receiver<State> {
    let (tell, told) = watch::channel(State::Up);
    let mut states = client.state_watcher();
    let mut state = states.peek_state();
    let told_last = LastWord(tell);
    tokio::spawn(async move {
        while !state.is_terminated() {
            told_last.0.send_replace(match state {
                SessionState::SyncConnected => State::Up,
                _ => {
                    breaks.fetch_add(1, Ordering::AcqRel);
                    State::Down
                }
            });
            state = states.changed().await;
        }
        told_last.0.send_replace(State::Ended);
    });
    told
}

/// Speaks also when the runtime drops the task that follows the session.
struct LastWord(watch::Sender<State>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.send_if_modified(|state| {
            let orphaned = *state != State::Ended;
            if orphaned {
                *state = State::Orphaned;
            }
            orphaned
        });
    }
}
