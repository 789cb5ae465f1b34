//! The task of a session: it connects, writes, reads, sends heartbeats, and connects again.
//!
//! ```text
//!   connect ──► greet ──► Up ──► Down ──► connect ...      a lost connection
//!                 │       │        │
//!                 └───────┴────────┴────► Ended            refused, expired, closed, or not heard of for too long
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::backend::Host;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::dial::Dialer;
use super::ghosts::Claims;
use super::jute::{Reader, Writer};
use super::talk::{Awaited, Reply, Talk};
use super::watches::{Key, Kind, Watches};
use super::{Cause, SessionState, code, op};
use crate::config::ShownLogin;
use crate::pace::Pace;

/// Numbers of messages that are not answers to numbered requests.
const EVENT: i32 = -1;
const PING: i32 = -2;
pub(super) const AUTH: i32 = -4;

/// What the session's task is asked for.
#[derive(Debug)]
pub(super) enum TaskMessage {
    Request(Call),
    /// Nobody waits for this watch any more.
    Unwatch(Key, u64),
}

/// A request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) op: i32,
    pub(super) body: Vec<u8>,
    /// The watch that it sets.
    pub(super) watch: Option<Key>,
    pub(super) reply: oneshot::Sender<Result<Reply, Cause>>,
}

/// What the server has agreed to.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SessionTicket {
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
    pub(super) ttl: Duration,
}

/// Without the password, with which anybody could take the session up.
impl fmt::Debug for SessionTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionTicket")
            .field("id", &self.id)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// What the task and those who ask share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// How often the connection was lost.
    pub(super) breaks: AtomicU64,
    /// The last transaction that the server has told of.
    pub(super) zxid: AtomicI64,
    /// Whose places are wanted.
    pub(super) claims: Arc<Claims>,
}

/// What does not change while a session is tried to be made, and lives.
pub(super) struct Core {
    pub(super) hosts: Vec<Host>,
    /// The one that was last connected: the next connection is tried elsewhere first.
    pub(super) last: Option<Host>,
    pub(super) dialer: Dialer,
    pub(super) login: Option<ShownLogin>,
    /// What it was when the session was opened, for the first connection.
    pub(super) first_login: Option<(String, String)>,
    /// Of the session that is asked for, or was granted.
    pub(super) ttl: Duration,
    pub(super) ticket: Option<SessionTicket>,
    /// It may be granted less time than before.
    pub(super) any_time: bool,
    pub(super) shared: Arc<Shared>,
    pub(super) watches: Watches,
    pub(super) asks: mpsc::WeakUnboundedSender<TaskMessage>,
    pub(super) number: i32,
}

impl Core {
    pub(super) fn pace(&self) -> Pace {
        Pace::of(self.ttl)
    }

    /// Sends a request whose answer nobody waits for.
    pub(super) fn ask_myself(&mut self, talk: &mut Talk, op: i32, body: &[u8]) {
        let awaited = Awaited {
            reply: None,
            watch: None,
        };
        self.send(talk, op, body, awaited);
    }

    pub(super) fn send(&mut self, talk: &mut Talk, op: i32, body: &[u8], awaited: Awaited) {
        self.number = self.number.checked_add(1).unwrap_or(1);
        let mut message = Writer::default().int(self.number).int(op);
        message.0.extend_from_slice(body);
        talk.push(&message.0);
        talk.awaited.insert(self.number, awaited);
    }

    fn ask(&mut self, talk: &mut Talk, ask: TaskMessage) {
        match ask {
            TaskMessage::Request(call) => {
                if let Some(key) = &call.watch {
                    self.watches.asked(key);
                }
                let awaited = Awaited {
                    reply: Some(call.reply),
                    watch: call.watch,
                };
                self.send(talk, call.op, &call.body, awaited);
            }
            TaskMessage::Unwatch(key, number) => {
                if self.watches.remove(&key, number) {
                    self.unwatch(talk, &key);
                }
            }
        }
    }

    fn unwatch(&mut self, talk: &mut Talk, key: &Key) {
        let kind = match key.0 {
            Kind::Children => 1,
            Kind::Data => 2,
        };
        let body = Writer::default().text(&key.1).int(kind).0;
        self.ask_myself(talk, op::REMOVE_WATCHES, &body);
    }

    /// One message of the server.
    pub(super) fn take_in(&mut self, talk: &mut Talk, message: &[u8]) -> Result<(), Cause> {
        let mut message = Reader(message);
        let (number, zxid, error) = (message.int()?, message.long()?, message.int()?);
        match error {
            code::SESSION_EXPIRED => return Err(Cause::Expired),
            code::AUTH_FAILED | code::AUTH_REQUIRED => return Err(Cause::AuthFailed),
            _ => {}
        }
        match number {
            EVENT => {
                let (event, _state) = (message.int()?, message.int()?);
                self.watches.fire(event, message.text()?);
                return Ok(());
            }
            PING => {
                talk.beating = false;
                return Ok(());
            }
            AUTH if error == 0 => return Ok(()),
            AUTH => return Err(Cause::AuthFailed),
            _ => {}
        }
        self.shared.zxid.fetch_max(zxid, Ordering::AcqRel);
        let awaited = talk.awaited.remove(&number).ok_or(Cause::Garbled)?;
        let mut watch = None;
        if let Some(key) = awaited.watch {
            if error == 0 {
                watch = Some(self.watches.add(key.clone(), self.asks.clone()));
            }
            if self.watches.answered(&key) {
                self.unwatch(talk, &key);
            }
        }
        if let Some(reply) = awaited.reply {
            let body = message.0.to_vec();
            // Who does not wait any more drops the watch with the answer.
            let _ = reply.send(match error {
                0 => Ok(Reply { body, watch }),
                error => Err(Cause::Server(error)),
            });
        }
        Ok(())
    }
}

