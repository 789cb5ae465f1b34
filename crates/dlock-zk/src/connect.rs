//! The client: one session, its connections, and its requests. No other folder knows how ZooKeeper speaks.

mod diagnose;
mod dial;
mod ghosts;
mod greet;
mod jute;
mod open;
mod pulse;
mod requests;
mod rounds;
mod sasl;
mod serve;
mod talk;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dlock_core::{Error, Result};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub(crate) use self::ghosts::Claim;
use self::open::Purpose;
pub(crate) use self::requests::Stat;
pub(crate) use self::rounds::{Listing, in_order};
use self::serve::{SessionTicket, Shared, TaskMessage};
pub(crate) use self::watches::{NodeWatch, Seen};
use crate::config::{Access, Config};
use crate::error::{Fault, disconnected};
use crate::pace::Pace;

/// What ZooKeeper is asked for.
pub(crate) mod op {
    pub(crate) const DELETE: i32 = 2;
    pub(crate) const EXISTS: i32 = 3;
    pub(crate) const GET_DATA: i32 = 4;
    pub(crate) const SET_DATA: i32 = 5;
    pub(crate) const SYNC: i32 = 9;
    pub(crate) const PING: i32 = 11;
    pub(crate) const GET_CHILDREN: i32 = 12;
    pub(crate) const CHECK: i32 = 13;
    pub(crate) const MULTI: i32 = 14;
    pub(crate) const CREATE: i32 = 15;
    pub(crate) const REMOVE_WATCHES: i32 = 18;
    pub(crate) const CREATE_CONTAINER: i32 = 19;
    pub(crate) const AUTH: i32 = 100;
    pub(crate) const SET_WATCHES: i32 = 101;
    pub(crate) const SASL: i32 = 102;
    pub(crate) const GET_EPHEMERALS: i32 = 103;
    pub(crate) const CLOSE_SESSION: i32 = -11;
}

/// What ZooKeeper answers when it does not do it.
pub(crate) mod code {
    pub(crate) const MARSHALLING: i32 = -5;
    pub(crate) const UNIMPLEMENTED: i32 = -6;
    pub(crate) const BAD_ARGUMENTS: i32 = -8;
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const BAD_VERSION: i32 = -103;
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const NOT_EMPTY: i32 = -111;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const INVALID_ACL: i32 = -114;
    pub(crate) const AUTH_FAILED: i32 = -115;
    pub(crate) const SESSION_MOVED: i32 = -118;
    pub(crate) const NOT_READ_ONLY: i32 = -119;
    pub(crate) const AUTH_REQUIRED: i32 = -124;
    pub(crate) const QUOTA_EXCEEDED: i32 = -125;
    pub(crate) const THROTTLED: i32 = -127;
}

/// Why there is no answer, or not the one that was wished for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The server's answer is an error, by its number in [`code`].
    Server(i32),
    /// The session has ended at the server, or must be taken to have.
    Expired,
    /// The server does not accept the credentials, or asks for some.
    AuthFailed,
    /// No server was heard of for longer than the session lasts. One may still know it.
    GivenUp,
    /// The session was closed, or its task has ended with its runtime.
    Closed,
    /// A server grants less time to the session than it was made with.
    Shortened(Duration),
    /// The connection broke.
    Broken(String),
    /// The server said nothing for this long.
    Silent(Duration),
    /// The server said something that cannot be understood.
    Garbled,
}

impl Cause {
    /// Whether the session has ended with it, so that no other connection helps.
    fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Expired | Self::GivenUp | Self::AuthFailed | Self::Closed | Self::Shortened(_)
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(number) => write!(f, "ZooKeeper's error {number}"),
            Self::Expired => f.write_str("the session has expired"),
            Self::GivenUp => f.write_str("no server was heard of for too long"),
            Self::AuthFailed => f.write_str("authentication failed"),
            Self::Closed => f.write_str("the session was closed"),
            Self::Shortened(ttl) => write!(f, "a server grants only {ttl:?} to the session"),
            Self::Broken(text) => f.write_str(text),
            Self::Silent(limit) => write!(f, "the server said nothing for {limit:?}"),
            Self::Garbled => f.write_str("the server's answer cannot be understood"),
        }
    }
}

impl std::error::Error for Cause {}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SessionState {
    /// Connected.
    Up,
    /// Not connected at the moment.
    Down,
    /// Expired, closed or refused: nothing brings it back.
    Ended(Cause),
    /// The runtime that kept it alive has ended, at this moment. Until it expires, it can be taken up again.
    Orphaned(Instant),
}

impl SessionState {
    fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Orphaned(_))
    }

    /// Whether a session of this time has ended for good. One that was not kept alive for too long is not worth another look: a server that
    /// was put back to an older copy would never let us take it up.
    fn is_ended(&self, ttl: Duration) -> bool {
        match self {
            Self::Ended(_) => true,
            Self::Orphaned(since) => since.elapsed() > Pace::of(ttl).gives_up(),
            Self::Up | Self::Down => false,
        }
    }

    /// Whether the server has said that the session is over.
    fn is_confirmed(&self) -> bool {
        matches!(self, Self::Ended(Cause::Expired | Cause::Closed))
    }
}

/// One ZooKeeper session. Dropping the last reference closes it.
pub(crate) struct Session {
    ticket: SessionTicket,
    asks: mpsc::UnboundedSender<TaskMessage>,
    state: watch::Receiver<SessionState>,
    shared: Arc<Shared>,
    pulse: pulse::Pulse,
    rounds: rounds::Rounds,
    chroot: String,
    acls: Vec<Acl>,
}

