//! How a session is opened.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, watch};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::diagnose::{Reason, diagnose};
use super::dial::Dialer;
use super::pulse::Pulse;
use super::rounds::Rounds;
use super::serve::{Core, LastWord, Shared, Task};
use super::watches::Watches;
use super::{Cause, Session, SessionState, acls};
use crate::config::Config;
use crate::error::Fault;

/// What a session is opened for.
#[derive(Clone, Copy)]
pub(super) enum Purpose<'a> {
    /// It is a new one.
    New,
    /// To go on with this one.
    TakeUp(&'a Session),
    /// To close this one, whatever time it is granted, and on any server: also on one that was put back to an older copy, which takes nobody who
    /// has seen more.
    Bury(&'a Session),
}

impl Purpose<'_> {
    fn old(&self) -> Option<&Session> {
        match self {
            Self::New => None,
            Self::TakeUp(session) | Self::Bury(session) => Some(session),
        }
    }
}

/// A session, within the connect time-out.
pub(super) async fn open(config: &Config, purpose: Purpose<'_>) -> Result<Session> {
    let limit = config.connect_limit();
    let start = Instant::now();
    let first_login = first_login(config, limit).await?;
    let left = limit.saturating_sub(start.elapsed());
    let mut opening = pin!(timeout(left, begin(config, purpose, first_login)?));
    let reason = tokio::select! {
        biased;
        answer = &mut opening => return outcome(config, answer, None),
        reason = diagnose(config) => reason,
    };
    match reason {
        Some(reason) if reason.is_final => Err(reason.error),
        reason => outcome(config, opening.await, reason),
    }
}

/// The login of the first connection, if there is one: whoever opens a session hears why there is none.
async fn first_login(config: &Config, limit: Duration) -> Result<Option<(String, String)>> {
    let Some(login) = config.shown_login() else {
        return Ok(None);
    };
    match timeout(limit, login.now()).await {
        Ok(login) => login.map(Some),
        Err(_) => Err(Error::new(
            ErrorKind::TimedOut,
            format!("no user and password were given to us within {limit:?}"),
        )),
    }
}

fn outcome(
    config: &Config,
    answer: Result<Result<Session, Cause>, Elapsed>,
    reason: Option<Reason>,
) -> Result<Session> {
    match answer {
        Ok(Ok(session)) => Ok(session),
        Ok(Err(cause)) => Err(Fault::from(cause).into()),
        Err(_) => Err(reason.map_or_else(|| unanswered(config), |reason| reason.error)),
    }
}

fn unanswered(config: &Config) -> Error {
    let (servers, limit) = (config.identity_text(), config.connect_limit());
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "no server of {servers} answered within {limit:?}: are they running and reachable?"
        ),
    )
}

/// Tries until a server has answered.
fn begin(
    config: &Config,
    purpose: Purpose<'_>,
    first_login: Option<(String, String)>,
) -> Result<impl Future<Output = Result<Session, Cause>> + use<>> {
    let (asks, asked) = mpsc::unbounded_channel();
    let old = purpose.old();
    let zxid = match purpose {
        Purpose::TakeUp(old) => old.shared.zxid.load(Ordering::Acquire),
        Purpose::New | Purpose::Bury(_) => 0,
    };
    let shared = Arc::new(Shared {
        breaks: AtomicU64::new(0),
        zxid: zxid.into(),
        claims: old.map(|old| old.shared.claims.clone()).unwrap_or_default(),
    });
    let mut core = Core {
        hosts: config.hosts().to_vec(),
        last: None,
        dialer: Dialer::new(config)?,
        login: config.shown_login(),
        first_login,
        ttl: old.map_or(config.session_time(), Session::ttl),
        ticket: old.map(|old| old.ticket.clone()),
        any_time: matches!(purpose, Purpose::Bury(_)),
        shared: shared.clone(),
        watches: Watches::default(),
        asks: asks.downgrade(),
        number: 0,
    };
    let (chroot, acls) = (config.chroot_path().to_owned(), acls(config));
    Ok(async move {
        let talk = core.connect().await?;
        let ticket = core.ticket.clone().ok_or(Cause::Garbled)?;
        let (tell, state) = watch::channel(SessionState::Up);
        let task = Task {
            core,
            asks: asked,
            closing: false,
        };
        tokio::spawn(task.run(talk, LastWord(tell)));
        Ok(Session {
            ticket,
            asks,
            state,
            shared,
            pulse: Pulse::default(),
            rounds: Rounds::default(),
            chroot,
            acls,
        })
    })
}