pub(super) fn beat(talk: &mut Talk) {
    talk.push(&Writer::default().int(PING).int(op::PING).0);
    talk.beating = true;
}

/// The task of a session.
pub(super) struct Task {
    pub(super) core: Core,
    pub(super) asks: mpsc::UnboundedReceiver<TaskMessage>,
    /// Nobody asks any more: the session is to be closed.
    pub(super) closing: bool,
}

impl Task {
    pub(super) async fn run(mut self, mut talk: Talk, state: LastWord) {
        let end = loop {
            state.0.send_replace(SessionState::Up);
            let cause = self.serve(&mut talk).await;
            self.core.shared.breaks.fetch_add(1, Ordering::AcqRel);
            // First, so that whoever hears of it below, and asks again, waits for the next connection.
            state.0.send_replace(SessionState::Down);
            let heard = talk.heard;
            talk.fail(&cause);
            self.core.watches.disconnected();
            if cause.is_final() {
                break cause;
            }
            tracing::debug!(%cause, "the connection was lost");
            match self.connect_again(heard).await {
                Ok(next) => {
                    talk = next;
                    self.core.remove_ghosts(&mut talk);
                }
                Err(cause) => break cause,
            }
        };
        state.0.send_replace(SessionState::Ended(end.clone()));
        self.core.watches.end();
        self.asks.close();
        while let Some(ask) = self.asks.recv().await {
            refuse(ask, &end);
        }
    }

    /// Until the connection is lost.
    async fn serve(&mut self, talk: &mut Talk) -> Cause {
        let pace = self.core.pace();
        let closed = self.core.number;
        loop {
            if self.closing && self.core.number != closed && talk.awaited.is_empty() {
                return Cause::Closed;
            }
            let beat_at = talk.sent + pace.heartbeat();
            let read = tokio::select! {
                biased;
                ask = self.asks.recv(), if !self.closing => {
                    match ask {
                        Some(ask) => self.core.ask(talk, ask),
                        None => {
                            self.closing = true;
                            self.core.ask_myself(talk, op::CLOSE_SESSION, &[]);
                        }
                    }
                    // All requests that have come by now leave in one packet.
                    while let Ok(ask) = self.asks.try_recv() {
                        self.core.ask(talk, ask);
                    }
                    continue;
                }
                read = talk.step(pace.silence()) => read,
                () = sleep_until(beat_at), if !talk.beating => {
                    beat(talk);
                    continue;
                }
            };
            let taken =
                read.and_then(|_| talk.messages(|talk, message| self.core.take_in(talk, message)));
            if let Err(cause) = taken {
                return cause;
            }
        }
    }

    /// The same session on another connection, as long as a server may know it. Who asks meanwhile is refused: nothing is sent later, when nobody
    /// wants it any more.
    async fn connect_again(&mut self, heard: Instant) -> Result<Talk, Cause> {
        let end = heard + self.core.pace().gives_up();
        let mut unwatched = Vec::new();
        let asks = &mut self.asks;
        let refuse_all = async {
            while let Some(ask) = asks.recv().await {
                match ask {
                    TaskMessage::Unwatch(key, number) => unwatched.push((key, number)),
                    ask => refuse(ask, &Cause::Broken("not connected".to_owned())),
                }
            }
            std::future::pending().await
        };
        let mut talk = tokio::select! {
            biased;
            talk = self.core.connect() => talk?,
            () = sleep_until(end) => return Err(Cause::GivenUp),
            () = refuse_all => return Err(Cause::Closed),
        };
        self.closing = false;
        for (key, number) in unwatched {
            self.core.ask(&mut talk, TaskMessage::Unwatch(key, number));
        }
        Ok(talk)
    }
}

fn refuse(ask: TaskMessage, cause: &Cause) {
    if let TaskMessage::Request(call) = ask {
        let _ = call.reply.send(Err(cause.clone()));
    }
}

/// Tells the session's state, also when the runtime drops the session's task: then nobody sends heartbeats any more.
pub(super) struct LastWord(pub(super) watch::Sender<SessionState>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.send_if_modified(|state| {
            let orphaned = !matches!(state, SessionState::Ended(_));
            if orphaned {
                *state = SessionState::Orphaned(std::time::Instant::now());
            }
            orphaned
        });
    }
}