/// Who may do what with a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Acl {
    permissions: i32,
    scheme: String,
    id: String,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id_text())
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A new session.
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        open::open(config, Purpose::New).await
    }

    /// The same session in the present runtime; `None` when the server does not know it any more.
    pub(crate) async fn take_up(&self, config: &Config) -> Result<Option<Self>> {
        self.reopen(config, Purpose::TakeUp(self)).await
    }

    /// Makes sure that the server has ended it, whatever has become of it here.
    ///
    /// # Errors
    ///
    /// When that was not confirmed within the connect time-out.
    pub(crate) async fn bury(&self, config: &Config) -> Result<()> {
        match self.reopen(config, Purpose::Bury(self)).await? {
            Some(session) => session.close(config.connect_limit()).await,
            None => Ok(()),
        }
    }

    async fn reopen(&self, config: &Config, purpose: Purpose<'_>) -> Result<Option<Self>> {
        match open::open(config, purpose).await {
            Ok(session) => Ok(Some(session)),
            Err(error) if cause_of(&error) == Some(&Cause::Expired) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends it, and waits until the server has confirmed.
    pub(crate) async fn close(self, limit: Duration) -> Result<()> {
        let mut state = self.state.clone();
        drop(self);
        match timeout(limit, state.wait_for(SessionState::is_over)).await {
            Ok(Ok(state)) if state.is_confirmed() => Ok(()),
            _ => Err(disconnected()),
        }
    }

    pub(crate) fn id(&self) -> i64 {
        self.ticket.id
    }

    /// How long the server keeps it without a sign of life.
    pub(crate) fn ttl(&self) -> Duration {
        self.ticket.ttl
    }

    /// How often the connection was lost. On one connection, watches tell in the order of what happened.
    pub(crate) fn breaks(&self) -> u64 {
        self.shared.breaks.load(Ordering::Acquire)
    }

    pub(crate) fn id_text(&self) -> String {
        format!("{:#x}", self.ticket.id)
    }

    /// Whether it has ended for good, and its nodes with it.
    pub(crate) fn is_ended(&self) -> bool {
        self.state.borrow().is_ended(self.ticket.ttl)
    }

    /// The present connection.
    pub(crate) fn line(&self) -> ConnectionId {
        ConnectionId {
            session: self.id(),
            breaks: self.breaks(),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.state.borrow().is_over()
    }

    /// Whether a request would be sent at once, as far as we know.
    pub(crate) fn is_up(&self) -> bool {
        *self.state.borrow() == SessionState::Up
    }

    /// Resolves when requests are sent at once. Before, they are refused: they would be carried out when nobody wants them any more.
    pub(crate) async fn up(&self) -> Result<()> {
        let mut state = self.state.clone();
        match state
            .wait_for(|state| *state == SessionState::Up || state.is_over())
            .await
        {
            Ok(state) if *state == SessionState::Up => Ok(()),
            _ => Err(self.ended()),
        }
    }

    pub(crate) fn ended(&self) -> Error {
        let cause = match &*self.state.borrow() {
            SessionState::Ended(cause) => cause.clone(),
            _ => Cause::Closed,
        };
        Fault::Ended(cause).into()
    }
}

/// One connection of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    pub(crate) session: i64,
    /// How often the connection was lost before.
    pub(crate) breaks: u64,
}

/// What the client says, if the error comes from it.
fn cause_of(error: &Error) -> Option<&Cause> {
    use std::error::Error as _;
    error.source()?.downcast_ref()
}

/// Whether it is that a server grants less time to the session than it was made with.
pub(crate) fn is_shortened(error: &Error) -> bool {
    matches!(cause_of(error), Some(Cause::Shortened(_)))
}

fn acls(config: &Config) -> Vec<Acl> {
    const ALL: i32 = 31;
    const READ: i32 = 1;
    let acl = |permissions, scheme: &str, id: &str| Acl {
        permissions,
        scheme: scheme.to_owned(),
        id: id.to_owned(),
    };
    // `auth` stands for all that this connection has shown to be.
    let mine = acl(ALL, "auth", "");
    let mut acls = match config.effective_access() {
        None => Vec::new(),
        Some(Access::Open) => vec![acl(ALL, "world", "anyone")],
        Some(Access::Creator) => vec![mine],
        Some(Access::CreatorAndReaders) => vec![mine, acl(READ, "world", "anyone")],
    };
    let grants = config.grants().iter();
    acls.extend(grants.map(|grant| acl(grant.permissions, &grant.scheme, &grant.id)));
    acls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_without_a_runtime_has_ended_when_no_server_can_know_it() {
        let ttl = Duration::from_secs(10);
        let since = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        for (state, ended) in [
            (Some(SessionState::Up), false),
            (Some(SessionState::Down), false),
            (Some(SessionState::Ended(Cause::GivenUp)), true),
            (since(0).map(SessionState::Orphaned), false),
            (since(13).map(SessionState::Orphaned), false),
            (since(15).map(SessionState::Orphaned), true),
        ] {
            // On a machine that has been up for less than that, an `Instant` so long ago does not exist.
            let Some(state) = state else { continue };
            assert_eq!(state.is_ended(ttl), ended, "{state:?}");
        }
    }

    #[test]
    fn only_the_servers_word_confirms_an_end() {
        for (cause, confirmed) in [
            (Cause::Closed, true),
            (Cause::Expired, true),
            (Cause::GivenUp, false),
            (Cause::AuthFailed, false),
            (Cause::Shortened(Duration::ZERO), false),
        ] {
            let state = SessionState::Ended(cause);
            assert_eq!(state.is_confirmed(), confirmed, "{state:?}");
        }
        assert!(!SessionState::Orphaned(Instant::now()).is_confirmed());
    }
}
