//! The client: one session, and its requests. The only folder, beside `error.rs`, that names client types.

mod open;
mod requests;
mod why;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Error, Result};
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{Acl, AuthId, Client, Permission, SessionInfo, SessionState};

#[cfg(feature = "client")]
pub(crate) use self::open::connect;
pub(crate) use self::requests::{Seen, Stat, Watch};
use crate::config::{Access, Config};
use crate::error::{Fault, disconnected};

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
        let client = open::connect(config, old).await?;
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
}

fn is_expired(error: &Error) -> bool {
    use std::error::Error as _;
    error
        .source()
        .and_then(|source| source.downcast_ref::<zookeeper_client::Error>())
        .is_some_and(|cause| *cause == zookeeper_client::Error::SessionExpired)
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
